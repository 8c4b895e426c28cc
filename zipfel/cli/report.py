"""`zipfel report`: one page about a model, for the screen and for paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress

from zipfel.cli import data
from zipfel.cli.model import Model, tagger_of
from zipfel.cli.options import with_options
from zipfel.cli.show import console, warnings
from zipfel.data.formats import TableSettings
from zipfel.data.formats.files import new_file
from zipfel.data.splits import Preparation
from zipfel.errors import ConfigError


@with_options
def report(
    model: Model,
    source: data.Source,
    out: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
    columns: TableSettings,
    preparation: Preparation,
    part: Annotated[str, typer.Option(help="Part of the data set to judge.")] = "test",
    format: data.From = None,
) -> None:
    """Write a page about a model: figures, rare labels, reliability, documents, confusions, settings."""
    from zipfel import persistence
    from zipfel.report.findings import findings
    from zipfel.report.page import page
    from zipfel.report.plots import check_matplotlib

    check_matplotlib()  # before anything is read
    about = persistence.read_about(persistence.located(model))
    dataset = data.load(source, format, columns, preparation)
    if part not in dataset.parts:
        raise ConfigError(f"part must be one of {', '.join(dataset.parts)}; found {part!r}")
    tagger = tagger_of(model, dataset)
    with Progress(console=warnings, transient=True, disable=not warnings.is_terminal) as progress:
        task = progress.add_task(f"tagging {part}", total=len(dataset.parts[part]))
        found = findings(tagger, dataset, part, lambda done, all: progress.update(task, completed=done))
    with new_file(out) as file:
        file.write(page(found, dataset, about).encode("utf-8", "replace"))
    console.print(
        f"{escape(str(out))}: {found.report.points:,} points, P@1 {found.report.values['P@1']:.2f}", soft_wrap=True
    )
