"""The model to train, from the command line and from a TOML file such as `zipfel tune` writes.

The command line overrides the file, which has settings of the model, and may have `model`, `preset` and a table
`[text]` of text settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from zipfel import config
from zipfel.choice import AUTO
from zipfel.data.text import TextSettings
from zipfel.errors import ConfigError, DataError

DEFAULT = "default"  # preset

Name = Annotated[str, typer.Option(help="Model to train; `zipfel models` lists them. auto chooses by the data.")]
Preset = Annotated[str, typer.Option(help="Settings to start from: paper, default or fast.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Setting to change, as key=value; repeatable.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file of settings; --set overrides it.")]


class Configured(NamedTuple):
    """A model and a preset, and the settings and text settings that the user has named."""

    model: str
    preset: str
    settings: dict[str, Any]
    text: dict[str, Any]


def configured(
    context: typer.Context, words: list[str] | None, file: Path | None, model: str, preset: str
) -> Configured:
    """Return what to train; check it as far as possible before the data is read.

    context: of a command with the options of `TextSettings`, which says which of them the user has named.
    """
    from zipfel.models.base import settings_of

    values = {} if file is None else config.read_toml(file)
    text = values.pop("text", {})
    if not isinstance(text, Mapping):
        raise DataError(f"text must be a table of text settings; found {text!r}", file)
    model = _agreed("model", values.pop("model", model), model, AUTO, file)
    preset = _agreed("preset", values.pop("preset", preset), preset, DEFAULT, file)
    named = {name: context.params[name] for name in config.field_types(TextSettings)}
    asked = Configured(
        model,
        preset,
        {**values, **config.words_of(words or [])},
        {**text, **{name: value for name, value in named.items() if value is not None}},
    )
    config.from_mapping(TextSettings, asked.text)  # checks it
    if model != AUTO:
        settings_of(model, preset, asked.settings)
    return asked


def _agreed(name: str, written: Any, given: str, default: str, file: Path | None) -> str:
    """Return the model or preset of the file, unless the command line names another one, which is an error."""
    if not isinstance(written, str):
        raise DataError(f"{name} must be a name; found {written!r}", file)
    if given not in (default, written):
        raise ConfigError(f"{file} has settings for {name} {written}; found --{name} {given}: name only one of them")
    return written
