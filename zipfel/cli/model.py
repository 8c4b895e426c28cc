"""`zipfel plan`, `train`, `evaluate`, `models`, `verify`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import orjson
import typer
from rich.markup import escape

from zipfel.choice import AUTO, Choice
from zipfel.cli import data
from zipfel.cli.configured import Changes, ConfigFile, Name, Preset, configured
from zipfel.cli.corrections import with_corrections
from zipfel.cli.launch import is_launcher, launched
from zipfel.cli.machine import Machine
from zipfel.cli.options import Model, with_options
from zipfel.cli.predict import Threshold
from zipfel.cli.progress import Shown, span
from zipfel.cli.ranks import joined
from zipfel.cli.show import bar, console, print_table, say, warn
from zipfel.data.dataset import Dataset, Part, Propensity
from zipfel.data.formats import TableSettings, read
from zipfel.data.formats.atomic import check_new
from zipfel.data.formats.files import write_bytes
from zipfel.data.judged import Judged, check_kind, filtered_of, judged
from zipfel.data.labels import names_of
from zipfel.data.splits import Preparation
from zipfel.data.text import TextSettings
from zipfel.errors import INTERRUPTED, ConfigError, DataError
from zipfel.evaluate import LEVELS, Report, metric_rows, ranked, read_predictions
from zipfel.evaluate import evaluate as judge
from zipfel.label_report import LabelReport
from zipfel.metrics import frequencies

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagger import Tagger

LONGEST = 1000  # ranking to evaluate: memory grows with points × k

Json = Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")]


@with_options
def plan(
    context: typer.Context,
    source: data.Source,
    columns: TableSettings,
    preparation: Preparation,
    text: TextSettings,
    machine: Machine,
    model: Name = "auto",
    preset: Preset = "default",
    set: Changes = None,
    config_file: ConfigFile = None,
    json: Json = None,
    format: data.From = None,
) -> None:
    """Estimate memory, disk space and time of a training run, by rehearsing it on the data for a few seconds."""
    from zipfel.plan import plan as planned
    from zipfel.plan import spoken_size

    device = machine.used().device
    asked = configured(context, set, config_file, model, preset)
    dataset = data.load(source, format, columns, preparation)
    made = planned(dataset, asked.model, asked.preset, asked.settings, asked.text, device)
    if json is not None:
        _write_json(json, made.as_json())
    why = "" if made.why == "named" else f" ({made.why})"
    sizes = f"{made.points:,} points, {made.features:,} features, {made.labels:,} labels"
    say(f"{made.model}, preset {made.preset}{why}, on {made.device}: {sizes}")
    figures = {
        "training": "unknown" if made.training_seconds is None else span(made.training_seconds),
        "prediction": "unknown" if made.predict_ms is None else f"{made.predict_ms:.2f} ms per document",
        "memory": spoken_size(made.memory_bytes),
        "disk": spoken_size(made.disk_bytes),
        **({} if made.gpu_bytes is None else {"GPU memory": spoken_size(made.gpu_bytes)}),
    }
    for name, figure in figures.items():
        say(f"{name:<10}  {figure:>22}  {made.rests_on[name]}")
    for warning in made.warnings:
        warn(f"warning: {warning}")


@with_options
def train(
    context: typer.Context,
    source: data.Source,
    out: Annotated[Path, typer.Option(help="Folder for the run and the model.", show_default=False)],
    columns: TableSettings,
    preparation: Preparation,
    text: TextSettings,
    machine: Machine,
    model: Name = "auto",
    preset: Preset = "default",
    set: Changes = None,
    config_file: ConfigFile = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes on this machine that split the labels; each has one GPU, or its share of the cores."
        ),
    ] = None,
    corrections: Annotated[
        Path | None, typer.Option(help="Corrections to apply: the folder of `serve --corrections`, or a file.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")] = False,
    format: data.From = None,
) -> None:
    """Train a model. Run the same command again to resume. On several machines, `torchrun -m zipfel train`."""
    if workers is not None and is_launcher(workers):
        raise typer.Exit(launched(workers))
    with joined(machine) as (world, device):
        from zipfel.fitting import check_split
        from zipfel.models.base import settings_of
        from zipfel.tagger import Tagger
        from zipfel.training.run import Run

        def prepared() -> tuple[Tagger, Dataset]:
            check_out(out, fresh)
            asked = configured(context, set, config_file, model, preset)
            if world.splits and asked.model != AUTO:
                named = Choice(asked.model, asked.preset, "named")
                check_split(named, settings_of(asked.model, asked.preset, asked.settings), world.size)
            dataset = with_corrections(data.load(source, format, columns, preparation), corrections)
            tagger = Tagger(asked.model, asked.preset, asked.settings, asked.text, device=device, seed=preparation.seed)
            _show_choice(tagger, dataset)
            choice, settings = tagger.choice(dataset)
            if world.splits:
                check_split(choice, settings, world.size, dataset.sizes.labels)
            return tagger, dataset

        tagger, dataset = world.all(prepared)
        shown = Shown()
        with shown.bar:
            run = Run(out / "run", preparation.seed, shown, world=world)
            with run.opened(tagger.run_inputs(dataset), fresh):
                tagger.fit_dataset(dataset, run)
        world.first(lambda: tagger.save(out / "model", replace=True))
        _show_outcome(tagger, out)
    if tagger.outcome_.interrupted:
        raise typer.Exit(INTERRUPTED)


def check_out(out: Path, fresh: bool) -> None:
    """Refuse a folder where the model cannot be saved, or would replace one that no run of this folder made."""
    model = out / "model"
    if not (model / "model.json").is_file():
        check_new(model)
    elif not fresh and not (out / "run" / "run.json").is_file():
        raise DataError("is a model without its run; name another folder, or replace the model with --fresh", model)


def _show_choice(tagger: Tagger, dataset: Dataset) -> None:
    """Print which model is trained, where none was named, and whether it reads texts of labels, and mapped data."""
    from zipfel.fitting import copied_data, unused_label_texts

    choice, settings = tagger.choice(dataset)
    if tagger.model == AUTO:
        say(f"model {choice.model}, preset {choice.preset} ({choice.why})")
    if note := unused_label_texts(choice, settings, dataset):
        warn(f"warning: {note}")
    if note := copied_data(choice, settings, dataset):
        warn(f"note: {note}")


def _show_outcome(tagger: Tagger, out: Path) -> None:
    outcome = tagger.outcome_
    say(f"{out}: {outcome}")
    if tagger.calibration_ is not None:
        about = tagger.calibration_.figures
        errors = f"{about.error_after:.1%}, uncalibrated {about.error_before:.1%}"
        say(f"scores calibrated to probabilities on {about.points:,} held-out points ({about.method}): error {errors}")
    if outcome.interrupted:
        warn("stopped by Ctrl-C: the model is saved as it is; run the same command to resume")


def _write_json(path: Path, figures: dict[str, Any]) -> None:
    write_bytes(path, orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")


@with_options
def evaluate(
    paths: Annotated[list[Path], typer.Argument(metavar="[MODEL] DATA", help="Model and data set, or data set only.")],
    columns: TableSettings,
    preparation: Preparation,
    tags: Threshold,
    machine: Machine,
    predictions: Annotated[
        Path | None, typer.Option(help="Evaluate scores, not a model: scipy npz, or lines of 'label:score …'.")
    ] = None,
    part: data.PartName = "test",
    k: Annotated[str, typer.Option("--k", "-k", help="Ranking lengths to evaluate at.")] = "1,3,5",
    a: Annotated[float | None, typer.Option("--A", help="Propensity constant; default: the data set's.")] = None,
    b: Annotated[float | None, typer.Option("--B", help="Propensity constant; default: the data set's.")] = None,
    per_label: Annotated[
        Path | None, typer.Option(help="Also write precision, recall, F1, support and threshold of each label: CSV.")
    ] = None,
    json: Json = None,
    format: data.From = None,
) -> None:
    """Evaluate a model or predictions: P, nDCG, PSP, PSnDCG, R, coverage; by label frequency and on the tail."""
    ks, model, device = _lengths(k), _model_of(paths, predictions), machine.used().device
    at_threshold = per_label is not None or tags != Threshold()
    if at_threshold and predictions is not None:
        raise ConfigError("--per-label and thresholds need a model, not --predictions")
    tagger = None if model is None else loaded(model, device)
    about = judged_of(tagger, Reading(paths[-1], format, columns, preparation), part)
    dataset, part = about.dataset, about.part
    given = Propensity(dataset.propensity.A if a is None else a, dataset.propensity.B if b is None else b)
    points, start = data.part_of(dataset, part), time.perf_counter()
    if tagger is not None:
        depth = ks[-1] if dataset.hierarchy is None else max(ks[-1], LEVELS)
        ranking = tagger.rank(_inputs(tagger, points), depth, filtered_of(points, len(tagger.labels_)))
    else:
        assert predictions is not None
        scores = read_predictions(predictions, len(points), dataset.sizes.labels)
        ranking = ranked(scores, dataset, part, ks[-1])
    seconds = time.perf_counter() - start
    report = judge(ranking, dataset, part, ks, given)
    recall = {} if tagger is None else _index_recall(tagger, points, ks[-1])
    labels = None
    if at_threshold and tagger is not None:
        known = len(tagger.labels_)
        labels = tagger.per_label(
            _inputs(tagger, points), points.Y[:, :known], tags.of(tagger), filtered_of(points, known)
        ).with_unknown(points.Y[:, known:], names_of(dataset)[known:])
    averages = {} if labels is None else labels.averages()
    if json is not None:
        figures = report.as_json() | {"seconds": round(seconds, 3)} | about.as_json()
        _write_json(json, figures | recall | averages)
    if labels is not None and per_label is not None:
        labels.write(per_label)
    show_report(report, ks)
    if labels is not None:
        show_averages(labels)
    for share in recall.values():
        say(f"the index finds {share:.2f} % of what an exact search finds")


def _model_of(paths: list[Path], predictions: Path | None) -> Path | None:
    """Return the model's folder, None with predictions; exactly one of the two must be given."""
    if len(paths) > 2 or (len(paths) == 2) == (predictions is not None):
        raise ConfigError("evaluate takes MODEL DATA, or DATA --predictions FILE")
    return paths[0] if len(paths) == 2 else None


def loaded(model: Path, device: str = "auto") -> Tagger:
    """Load a saved model."""
    from zipfel.tagger import Tagger

    return Tagger.load(model, device)


class Reading(NamedTuple):
    """A data set, and how to read it."""

    path: Path
    format: str | None
    columns: TableSettings
    preparation: Preparation


def judged_of(tagger: Tagger | None, reading: Reading, part: str) -> Judged:
    """Return the points to judge a model on, and print notes for a reader of the figures.

    Without a model, the part is judged as it is; with `--holdout 0` and without a test part, train is.
    """
    path, format, columns, preparation = reading
    if tagger is None:
        dataset = data.load(path, format, columns, preparation)
        return Judged(dataset, "train" if part == "test" and dataset.test is None else part)
    dataset = read(path, columns.or_else(tagger.source_.columns), format)
    check_kind(dataset, tagger.features_ is not None, path)
    about = judged(dataset, tagger.labels_, tagger.source_, part, preparation)
    data.announced(about.dataset)
    for line in about.lines():
        say(line)
    return about


def _inputs(tagger: Tagger, points: Part) -> Any:
    return points.X if tagger.features_ is None else points.texts


def _index_recall(tagger: Tagger, points: Part, k: int) -> dict[str, float]:
    """Return an approximate index's recall of exact search, in percent, on at most 1,000 points; empty if exact."""
    some = points.take(np.arange(min(1000, len(points))))
    share = tagger.index_recall(_inputs(tagger, some), k)
    return {} if share is None else {"index recall": round(100 * share, 3)}


def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="Models to list; default: all.")] = None,
) -> None:
    """List models and their settings, with meaning and the value in each preset."""
    from zipfel.models.base import model_class, model_names

    for name in names or ():  # before anything is printed
        if name != AUTO:
            model_class(name)
    if AUTO in (names or [AUTO]):
        rule = "chooses the model (by size, label texts and device) and the text features; the default"
        console.print(f"[bold]{AUTO}[/bold]: {rule}", soft_wrap=True)
    for name in names or model_names():
        if name == AUTO:
            continue
        presets = model_class(name).presets
        kind, abilities = type(presets["default"]), model_class(name).abilities(presets["default"])
        console.print(f"[bold]{name}[/bold]: {escape((kind.__doc__ or '').partition(chr(10))[0])}", soft_wrap=True)
        say(f"  {abilities}" if str(abilities) else "  learns and ranks")
        for field in dataclasses.fields(kind):
            values = {key: str(getattr(preset, field.name)) for key, preset in presets.items()}
            alike = len({*values.values()}) == 1
            shown = values["default"] if alike else ", ".join(f"{key} {value}" for key, value in values.items())
            console.print(f"  [bold]{field.name}[/bold] ({escape(shown)}): {escape(field.metadata['help'])}")


def verify(model: Model) -> None:
    """Check every file of a saved model against its checksums, and that the weights fit together."""
    from zipfel import tagging

    count = tagging.verify(model)
    say(f"{model}: {count} files match their checksums")


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


def show_averages(labels: LabelReport) -> None:
    """Print micro and macro averages at a threshold, in percent."""
    averages = labels.averages()
    rows = [[kind, *(f"{averages[kind + name]:.2f}" for name in ("P", "R", "F1"))] for kind in ("micro", "macro")]
    print_table(f"\nTags with a score of at least {labels.threshold_text()}", rows, ("", "P", "R", "F1"))


def show_report(report: Report, ks: list[int]) -> None:
    """Print the metrics, in percent."""
    lengths, propensity = ("", *(f"@{k}" for k in ks)), report.propensity
    title = f"{report.points:,} points, {report.labels:,} labels, A {propensity.A:g}, B {propensity.B:g}; percent"
    print_table(title, [*metric_rows(report.values, ks), *metric_rows(report.macro, ks)], lengths)
    if report.only_tail:
        title = f"\n{report.only_tail_points:,} points with tail labels only"
        print_table(title, metric_rows(report.only_tail, ks), lengths)
    for level in report.levels:
        print_table(f"\n{level}", metric_rows(level.values, ks), lengths)
    most = max((piece.contribution for piece in report.bins), default=0) or 1
    pieces = [
        (frequencies(piece.lowest, piece.highest), f"{piece.labels:,}",
         f"{piece.contribution:.2f}", bar(piece.contribution / most))
        for piece in report.bins
    ]  # fmt: skip
    columns = ("points per label (train)", "labels", f"P@{ks[-1]}", "bar")
    print_table(f"\nContribution to P@{ks[-1]} by label frequency", pieces, columns)
