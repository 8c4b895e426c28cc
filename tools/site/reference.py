"""Reference pages out of the code: settings of the models, the command line, and the HTTP API."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import typer

from zipfel import config
from zipfel.cli.main import COMMANDS, GROUPS, app_for
from zipfel.models.base import BUILT_IN, model_class
from zipfel.server.app import built


def pages() -> dict[str, str]:
    """Return the generated pages, by file name."""
    return {"settings.md": settings_page(), "commands.md": commands_page(), "http.md": http_page()}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table in Markdown.

    >>> print(table(["a"], [["x|y"]]))
    | a |
    | --- |
    | x\|y |
    <BLANKLINE>
    """
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def prose(text: str) -> str:
    r"""Return a help text as Markdown that shows it as it is, with options as code.

    >>> prose("lines of 'a<TAB>b', or * with --sep; `none` reads none")
    "lines of 'a&lt;TAB>b', or \\* with `--sep`; `none` reads none"
    """
    pieces = text.split("`")  # every second one is code already
    for i in range(0, len(pieces), 2):
        escaped = re.sub(r"[*_]", r"\\\g<0>", pieces[i].replace("<", "&lt;"))
        pieces[i] = re.sub(r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`", escaped)
    return "`".join(pieces)


# --- Settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the settings of every model, with their values in each preset."""
    about = (
        "Values of each preset. Change one by `--set name=value`, in a TOML file with `--config`, or by "
        "`Tagger(model, settings={...})`. `zipfel models NAME` prints the same list."
    )
    return "\n".join(["# Settings of the models", "", about, "", *(_settings_of(name) for name in BUILT_IN)])


def _settings_of(name: str) -> str:
    kind = model_class(name)
    presets = kind.presets
    own = type(presets["default"])
    summary = (own.__doc__ or "").partition("\n")[0]
    kinds = config.field_types(own)
    rows = [
        [f"`{field.name}`",
         prose(field.metadata["help"] + _kind(kinds[field.name], field.metadata.get("bounds") or {})),
         *(_shown(getattr(preset, field.name)) for preset in presets.values())]
        for field in dataclasses.fields(own)
    ]  # fmt: skip
    abilities = str(kind.abilities(presets["default"]))
    lines = [f"## {name}", "", summary, "", abilities and f"This model {abilities}.", ""]
    return "\n".join([*lines, table(["setting", "meaning", *presets], rows)])


def _shown(value: object) -> str:
    return f"`{value}`"


def _kind(kind: Any, bounds: Mapping[str, float]) -> str:
    """Return the type and range of a setting.

    >>> _kind(float, {"at_least": 0, "below": 1})
    ' (float, at least 0, below 1)'
    """
    limits = [f"{name.replace('_', ' ')} {value:g}" for name, value in bounds.items()]
    return f" ({', '.join([_spoken(kind), *limits])})"


def _spoken(kind: Any) -> str:
    """Return a type in words.

    >>> from typing import Literal
    >>> _spoken(Literal["a", "b"] | None)
    'one of a, b, or None'
    """
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        names = [_spoken(one) for one in typing.get_args(kind) if one is not types.NoneType]
        return f"{' or '.join(names)}, or None"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


# --- Command line -----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return every command of the command line with its arguments and options."""
    about = "`zipfel COMMAND --help` prints the same. Errors in the input print one line and exit with code 2."
    parts = ["# Command line", "", about, ""]
    for name in COMMANDS:
        group: Any = typer.main.get_command(app_for(name))
        command = group.commands[name]
        if name not in GROUPS:
            parts.append(_command(f"zipfel {name}", command))
        else:
            parts += [_command(f"zipfel {name} {own}", one) for own, one in command.commands.items()]
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    shown = [one for one in command.params if not one.hidden]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option" and one.name != "help"]
    usage = " ".join([name, *(_metavar(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {name}", "", command.help or "", "", f"```text\n{usage}\n```", ""]
    if arguments:
        parts.append(
            table(["argument", "meaning"], [[f"`{_metavar(one)}`", prose(one.help or "")] for one in arguments])
        )
    for panel, group in groupby(options, key=lambda one: one.rich_help_panel):
        rows = [[f"`{_flags(one)}`", prose((one.help or "") + _default(one))] for one in group]
        parts.append(table([panel or "option", "meaning"], rows))
    return "\n".join(parts)


def _metavar(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    if "[" in name:  # as it should be shown
        return name
    many = f"{name} ..." if argument.nargs == -1 else name
    return many if argument.required else f"[{many}]"


def _flags(option: Any) -> str:
    return " / ".join([", ".join(option.opts), *option.secondary_opts])


def _default(option: Any) -> str:
    plain = option.show_default and option.default not in (None, False, (), []) and not callable(option.default)
    return f" (default {option.default})" if plain else ""


# --- HTTP API ---------------------------------------------------------------------------------------------------------


def http_page() -> str:
    """Return the routes of the service with their parameters and bodies, out of the OpenAPI document."""
    document = built(None).openapi()  # type: ignore[arg-type]  # routes are described, not asked
    about = "The service describes itself: `GET /openapi.json`, and as a page `GET /docs` ([guide](../guide/serve.md))."
    routes = [
        _route(f"{method.upper()} {path}", operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = document["components"]["schemas"]
    bodies = [_schema(name, about) for name, about in sorted(schemas.items()) if "Validation" not in name]
    return "\n".join(["# HTTP API", "", about, "", *routes, "## Requests and answers", "", *bodies])


def _route(name: str, operation: Mapping[str, Any]) -> str:
    rows = [
        [f"`{one['name']}` ({one['in']})", one.get("description") or one["schema"].get("description", "")]
        for one in operation.get("parameters", ())
    ]
    request, answer = _body(operation.get("requestBody", {})), _body(operation["responses"].get("200", {}))
    bodies = ". ".join([*([f"Request: {request}"] if request else []), *([f"Answer: {answer}"] if answer else [])])
    statuses = ", ".join(sorted(status for status in operation["responses"] if status != "200"))
    lines = [f"## {name}", "", operation.get("description", ""), "", f"{bodies}." if bodies else "", ""]
    shown = table(["parameter", "meaning"], rows) if rows else ""
    return "\n".join([*lines, shown, f"Errors: {statuses}." if statuses else "", ""])


def _body(body: Mapping[str, Any]) -> str:
    name = body.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f"[{name}](#{name.lower()})" if name else ""


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        [f"`{field}`{' (required)' if field in needed else ''}", _type(about), _meaning(about)]
        for field, about in schema.get("properties", {}).items()
    ]
    shown = table(["field", "type", "meaning"], rows)
    return "\n".join([f"### {name}", "", schema.get("description", ""), "", shown])


def _meaning(about: Mapping[str, Any]) -> str:
    """Return the description of a field, which an optional one has in its first alternative."""
    inner = [one.get("description", "") for one in about.get("anyOf", ())]
    return str(about.get("description") or next(filter(None, inner), ""))


def _type(about: Mapping[str, Any]) -> str:
    """Return a JSON type in words.

    >>> _type({"type": "array", "items": {"type": "string"}}), _type({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    ('array of string', 'integer or null')
    """
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in about:
        return " or ".join(_type(one) for one in about["anyOf"])
    if about.get("type") == "array":
        return f"array of {_type(about.get('items', {}))}"
    return str(about.get("type", "any"))
