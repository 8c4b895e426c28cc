"""Settings are frozen dataclasses. This file reads them from dicts, TOML files and `key=value` words.

A field's help stands in its metadata (`setting(default, "what it means")`), from which the command line derives its
options; an unknown key is an error that offers the nearest known one.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from zipfel.errors import ConfigError, DataError, did_you_mean

Settings = TypeVar("Settings")


def setting(default: Any, help: str, **more: Any) -> Any:
    """Return a dataclass field with its help text; lists and dicts are copied for each instance."""
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata={"help": help, **more})
    return dataclasses.field(default=default, metadata={"help": help, **more})


def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a settings class's fields, resolved from their annotations."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def from_mapping(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Make settings of `kind` out of plain values, checked and converted to the fields' types."""
    known = field_types(kind)
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown setting {key!r}{did_you_mean(key, known)}")
    return kind(**{key: convert(key, value, known[key]) for key, value in values.items()})


def from_words(kind: type[Settings], words: Iterable[str], base: Mapping[str, Any] | None = None) -> Settings:
    """Make settings of `kind` out of `key=value` words, over the values of `base`."""
    values = dict(base or {})
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, found {word!r}")
        values[key.strip()] = value.strip()
    return from_mapping(kind, values)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not valid TOML: {error}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def convert(key: str, value: Any, kind: Any) -> Any:
    """Convert one plain value (often a string from the command line) to a field's type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None or value == "none":
            return None
        return convert(key, value, next(a for a in arguments if a is not types.NoneType))
    if origin is typing.Literal:
        if value not in arguments:
            allowed = ", ".join(map(str, arguments))
            raise ConfigError(f"{key} must be one of {allowed}; found {value!r}")
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(convert(key, item.strip() if isinstance(item, str) else item, arguments[0]) for item in items)
    if origin is dict:
        return _dict(key, value, arguments[1])
    return _scalar(key, value, kind)


def _dict(key: str, value: Any, kind: Any) -> dict[str, Any]:
    """Read `{"a": 1}`, or `a:1,b:2` as the command line has it."""
    if isinstance(value, str):
        pairs = [item.partition(":")[::2] for item in value.split(",") if item]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ConfigError(f"{key} must be name:value pairs; found {value!r}")
    return {name.strip(): convert(f"{key}[{name}]", item, kind) for name, item in pairs}


def _scalar(key: str, value: Any, kind: Any) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise ConfigError(f"{key} must be true or false; found {value!r}")
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ConfigError(f"{key} must be a whole number; found {value!r}")
    if isinstance(value, bool) and kind in (int, float):
        raise ConfigError(f"{key} must be a number; found {value!r}")
    try:
        return kind(value)
    except (TypeError, ValueError):
        names = {int: "a whole number", float: "a number", str: "text"}
        raise ConfigError(f"{key} must be {names.get(kind, kind.__name__)}; found {value!r}") from None
