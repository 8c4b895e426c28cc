"""`zipfel demo`: train, evaluate and tag, on a data set that comes with a Python package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zipfel.cli.model import show_report
from zipfel.cli.progress import Shown, span
from zipfel.cli.show import console, say, warn
from zipfel.data import registry
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read, write
from zipfel.errors import INTERRUPTED
from zipfel.evaluate import evaluate

MODEL, PRESET, SETTINGS = "decaf", "fast", dict[str, Any]()
PHRASES = ("acute bronchitis with fever", "fracture of the wrist", "allergic reaction to peanuts")


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the data and the model.")]


def demo(folder: Folder = Path("zipfel-demo")) -> None:
    """Train DECAF on ICD-10-CM, evaluate it and tag a few phrases; takes about a minute."""
    from zipfel.tagger import Tagger
    from zipfel.training.run import Run

    source = folder / "icd10cm"
    if not source.exists():
        write(registry.load("icd10cm"), source, "lf")
    dataset = read(source)
    points, _, labels = dataset.sizes
    say(f"ICD-10-CM: {points:,} clinical phrases, {labels:,} codes; training DECAF, preset {PRESET}")
    tagger = Tagger(MODEL, PRESET, SETTINGS)
    shown = Shown()
    with shown.bar:
        tagger.fit_dataset(dataset, Run(folder / "run", progress=shown))
    tagger.save(folder / "model", replace=True)
    if tagger.outcome_.interrupted:
        warn("stopped by Ctrl-C: the model is saved as it is; run the same command to resume")
        raise typer.Exit(INTERRUPTED)
    say(f"trained in {span(tagger.outcome_.seconds)}\n")
    assert dataset.test is not None
    show_report(evaluate(tagger.rank(dataset.test.texts), dataset), [1, 3, 5])
    _show_tags(tagger, dataset)
    say(f'\nTry next:  zipfel predict {folder} "your own phrase"')
    say('           zipfel train tickets.csv --text title,body --labels tags --sep ";" --out runs/tickets')


def _show_tags(tagger: Any, dataset: Dataset) -> None:
    texts = dict(zip(dataset.label_names or [], (dataset.label_texts or {"": []})["title"], strict=True))
    for phrase, tags in zip(PHRASES, tagger.predict(PHRASES, k=3), strict=True):
        console.print(f"\n[bold]{phrase}[/bold]")
        for tag in tags:
            say(f"  {tag.score:.2f}  {tag.label:8} {texts[tag.label].partition(';')[0]}")
