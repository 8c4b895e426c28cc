"""`zipfel report`: one HTML page about a model, for screen and print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from zipfel.cli import data
from zipfel.cli.machine import Machine
from zipfel.cli.model import Reading, judged_of, loaded
from zipfel.cli.options import Model, with_options
from zipfel.cli.show import say, warnings
from zipfel.data.formats import TableSettings
from zipfel.data.formats.files import write_bytes
from zipfel.data.splits import Preparation
from zipfel.errors import check_installed


@with_options
def report(
    model: Model,
    source: data.Source,
    out: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
    columns: TableSettings,
    preparation: Preparation,
    machine: Machine,
    part: data.PartName = "test",
    format: data.From = None,
) -> None:
    """Write an HTML report on a model: metrics, rare labels, calibration, documents, confusions, settings."""
    from zipfel import persistence
    from zipfel.report.findings import findings
    from zipfel.report.page import page

    check_installed("a report", "report", "matplotlib")  # before anything is read
    device = machine.used().device
    about = persistence.read_about(persistence.located(model))
    tagger = loaded(model, device)
    judged = judged_of(tagger, Reading(source, format, columns, preparation), part)
    dataset, part = judged.dataset, judged.part
    points = dataset.parts[part]
    with Progress(console=warnings, transient=True, disable=not warnings.is_terminal) as progress:
        task = progress.add_task(f"tagging {part}", total=len(points))
        result = findings(tagger, dataset, part, lambda points: progress.update(task, completed=points))
    write_bytes(out, page(result, dataset, about, judged.lines()).encode("utf-8", "replace"))
    figures = f"{result.report.points:,} points, P@1 {result.report.values['P@1']:.2f}"
    say(f"{out}: {figures}")
