"""The ledgers name code and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import zipfel
from zipfel.models.base import BUILT_IN, settings_of

HOUSE = Path(zipfel.__file__).parent
LEDGERS = HOUSE.parent / "docs" / "papers"


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that a module defines: functions, classes, and their methods as Class.method."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef):
                    names.add(f"{node.name}.{part.name}")
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    names.add(f"{node.name}.{part.target.id}")
    return names


@pytest.fixture(scope="module")
def known() -> set[str]:
    """All names that a ledger may use: `part`, `Class.method`, `module.part`, `package.module.part`."""
    names = set()
    for path in HOUSE.rglob("*.py"):
        module = ".".join(path.relative_to(HOUSE).with_suffix("").parts)
        short = module.rpartition(".")[2]
        names |= {module, short}
        for name in names_of(ast.parse(path.read_text())):
            names |= {name, f"{short}.{name}", f"{module}.{name}"}
    return names


def table_cells(model: str) -> list[list[str]]:
    """Return the rows of a ledger's first table: paper, code, test."""
    text = (LEDGERS / f"{model}.md").read_text()
    table = text[text.index("| paper | code | test |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def unknown(cell: str, known: set[str], settings: set[str], presets: set[str]) -> list[str]:
    """Return the quoted names of a cell of code that are neither code nor a setting, its value, or a preset."""
    words = [word for word in re.findall(r"`([^`]+)`", cell) if re.fullmatch(r"[A-Za-z_][\w.]*(=\S+)?", word)]
    values = {"fasttext", "random"}  # of token_init, which may be a file too
    plain = [word for word in words if word.partition("=")[0] not in settings | presets | values]
    return [word for word in plain if word not in known]


@pytest.mark.parametrize("model", BUILT_IN)
def test_every_name_in_the_code_column_exists(model, known):
    settings = set(vars(settings_of(model)))
    cells = [row[1] for row in table_cells(model)]
    assert len(cells) >= 5
    assert [name for cell in cells for name in unknown(cell, known, settings, {"paper", "default", "turn"})] == []


@pytest.mark.parametrize("model", BUILT_IN)
def test_every_test_in_the_test_column_exists(model):
    paths = [path for row in table_cells(model) for path in re.findall(r"`((?:tests|benchmarks)[^`]*)`", row[2])]
    assert paths
    assert [path for path in paths if not (HOUSE.parent / path).exists()] == []


def test_a_name_that_is_gone_is_caught(known):
    assert unknown("`Decaf.module_1`, setting `lite`", known, {"lite"}, set()) == []
    assert unknown("`Decaf.first_module`, `Heads`", known, set(), set()) == ["Decaf.first_module", "Heads"]
