"""Command line options derived from settings classes, so that no option is declared twice."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from zipfel import config

Model = typing.Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.", show_default=False)]
Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(command: Command) -> Command:
    """Replace each parameter annotated with a settings class by one option per field of that class."""
    signature = inspect.signature(command, eval_str=True)
    annotations = {name: p.annotation for name, p in signature.parameters.items()}
    kinds: dict[str, Any] = {name: kind for name, kind in annotations.items() if dataclasses.is_dataclass(kind)}

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        for name, kind in kinds.items():
            fields = config.field_types(kind)
            given = {field: values.pop(field) for field in fields}
            values[name] = config.from_mapping(kind, {k: v for k, v in given.items() if v is not None})
        return command(**values)

    parameters = [p for p in signature.parameters.values() if p.name not in kinds]
    for kind in kinds.values():
        panel = (inspect.getdoc(kind) or "").partition("\n")[0].rstrip(".")  # the first docstring line is the heading
        types_of = config.field_types(kind)
        parameters += [_option(field, types_of[field.name], panel) for field in dataclasses.fields(kind)]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return typing.cast(Command, run)


def _option(field: dataclasses.Field[Any], kind: Any, panel: str) -> inspect.Parameter:
    """Return the option for one field; its default None means "not given", so that the class's default applies."""
    default = field.default if field.default is not dataclasses.MISSING else None
    note = "" if default in (None, (), {}, "") else f" (default {default})"
    name, help = field.name.replace("_", "-"), field.metadata["help"] + note
    name = f"--{name}/--no-{name}" if _plain(kind) is bool else f"--{name}"
    option = typer.Option(name, help=help, show_default=False, rich_help_panel=panel)
    annotation: Any = typing.Annotated[_plain(kind) | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain(kind: Any) -> Any:
    """Return the type that typer parses; lists and pairs are parsed as one string and converted later."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(a for a in typing.get_args(kind) if a is not types.NoneType)
    return kind if kind in (int, float, bool, Path) else str
