"""`zipfel train`, `evaluate`, `models`, `verify`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import orjson
import typer
from rich.markup import escape

from zipfel import config
from zipfel.choice import AUTO
from zipfel.cli import data
from zipfel.cli.options import with_options
from zipfel.cli.progress import Shown, span
from zipfel.cli.show import bar, console, print_table
from zipfel.data.dataset import Dataset, Part, Propensity, fingerprint
from zipfel.data.formats import TableSettings
from zipfel.data.formats.files import new_file
from zipfel.data.splits import Preparation
from zipfel.data.text import TextSettings
from zipfel.errors import ConfigError, DataError
from zipfel.evaluate import Report, ranked, read_predictions
from zipfel.evaluate import evaluate as judge

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagger import Tagger

LONGEST = 1000  # ranking that is judged: what is held is points × k

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.", show_default=False)]

Name = Annotated[str, typer.Option(help="Model to train; `zipfel models` lists them. auto: what fits the data.")]
Preset = Annotated[str, typer.Option(help="paper, default or fast.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset; may be repeated.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@with_options
def train(
    source: data.Source,
    out: Annotated[Path, typer.Option(help="Folder for the run and the model.", show_default=False)],
    columns: TableSettings,
    preparation: Preparation,
    text: TextSettings,
    model: Name = "auto",
    preset: Preset = "default",
    set: Changes = None,
    config_file: ConfigFile = None,
    device: Device = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over where a run stopped.")] = False,
    format: data.From = None,
) -> None:
    """Train a model; the same command again goes on where it stopped."""
    from zipfel.tagger import Tagger
    from zipfel.training.run import Run

    changes = given_changes(set, config_file)
    check_named(model, preset, changes, device)  # before the data is read
    dataset = data.load(source, format, columns, preparation)
    choice, settings = Tagger(model, preset, changes, device=device).choice(dataset)
    tagger = Tagger(choice.model, choice.preset, dataclasses.asdict(settings), dataclasses.asdict(text), device=device,
                    seed=preparation.seed)  # fmt: skip
    if model == AUTO:
        console.print(f"model {choice.model}, preset {choice.preset} ({choice.why})", soft_wrap=True)
    with Shown() as shown:
        run = Run(out / "run", preparation.seed, shown)
        inputs = {"model": choice.model, "settings": dataclasses.asdict(settings), "text": dataclasses.asdict(text),
                  "data": fingerprint(dataset, dataset.parts.values())}  # fmt: skip
        run.open(inputs, fresh)
        tagger.fit_dataset(dataset, run)
    tagger.save(out / "model", replace=True)
    outcome = tagger.outcome_
    best = (
        f", best on validation {outcome.best:.4f} in epoch {outcome.best_epoch + 1}" if outcome.best_epoch >= 0 else ""
    )
    ended = "stopped early" if outcome.interrupted else "trained"
    console.print(f"{escape(str(out))}: {ended} in {span(outcome.seconds)}{best}", soft_wrap=True)
    if tagger.calibration_ is not None:
        about = tagger.calibration_.figures
        console.print(f"scores are probabilities by {about.points:,} held-out points ({about.method}): off by "
                      f"{about.error_after:.1%}, as they came by {about.error_before:.1%}", soft_wrap=True)  # fmt: skip


def given_changes(words: list[str] | None, file: Path | None) -> dict[str, Any]:
    """Return what differs from the preset: words over a file."""
    return {**(config.read_toml(file) if file else {}), **config.words_of(words or [])}


def check_named(model: str, preset: str, changes: dict[str, Any], device: str) -> None:
    """Refuse what is wrong whatever the data: a device, a model, its preset or its settings."""
    from zipfel.tagger import chosen_device, settings_of

    chosen_device(device)
    if model != AUTO:
        settings_of(model, preset, changes)


@with_options
def evaluate(
    paths: Annotated[list[Path], typer.Argument(metavar="[MODEL] DATA", help="A model and a data set, or only that.")],
    columns: TableSettings,
    preparation: Preparation,
    predictions: Annotated[
        Path | None, typer.Option(help="Scores instead of a model: scipy npz, or lines of 'label:score …'.")
    ] = None,
    part: Annotated[str, typer.Option(help="Part of the data set to judge.")] = "test",
    k: Annotated[str, typer.Option(help="Lengths of the ranking to judge.")] = "1,3,5",
    a: Annotated[float | None, typer.Option("--A", help="Propensity constant; else the data set's.")] = None,
    b: Annotated[float | None, typer.Option("--B", help="Propensity constant; else the data set's.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    format: data.From = None,
) -> None:
    """Judge a model, or anybody's predictions: P, nDCG, PSP, PSnDCG, R, coverage, by frequency, and on the tail."""
    ks, model = _lengths(k), _model_of(paths, predictions)
    dataset = data.load(paths[-1], format, columns, preparation)
    given = Propensity(dataset.propensity.A if a is None else a, dataset.propensity.B if b is None else b)
    if part not in dataset.parts:
        raise ConfigError(f"part must be one of {', '.join(dataset.parts)}; found {part!r}")
    start = time.perf_counter()
    if model is not None:
        tagger = tagger_of(model, dataset)
        ranking = tagger.rank(_inputs(tagger, dataset.parts[part]), ks[-1], dataset.parts[part].filtered)
    else:
        assert predictions is not None
        scores = read_predictions(predictions, len(dataset.parts[part]), dataset.sizes.labels)
        ranking = ranked(scores, dataset, part, ks[-1])
    seconds = time.perf_counter() - start
    report = judge(ranking, dataset, part, ks, given)
    found = {} if model is None else _index_recall(tagger, dataset.parts[part], ks[-1])
    if json is not None:
        with new_file(json) as out:
            figures = report.as_json() | {"seconds": round(seconds, 3)} | found
            out.write(orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")
    show_report(report, ks)
    if found:
        console.print(f"the index finds {found['index recall']:.2f} % of what an exact search finds")


def _model_of(paths: list[Path], predictions: Path | None) -> Path | None:
    """Return the model among the arguments, if there is one; exactly one of a model and predictions must be there."""
    if len(paths) > 2 or (len(paths) == 2) == (predictions is not None):
        raise ConfigError("evaluate takes MODEL DATA, or DATA --predictions FILE")
    return paths[0] if len(paths) == 2 else None


def tagger_of(model: Path, dataset: Dataset) -> Tagger:
    """Return a saved model, whose labels must be the data set's."""
    from zipfel.tagger import Tagger

    tagger = Tagger.load(model)
    names = list(dataset.label_names or map(str, range(dataset.sizes.labels)))
    if tagger.classes_ != names:
        raise DataError(
            f"the model knows {len(tagger.classes_)} labels that are not the {len(names)} of {dataset.name}"
        )
    return tagger


def _inputs(tagger: Tagger, points: Part) -> Any:
    return points.X if tagger.features_ is None else points.texts


def _index_recall(tagger: Tagger, points: Part, k: int) -> dict[str, float]:
    """Return what an approximate index finds of what an exact one finds, in percent, on at most 1,000 points."""
    some = points.take(np.arange(min(1000, len(points))))
    share = tagger.index_recall(_inputs(tagger, some), k)
    return {} if share is None else {"index recall": round(100 * share, 3)}


def models() -> None:
    """List the models, their settings with the defaults of each preset, and what they mean."""
    from zipfel.tagger import MODELS, model_presets

    rule = "what fits the data: its size, whether labels have texts, and the device; the default"
    console.print(f"[bold]{AUTO}[/bold]: {rule}", soft_wrap=True)
    for name in MODELS:
        presets = model_presets(name)
        kind = type(presets["default"])
        console.print(f"[bold]{name}[/bold]: {escape((kind.__doc__ or '').partition(chr(10))[0])}", soft_wrap=True)
        for field in dataclasses.fields(kind):
            values = {str(getattr(preset, field.name)): None for preset in presets.values()}
            shown = ", ".join(f"{key} {getattr(preset, field.name)}" for key, preset in presets.items())
            default = next(iter(values)) if len(values) == 1 else shown
            console.print(f"  [bold]{field.name}[/bold] ({escape(default)}): {escape(field.metadata['help'])}")


def verify(model: Model) -> None:
    """Check every file of a saved model against its checksum."""
    from zipfel import persistence

    count = persistence.verify(persistence.located(model))
    console.print(f"{escape(str(model))}: {count} files are as they were written", soft_wrap=True)


def _lengths(text: str) -> list[int]:
    try:
        ks = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(f"k must be whole numbers such as 1,3,5; found {text!r}") from None
    if ks[0] < 1:
        raise ConfigError(f"k must be at least 1; found {ks[0]}")
    if ks[-1] > LONGEST:
        raise ConfigError(f"k must be at most {LONGEST}; found {ks[-1]}")
    return ks


def show_report(report: Report, ks: list[int]) -> None:
    """Print the figures, in percent."""

    def rows(values: dict[str, float]) -> list[tuple[str, ...]]:
        names = dict.fromkeys(name.partition("@")[0] for name in values)
        return [(name, *(f"{values[f'{name}@{k}']:.2f}" for k in ks)) for name in names]

    lengths, propensity = ("", *(f"@{k}" for k in ks)), report.propensity
    title = f"{report.points:,} points, {report.labels:,} labels, A {propensity.A:g}, B {propensity.B:g}; percent"
    print_table(title, [*rows(report.values), *rows(report.macro)], lengths)
    if report.only_tail:
        title = f"\n{report.only_tail_points:,} points that have only tail labels"
        print_table(title, rows(report.only_tail), lengths)
    most = max((piece.contribution for piece in report.bins), default=0) or 1
    pieces = [
        (f"{piece.lowest:,} to {piece.highest:,} points a label", f"{piece.labels:,} labels",
         f"{piece.contribution:.2f}", bar(piece.contribution / most))
        for piece in report.bins
    ]  # fmt: skip
    print_table(f"\nWhat labels of each frequency contribute to P@{ks[-1]}", pieces, ("", "", "", "bar"))
