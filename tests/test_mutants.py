"""The tool of `make mutants`: which changes it makes. What tests make of them is up to `make mutants`."""

from __future__ import annotations

import ast
import random
from itertools import chain
from pathlib import Path

import mutants
import pytest
from named_mutants import NAMED

MODULE = '''
"""A module."""

def part(a, b: int = 3):
    """A docstring."""
    total = min(a, key=b)
    self.total = -total
    if a < b and not total:
        total += b
    return total
'''


@pytest.fixture
def found(monkeypatch, tmp_path) -> set[tuple[str, str, str]]:
    (tmp_path / "module.py").write_text(MODULE)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "MODELS", {"one": {"module.py": ()}})
    monkeypatch.setattr(mutants, "STEPS", {"one": ("step.py",)})
    monkeypatch.setattr(mutants, "TESTS", {"module.py": "tests.py"})
    return {(one.kind, one.old, one.new) for one in mutants.mutants_of("one", "module.py", random.Random(0))}


def test_kinds_of_change(found):
    assert found == {
        ("min and max", "min(a, key=b)", "max(a, key=b)"),
        ("keyword dropped", "min(a, key=b)", "min(a)"),
        ("argument replaced", "min(a, key=b)", "min(b, key=b)"),
        ("statement deleted", "self.total = -total", "pass"),
        ("sign or not", "-total", "total"),
        ("statement deleted", "if a < b and (not total):\n    total += b", "pass"),
        ("operator", "a < b and (not total)", "a < b or not total"),
        ("comparison", "a < b", "a <= b"),
        ("sign or not", "not total", "total"),
        ("statement deleted", "total += b", "pass"),
    }


def test_a_seed_draws_the_same_mutants_and_every_one_compiles():
    drawn = mutants.generated("glas", 40, 0)
    assert drawn == mutants.generated("glas", 40, 0)
    assert drawn != mutants.generated("glas", 40, 1)
    assert len({one.kind for one in drawn}) == 8
    for one in drawn:
        before = (mutants.ROOT / one.file).read_text()
        assert ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(before))


@pytest.mark.parametrize("one", NAMED, ids=lambda one: f"{one.model}: {one.name}")
def test_named_mutants_still_apply(one):
    source = (mutants.ROOT / one.file).read_text()
    assert source.count(one.old) == 1
    assert ast.dump(ast.parse(source.replace(one.old, one.new))) != ast.dump(ast.parse(source))
    assert all((mutants.ROOT / path).exists() for path in one.tests)


def test_files_and_tests_exist():
    of_files = chain.from_iterable(tests.split() for tests in mutants.TESTS.values())
    paths = [*mutants.TESTS, *of_files, *chain.from_iterable(mutants.STEPS.values())]
    assert [path for path in paths if not Path(mutants.ROOT / path).exists()] == []
    for files in mutants.MODELS.values():
        for file, parts in files.items():
            defined = {getattr(node, "name", None) for node in ast.parse((mutants.ROOT / file).read_text()).body}
            assert set(parts) <= defined


def test_the_packages_of_an_environment_in_the_checkout_stay_on_the_path(monkeypatch):
    """`make mutants` runs in .venv, whose pytest it needs; the unchanged code must not be found."""
    environment = mutants.ROOT / ".venv"
    monkeypatch.setattr(mutants.sys, "prefix", str(environment))
    paths = [mutants.ROOT, mutants.ROOT / "tests", environment / "lib" / "site-packages", Path("/usr/lib/python3")]
    assert [mutants.of_checkout(path) for path in paths] == [True, True, False, False]
