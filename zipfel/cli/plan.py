"""`zipfel plan`: what training would take, before it is done."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.markup import escape

from zipfel.cli import data
from zipfel.cli.model import Changes, ConfigFile, Device, Name, Preset, check_named, given_changes
from zipfel.cli.options import with_options
from zipfel.cli.progress import span
from zipfel.cli.show import console, warnings
from zipfel.data.formats import TableSettings
from zipfel.data.formats.files import new_file
from zipfel.data.splits import Preparation
from zipfel.data.text import TextSettings

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.plan import Plan


@with_options
def plan(
    source: data.Source,
    columns: TableSettings,
    preparation: Preparation,
    text: TextSettings,
    model: Name = "auto",
    preset: Preset = "default",
    set: Changes = None,
    config_file: ConfigFile = None,
    device: Device = "auto",
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    format: data.From = None,
) -> None:
    """Tell what `zipfel train` would take: memory, disk and time, by a rehearsal of some seconds on the data."""
    from zipfel.plan import plan as made

    changes = given_changes(set, config_file)
    check_named(model, preset, changes, device)  # before the data is read
    dataset = data.load(source, format, columns, preparation)
    found = made(dataset, model, preset, changes, dataclasses.asdict(text), device)
    if json is not None:
        with new_file(json) as out:
            out.write(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2) + b"\n")
    why = "" if found.why == "named" else f" ({found.why})"
    sizes = f"{found.points:,} points, {found.features:,} features, {found.labels:,} labels"
    console.print(f"{found.model}, preset {found.preset}{why}, on {found.device}: {sizes}", soft_wrap=True)
    for name, figure, rests_on in _rows(found):
        console.print(f"{name:<10}  {figure:>22}  {escape(rests_on)}", soft_wrap=True)
    for warning in found.warnings:
        warnings.print(f"warning: {escape(warning)}", soft_wrap=True)


def _rows(found: Plan) -> list[tuple[str, str, str]]:
    """Return each figure and what it rests on."""
    from zipfel.plan import spoken_size

    training = "unknown" if found.training_seconds is None else span(found.training_seconds)
    prediction = "unknown" if found.predict_ms is None else f"{found.predict_ms:.2f} ms a document"
    shown = {
        "training": training,
        "prediction": prediction,
        "memory": spoken_size(found.memory_bytes),
        "disk": spoken_size(found.disk_bytes),
    }
    if found.gpu_bytes is not None:
        shown["GPU memory"] = spoken_size(found.gpu_bytes)
    return [(name, value, found.rests_on[name]) for name, value in shown.items()]
