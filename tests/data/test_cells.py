from __future__ import annotations

import ast
import decimal

import numpy as np
import pandas
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zipfel.data.cells import checked_name, label_names
from zipfel.errors import DataError

LONG = [f"label number {number}" for number in range(40)]  # NumPy writes it over several lines


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("['x' 'y']", ["x", "y"]),
        ("['x'\n 'y']", ["x", "y"]),
        ("""["it's" 'y "z"']""", ["it's", 'y "z"']),
        ("['a b' 'c, d' ' e ']", ["a b", "c, d", "e"]),
        ("['x' 'x']", ["x", "x"]),
        ("[1 2 10]", ["1", "2", "10"]),
        ("[1. 2.5]", ["1", "2.5"]),
        ("[ 1.  nan]", ["1"]),
        ("['a' None 'b' nan 3 True]", ["a", "b", "3", "True"]),
        ("[nan]", []),
        ("['a', nan, None]", ["a"]),
        ("['a', 'b',]", ["a", "b"]),
        ("[u'a', u'b']", ["a", "b"]),
        ("[u'a' u'b']", ["a", "b"]),
        ("['\\x']", ["['\\x']"]),
        ("['a' urgent]", ["['a' urgent]"]),
        ("[draft] of [mine]", ["[draft] of [mine]"]),
        (str(np.array(LONG)), LONG),
    ],
)
def test_lists_as_numpy_and_python_write_them(cell, names):
    assert label_names(cell, None) == names
    assert label_names(cell, "|") == names


@given(st.lists(st.text(alphabet="ab '\"\\[],.1\n", min_size=1, max_size=5), min_size=1, max_size=4))
@example(["'", '"'])
def test_every_array_of_numpy_is_read_as_its_labels(words):
    wanted = [word.strip() for word in words if word.strip()]
    assert label_names(str(np.array(words, dtype=object)), None) == wanted
    assert label_names(str(words), None) == wanted
    assert label_names(words, None) == wanted


def test_a_list_that_lacks_a_comma_is_refused():
    assert ast.literal_eval("['a' 'b', 'c']") == ["ab", "c"]  # what Python makes of it
    with pytest.raises(ValueError, match="no comma between 'a' and 'b'; write the list as JSON"):
        label_names("['a' 'b', 'c']", None)


def test_an_array_that_numpy_shortened_is_refused():
    with pytest.raises(ValueError, match=r"shortened with '\.\.\.'"):
        label_names(str(np.array([str(number) for number in range(2000)])), None)


@pytest.mark.parametrize(
    ("value", "name"),
    [(2.0, "2"), (2, "2"), (np.float32(2), "2"), (np.int8(2), "2"), ("2.0", "2.0"), (2.5, "2.5"), (" a ", "a")],
)
def test_one_name_for_one_label(value, name):
    assert label_names([value], None) == label_names(value, None) == [name]
    assert checked_name(value) == name


@pytest.mark.parametrize("value", ["", "  ", None, float("nan"), np.float32("nan"), pandas.NA, pandas.NaT])
def test_no_name(value):
    assert label_names([value], None) == label_names(value, None) == []
    with pytest.raises(DataError, match="must not be empty"):
        checked_name(value)


@pytest.mark.parametrize("value", [b"a", np.bytes_(b"a"), {}, decimal.Decimal(1), 1e300])
def test_values_that_name_no_label_are_refused(value):
    with pytest.raises(ValueError, match=r"expected text, found|too large"):
        label_names([value], None)
    with pytest.raises(DataError, match="the name of a label must be text or a number"):
        checked_name(value)
