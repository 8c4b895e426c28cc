"""Settings out of dicts, TOML and key=value words: every kind of field, and every way to get one wrong."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

import numpy as np
import pytest

from zipfel.config import field_types, from_mapping, read_toml, setting, words_of
from zipfel.data.splits import Preparation
from zipfel.data.text import TextSettings
from zipfel.errors import ConfigError, DataError, MissingDependencyError, ZipfelError, did_you_mean


@dataclass(frozen=True)
class Kitchen:
    """One field of every kind."""

    ovens: int = setting(1, "how many")
    heat: float = setting(0.5, "how hot")
    gas: bool = setting(False, "gas or not")
    cook: str = setting("Ada", "who")
    book: Path = setting(Path("book.txt"), "where")
    style: Literal["fast", "slow", 3] = setting("fast", "how")
    limit: int | None = setting(None, "the most")
    place: Optional[Path] = setting(None, "another where")  # noqa: UP045
    herbs: tuple[str, ...] = setting((), "which")
    times: list[int] = setting([1, 2], "when")
    shares: dict[str, float] = setting({}, "of what how much")


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("ovens", "3", 3),
        ("ovens", 3.0, 3),
        ("ovens", np.int64(3), 3),
        ("ovens", "-2", -2),
        ("heat", "1e-3", 0.001),
        ("heat", 2, 2.0),
        ("heat", np.float32(0.5), 0.5),
        ("heat", "inf", math.inf),
        ("gas", "Yes", True),
        ("gas", "true", True),
        ("gas", "0", False),
        ("gas", False, False),
        ("gas", 1, True),
        ("cook", "Bo", "Bo"),
        ("cook", 5, "5"),
        ("cook", "none", "none"),
        ("cook", "", ""),
        ("book", "a/b.txt", Path("a/b.txt")),
        ("book", Path("c"), Path("c")),
        ("style", "slow", "slow"),
        ("style", "3", 3),
        ("style", 3, 3),
        ("limit", "7", 7),
        ("limit", "none", None),
        ("limit", None, None),
        ("place", "x", Path("x")),
        ("place", None, None),
        ("herbs", "dill, sage", ("dill", "sage")),
        ("herbs", "dill", ("dill",)),
        ("herbs", "", ()),
        ("herbs", ["dill", "sage"], ("dill", "sage")),
        ("times", "3,4", [3, 4]),
        ("times", (5,), [5]),
        ("shares", "salt:0.5, oil:2", {"salt": 0.5, "oil": 2.0}),
        ("shares", {"salt": 1}, {"salt": 1.0}),
        ("shares", "", {}),
    ],
)
def test_every_kind_is_converted(field, given, expected):
    made = getattr(from_mapping(Kitchen, {field: given}), field)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(
    ("field", "given", "allowed"),
    [
        ("ovens", "two", "a whole number"),
        ("ovens", 2.5, "a whole number"),
        ("ovens", "2.5", "a whole number"),
        ("ovens", True, "a whole number"),
        ("ovens", math.inf, "a whole number"),
        ("ovens", None, "a whole number"),
        ("heat", "hot", "a number"),
        ("heat", "nan", "a number"),
        ("heat", False, "a number"),
        ("heat", [1.0], "a number"),
        ("gas", "maybe", "true or false"),
        ("gas", 2, "true or false"),
        ("gas", None, "true or false"),
        ("cook", None, "text"),
        ("cook", ["Ada"], "text"),
        ("cook", {"Ada": 1}, "text"),
        ("book", 5, "a path"),
        ("style", "fats", "one of fast, slow, 3"),
        ("style", ["fast"], "one of fast, slow, 3"),
        ("limit", "many", "a whole number"),
        ("herbs", 5, "a list"),
        ("herbs", None, "a list"),
        ("herbs", {"dill": 1}, "a list"),
        ("times", "1,x", "a whole number"),
        ("shares", "salt", "pairs"),
        ("shares", 5, "pairs"),
    ],
)
def test_bad_values_name_the_key_what_is_allowed_and_what_was_found(field, given, allowed):
    with pytest.raises(ConfigError) as caught:
        from_mapping(Kitchen, {field: given})
    message = str(caught.value)
    assert message.startswith(f"{field} must be {allowed}")
    assert message.endswith(f"found {given!r}") or field == "times"


def test_bad_values_in_pairs_name_the_pair():
    with pytest.raises(ConfigError, match=r"^shares\[oil\] must be a number; found 'much'$"):
        from_mapping(Kitchen, {"shares": "salt:1,oil:much"})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("oven", "unknown setting 'oven'; did you mean 'ovens'?"),
        ("min-count", "unknown setting 'min-count'; did you mean 'min_count'?"),
        ("colour", "unknown setting 'colour'; known are ngrams, min_count, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key, hint):
    kind = Kitchen if key == "oven" else TextSettings
    with pytest.raises(ConfigError) as caught:
        from_mapping(kind, {key: 1})
    assert str(caught.value).startswith(hint)
    assert "colour" not in did_you_mean("colour", ["ngrams"])
    assert did_you_mean("colour", []) == ""


def test_settings_must_have_names():
    with pytest.raises(ConfigError, match="settings by name; found \\['ovens'\\]"):
        from_mapping(Kitchen, ["ovens"])


def test_words_become_settings():
    made = from_mapping(Kitchen, words_of(["ovens = 4", "cook=a=b", "shares=salt:1"]))
    assert made == Kitchen(ovens=4, cook="a=b", shares={"salt": 1.0})
    assert from_mapping(Kitchen, words_of([])) == Kitchen()
    with pytest.raises(ConfigError, match="expected key=value, found 'ovens'"):
        words_of(["ovens"])


def test_defaults_are_not_shared():
    first, second = Kitchen(), Kitchen()
    assert first.times is not second.times
    assert first.shares is not second.shares
    assert field_types(Kitchen)["limit"] == int | None


@pytest.mark.parametrize("text", ["ovens = 2\nshares = {oil = 1}\n", "\ufeffovens = 2\r\nshares.oil = 1\r\n"])
def test_toml_is_read(tmp_path, text):
    path = tmp_path / "kitchen.toml"
    path.write_bytes(text.encode())
    assert from_mapping(Kitchen, read_toml(path)) == Kitchen(ovens=2, shares={"oil": 1.0})


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"ovens = ", "not valid TOML: "), (b"cook = '\xff'", "not valid TOML: "), (None, "cannot be read: No such file")],
)
def test_toml_that_cannot_be_read_names_the_file(tmp_path, content, problem):
    path = tmp_path / "kitchen.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("kind", "values", "problem"),
    [
        (TextSettings, {"ngrams": 0}, "ngrams must be at least 1; found 0"),
        (TextSettings, {"max_features": 0}, "max_features must be at least 1; found 0"),
        (TextSettings, {"field_weights": {"title": -1}}, "field_weights[title] must be finite and at least 0; found"),
        (TextSettings, {"field_weights": {"title": math.inf}}, "field_weights[title] must be finite and at least 0"),
        (Preparation, {"holdout": 1.5}, "holdout must be at least 0 and below 1; found 1.5"),
        (Preparation, {"holdout": -0.1}, "holdout must be at least 0 and below 1; found -0.1"),
        (Preparation, {"seed": -1}, "seed must be at least 0 and below"),
        (Preparation, {"min_label_count": -1}, "min_label_count must be at least 0; found -1"),
    ],
)
def test_values_that_make_no_sense_are_refused(kind, values, problem):
    for make in (from_mapping, lambda kind, values: kind(**values)):
        with pytest.raises(ConfigError) as caught:
            make(kind, values)
        assert str(caught.value).startswith(problem)


def test_errors_say_where_and_survive_a_process_border():
    for error, message in (
        (DataError("broken", "a.txt", 7), "a.txt:7: broken"),
        (DataError("broken", Path("a.txt")), "a.txt: broken"),
        (DataError("broken"), "broken"),
        (ConfigError("wrong"), "wrong"),
        (MissingDependencyError("pyarrow", "Parquet", "tables"), "Parquet needs pyarrow: pip install 'zipfel[tables]'"),
    ):
        assert isinstance(error, ZipfelError)
        for same in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert str(same) == message
    assert pickle.loads(pickle.dumps(DataError("broken", "a.txt", 7))).line == 7
