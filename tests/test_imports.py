"""What importing costs, and which part of the house may import which."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import zipfel

HOUSE = Path(zipfel.__file__).parent
HEAVY = {
    "faiss",
    "gensim",
    "numpy",
    "orjson",
    "pandas",
    "polars",
    "pyarrow",
    "rich",
    "scipy",
    "sklearn",
    "torch",
    "typer",
}

# From the door down. A part may import what stands on a lower floor, and itself.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"server"},
    {"bench"},
    {"report"},
    {"plan"},
    {"tagger"},
    {"evaluate", "explain", "persistence", "choice"},
    {"models"},
    {"training", "negatives"},
    {"nn", "index", "labelspace", "data", "metrics", "calibration"},
    {"types", "errors", "config"},
]
FLOOR_OF = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
FOUNDATION = len(FLOORS) - 1


def loaded_by(code: str) -> set[str]:
    """Run code in a fresh interpreter, and return the top-level packages that are loaded after it."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_zipfel_loads_nothing_heavy():
    assert loaded_by("import zipfel") & HEAVY == set()


def test_importing_zipfel_is_fast():
    code = "import time; start = time.perf_counter(); import zipfel; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(5)]
    assert statistics.median(float(run.stdout) for run in runs) < 0.3


@pytest.mark.parametrize(
    "code",
    [
        "import zipfel.cli.main",
        "from zipfel import Dataset, Ranking, TextFeatures, read, write",
        "import zipfel.evaluate, zipfel.data.batches, zipfel.data.splits, zipfel.data.synthetic",
    ],
)
def test_data_metrics_and_command_line_do_without_torch(code):
    assert loaded_by(code) & {"torch", "faiss", "gensim", "sklearn", "pandas", "polars", "pyarrow"} == set()


def test_every_public_name_resolves():
    for name in zipfel.__all__:
        assert getattr(zipfel, name) is not None, name
    assert dir(zipfel) == sorted(zipfel.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Taggre'"):
        zipfel.Taggre  # noqa: B018


def part_of(path: Path) -> str:
    """Return the part of the house that a file belongs to: `data` for zipfel/data/formats/lf.py."""
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST, package: str) -> list[tuple[int, str]]:
    """Return (line, part) for every import out of zipfel: at the top, in functions, for type checkers alike."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(node.lineno, name.split(".")[1]) for name in names if name.startswith("zipfel.")]
        found += [(node.lineno, "__init__") for name in names if name == "zipfel"]
    return found


def wrong_imports(path: Path, source: str) -> list[str]:
    """Return the imports of a file that lead up or sideways; `__version__` is nobody's."""
    part = part_of(path)
    package = ".".join(["zipfel", *path.relative_to(HOUSE).parts[:-1]])
    return [
        f"{path.relative_to(HOUSE)}:{line}: {part} must not import {other}"
        for line, other in imported_parts(ast.parse(source), package)
        if other not in (part, "__version__")
        and not (FLOOR_OF.get(other, -1) > FLOOR_OF[part])
        and not (FLOOR_OF.get(other) == FLOOR_OF[part] == FOUNDATION)
    ]


def prints(source: str) -> list[int]:
    """Return the lines on which print() is called."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


FILES = [path for path in sorted(HOUSE.rglob("*.py")) if path != HOUSE / "__init__.py"]  # the door is lazy, see above


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_imports_go_one_way_and_only_the_command_line_prints(path):
    assert part_of(path) in FLOOR_OF, f"{path.name}: give the new part a floor"
    assert wrong_imports(path, path.read_text()) == []
    if part_of(path) not in ("cli", "server"):
        assert prints(path.read_text()) == []


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("data/text.py", "from zipfel.data.dataset import Dataset", False),
        ("data/formats/lf.py", "from .. import dataset", False),
        ("data/text.py", "from zipfel import config", False),
        ("evaluate.py", "import zipfel.metrics", False),
        ("config.py", "from zipfel.errors import ConfigError", False),
        ("cli/main.py", "from zipfel import __version__", False),
        ("data/text.py", "import numpy", False),
        ("data/text.py", "from zipfel.metrics import measure", True),
        ("data/text.py", "from zipfel import metrics", True),
        ("data/text.py", "import zipfel", True),
        ("data/text.py", "from zipfel import Dataset", True),
        ("data/formats/lf.py", "from ... import metrics", True),
        ("data/text.py", "def late():\n    import zipfel.cli.main", True),
        ("metrics.py", "from zipfel.nn import losses", True),
        ("types.py", "from zipfel.data.dataset import Part", True),
        ("evaluate.py", "from zipfel.tagger import Tagger", True),
        ("cli/main.py", "from zipfel.server import app", False),
        ("server/app.py", "from zipfel.cli import show", True),
    ],
)
def test_the_import_test_sees_what_it_should(file, source, wrong):
    assert bool(wrong_imports(HOUSE / file, source)) == wrong


def test_the_print_test_sees_what_it_should():
    assert prints("def f():\n    print('x')\n    console.print('x')") == [2]
