"""`zipfel card`, `push`, `pull`: describe a saved model, and share it on the Hugging Face Hub."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from zipfel.cli import data
from zipfel.cli.machine import Machine
from zipfel.cli.model import Reading, judged_of, loaded
from zipfel.cli.options import Model, with_options
from zipfel.cli.show import say, warnings
from zipfel.data.formats import TableSettings
from zipfel.data.splits import Preparation

if TYPE_CHECKING:  # for `zipfel push`
    from zipfel.card.figures import Figures

Data = Annotated[Path | None, typer.Argument(metavar="DATA", help="Data set to measure figures on.")]
License = Annotated[str | None, typer.Option(help="Licence of the model, as the Hub calls it, such as apache-2.0.")]
Languages = Annotated[
    list[str] | None, typer.Option("--text-language", help="Language of the texts, such as en; repeatable.")
]
DataIds = Annotated[list[str] | None, typer.Option("--dataset", help="Name of the data on the Hub; repeatable.")]
Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hub.", show_default=False)]
Replace = Annotated[bool, typer.Option("--replace", help="Overwrite an existing file or model.")]


@with_options
def card(
    model: Model,
    source: Data = None,
    *,
    columns: TableSettings,
    preparation: Preparation,
    machine: Machine,
    license: License = None,
    text_language: Languages = None,
    dataset: DataIds = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: README.md of the model.")] = None,
    replace: Replace = False,
    part: data.PartName = "test",
    format: data.From = None,
) -> None:
    """Write a model card: data, figures with intervals, calibration, weak labels, settings, licence, how to load."""
    from zipfel import persistence
    from zipfel.card import folder as cards
    from zipfel.card.front import Stated

    stated = Stated(license, tuple(text_language or ()), tuple(dataset or ()))
    folder = persistence.located(model)
    persistence.read_about(folder)
    if out is None and not replace:
        cards.check_unedited(folder)
    found = None if source is None else _figures(model, Reading(source, format, columns, preparation), part, machine)
    path = out or folder / "README.md"
    cards.write(cards.card_of(folder, stated, found), path)
    say(
        f"{path}: "
        + ("no figures; give DATA to measure some" if found is None else f"P@1 {found.metrics['P@1'].value:.1f}")
    )


def _figures(model: Path, reading: Reading, part: str, machine: Machine) -> Figures:
    """Return the figures of a model on a data set."""
    from zipfel.calibration import DEPTH
    from zipfel.card.figures import figures
    from zipfel.data.labels import names_of
    from zipfel.evaluate import LEVELS
    from zipfel.report.findings import labels_at_threshold, ranked

    tagger = loaded(model, machine.used().device)
    judged = judged_of(tagger, reading, part)
    dataset, part = judged.dataset, judged.part
    points = data.part_of(dataset, part)
    with Progress(console=warnings, transient=True, disable=not warnings.is_terminal) as progress:
        task = progress.add_task(f"tagging {part}", total=len(points))
        ranking = ranked(tagger, points, max(LEVELS, DEPTH), lambda done: progress.update(task, completed=done))
    labels = labels_at_threshold(tagger, ranking, points.Y, names_of(dataset))
    return figures(ranking, dataset, part, labels, judged.lines())


def push(
    model: Model,
    repo: Repo,
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
) -> None:
    """Upload a saved model to the Hugging Face Hub, in one commit, after checking its files."""
    from zipfel import hub, persistence

    _quiet()
    say(hub.push(persistence.located(model), repo, private or None, message))


def pull(
    repo: Repo,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; must not exist.", show_default=False)],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit; default: main.")] = None,
    replace: Replace = False,
) -> None:
    """Download a model from the Hugging Face Hub, and check every file against its checksum."""
    from zipfel import hub

    _quiet()
    count = hub.pull(repo, out, revision, replace)
    say(f"{out}: {count} files match their checksums")


def _quiet() -> None:
    """Show progress only on a terminal."""
    from zipfel.errors import check_installed

    check_installed("the Hugging Face Hub", "hub", "huggingface_hub")
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    set_verbosity(logging.CRITICAL)  # errors are raised, and become one line

    if not warnings.is_terminal:
        disable_progress_bars()
