"""Settings are frozen dataclasses: declared, checked, and read from dicts, TOML files and `key=value` words.

A setting is declared with default, help text and range: `setting(0.5, "share dropped", at_least=0, below=1)`. The
command line derives its options from these declarations, and every instance is checked against them. `search` declares
the values that `zipfel tune` tries. An unknown key is an error that suggests the nearest known one, or the new name of
a renamed setting.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from zipfel.errors import ConfigError, DataError, did_you_mean

_BOUNDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}


class Span(NamedTuple):
    """A range of values to search.  log: by their logarithm, for values whose ratio matters, such as rates."""

    low: float
    high: float
    log: bool = False


def setting(
    default: Any, help: str, *, was: str | None = None, search: Span | Sequence[Any] | None = None, **bounds: float
) -> Any:
    """Return a dataclass field with its help text and its range; lists and dicts are copied for each instance.

    bounds: any of at_least, above, at_most and below.  was: the setting's former name, for the error that a user of the
    old name gets; `was="keep: 1 - keep"` also says how to convert the value.  search: the values that a search tries, a
    `Span` or a list (of a dict: values of each entry); None leaves the setting as it is.
    """
    unknown = set(bounds) - set(_BOUNDS)
    if unknown:
        raise TypeError(f"unknown bounds of a setting: {', '.join(sorted(unknown))}")
    if isinstance(search, Span) and default is None:
        raise TypeError("a setting that is None by default needs a list of values to search, with None among them")
    _check_search(search, bounds)
    metadata = {"help": help, "was": was, "bounds": bounds, "search": search}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _check_search(search: Span | Sequence[Any] | None, bounds: Mapping[str, float]) -> None:
    """Check that a search has values to choose from, all of them within the range of the setting."""
    if isinstance(search, Span) and not (search.low < search.high and (search.low > 0 or not search.log)):
        raise TypeError(f"search must span values from low to high, above 0 if log; found {search}")
    for value in search[:2] if isinstance(search, Span) else search or ():
        _check_range("search", value, bounds)


@dataclass(frozen=True)
class Settings:
    """Base class of all settings: an instance is checked against the declared ranges when it is made."""

    def __post_init__(self) -> None:
        """Validate the settings: each against its range, then against each other."""
        for field in dataclasses.fields(self):
            _check_range(field.name, getattr(self, field.name), field.metadata.get("bounds") or {})
        self.check()

    def check(self) -> None:
        """Check settings against each other; raise ConfigError where they contradict."""


def _check_range(name: str, value: Any, bounds: Mapping[str, float]) -> None:
    if value is None or not bounds:
        return
    finite = not isinstance(value, float) or math.isfinite(value)
    if not finite or not all(_BOUNDS[kind](value, bound) for kind, bound in bounds.items()):
        wanted = " and ".join(f"{kind.replace('_', ' ')} {bound}" for kind, bound in bounds.items())
        raise ConfigError(f"{name} must be {wanted}; found {value}")


Kind = TypeVar("Kind")


def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a settings class's fields, resolved from their annotations."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def from_mapping(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Make settings of `kind` out of plain values, converted to the fields' types and checked."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"expected settings by name; found {values!r}")
    known = field_types(kind)
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown setting {key!r}{_new_name(kind, key) or did_you_mean(key, known)}")
    return kind(**{key: convert(key, value, known[key]) for key, value in values.items()})


def _new_name(kind: Any, key: str) -> str | None:
    """Return "; it is now called ..." for the former name of a setting, else None."""
    for field in dataclasses.fields(kind):
        was, _, conversion = (field.metadata.get("was") or "").partition(": ")
        if was == key:
            return f"; it is now called {field.name}" + (f", which is {conversion}" if conversion else "")
    return None


def words_of(words: Iterable[str]) -> dict[str, str]:
    """Return `key=value` words as a mapping."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, found {word!r}")
        values[key.strip()] = value.strip()
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not valid TOML: {error}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def convert(key: str, value: Any, kind: Any) -> Any:
    """Convert one plain value (often a string from the command line) to a field's type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = set(arguments) - {types.NoneType}  # `kind | None`, the one union that settings use
        return None if value is None or value == "none" else convert(key, value, kind)
    if origin is typing.Literal:
        for allowed in arguments:
            if value in (allowed, str(allowed)):
                return allowed
        raise ConfigError(f"{key} must be one of {', '.join(map(str, arguments))}; found {value!r}")
    if origin in (tuple, list):
        return origin(convert(key, item, arguments[0]) for item in _items(key, value))
    if origin is dict:
        return {name: convert(f"{key}[{name}]", item, arguments[1]) for name, item in _pairs(key, value)}
    if kind is bool:
        return _bool(key, value)
    return _scalar(key, value, kind)


def _items(key: str, value: Any) -> list[Any]:
    """Read `["a", "b"]`, or `a,b` as the command line has it."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")] if value.strip() else []
    if isinstance(value, list | tuple):
        return list(value)
    raise ConfigError(f"{key} must be a list such as a,b; found {value!r}")


def _pairs(key: str, value: Any) -> list[tuple[str, Any]]:
    """Read `{"a": 1}`, or `a:1,b:2` as the command line has it."""
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    words = [word.partition(":") for word in str(value).split(",") if word.strip()]
    if not all(colon for _, colon, _ in words):
        raise ConfigError(f"{key} must be pairs such as a:1,b:2; found {value!r}")
    return [(name.strip(), item.strip()) for name, _, item in words]


def _bool(key: str, value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise ConfigError(f"{key} must be true or false; found {value!r}")
    return words[str(value).lower()]


def _scalar(key: str, value: Any, kind: Any) -> Any:
    names = {int: "a whole number", float: "a number", str: "text", Path: "a path"}
    problem = ConfigError(f"{key} must be {names.get(kind, kind.__name__)}; found {value!r}")
    if not isinstance(value, str | numbers.Real | Path) or isinstance(value, bool):
        raise problem
    try:
        converted = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise problem from None
    cut_off = kind is int and not isinstance(value, str) and converted != value
    if cut_off or converted != converted:  # NaN, which no setting means
        raise problem
    return converted
