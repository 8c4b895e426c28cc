"""The cost of imports, which part of zipfel may import which, and which parts know a model only by its contract."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import zipfel
from zipfel.cli.main import COMMANDS, GROUPS, summary
from zipfel.models.base import BUILT_IN

PACKAGE = Path(zipfel.__file__).parent
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"
HEAVY = {
    "faiss",
    "gensim",
    "numpy",
    "optuna",
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

# From the top down. A part may import parts of lower floors, and itself; parts of the lowest floor import each other.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"server"},
    {"bench", "tune"},
    {"report"},
    {"plan"},
    {"tagger", "engines", "hub"},
    {"grounding", "suggesting"},
    {"tagging", "estimator", "card"},
    {"fitting"},
    {"evaluate", "label_report", "agreement", "display", "explain", "persistence", "choice", "text_choice"},
    {"models"},
    {"training", "negatives"},
    {"nn", "index", "labelspace", "data", "metrics", "calibration"},
    {"types", "errors", "config", "design"},
]
FLOOR_OF = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
LOWEST = len(FLOORS) - 1


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


def modules_after(*words: str) -> set[str]:
    """Return the modules that are loaded when a command of `zipfel` has ended."""
    code = f"import sys; from zipfel.cli.main import main; sys.argv = ['zipfel', *{words!r}]\n"
    code += "try: main()\nexcept SystemExit: pass\nprint('modules:', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.partition("modules:")[2].split())


def test_help_imports_no_command():
    loaded = modules_after("--help")
    assert loaded & {"numpy", "optuna", "scipy", "torch", *set(COMMANDS.values())} == set()


def test_predict_does_without_scikit_learn():
    loaded = modules_after("predict", str(Path(__file__).parent / "fixtures" / "format-2" / "glas"), "text")
    assert "zipfel.tagging" in loaded
    assert (
        loaded & {"sklearn", "pandas", "scipy.stats", "faiss", "gensim", "zipfel.cli.model", "zipfel.tagger"} == set()
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_docstrings_of_commands(name):
    module = importlib.import_module(COMMANDS[name])
    owner = module if name in GROUPS else getattr(module, name)
    assert summary(COMMANDS[name], name) == inspect.getdoc(owner)
    assert inspect.getdoc(owner)


def test_every_public_name_resolves():
    for name in zipfel.__all__:
        assert getattr(zipfel, name) is not None, name
    assert dir(zipfel) == sorted(zipfel.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Taggre'"):
        zipfel.Taggre  # noqa: B018


# --- Floors -----------------------------------------------------------------------------------------------------------


def part_of(path: Path) -> str:
    """Return the part of zipfel that a file belongs to: `data` for zipfel/data/formats/lf.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for every imported name: at the top, in functions, and for type checkers alike."""
    package = ["zipfel", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def wrong_imports(path: Path, source: str) -> list[str]:
    """Return the imports of a file that lead up or sideways; every part may import `__version__`."""
    part = part_of(path)
    parts = [(line, f"{name}.__init__".split(".")) for line, name in imports(path, ast.parse(source))]
    return [
        f"{path.relative_to(PACKAGE)}:{line}: {part} must not import {other}"
        for line, (package, other, *_) in parts
        if package == "zipfel"
        and other not in (part, "__version__")
        and not (FLOOR_OF.get(other, -1) > FLOOR_OF[part])
        and not (FLOOR_OF.get(other) == FLOOR_OF[part] == LOWEST)
    ]


def prints(source: str) -> list[int]:
    """Return the lines on which print() is called."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]  # which imports lazily


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
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
        ("tagger.py", "from zipfel import tagging", False),
        ("tagging.py", "from zipfel.fitting import Fitted", False),
        ("fitting.py", "from zipfel import persistence", False),
        ("data/text.py", "from zipfel.metrics import measure", True),
        ("data/text.py", "from zipfel import metrics", True),
        ("data/text.py", "import zipfel", True),
        ("data/text.py", "from zipfel import Dataset", True),
        ("data/formats/lf.py", "from ... import metrics", True),
        ("data/text.py", "def late():\n    import zipfel.cli.main", True),
        ("metrics.py", "from zipfel.nn import losses", True),
        ("types.py", "from zipfel.data.dataset import Part", True),
        ("evaluate.py", "from zipfel.tagger import Tagger", True),
        ("fitting.py", "from zipfel import tagging", True),
        ("tagging.py", "from zipfel.tagger import Tagger", True),
        ("cli/main.py", "from zipfel.server import app", False),
        ("server/app.py", "from zipfel.cli import show", True),
    ],
)
def test_the_import_test_sees_what_it_should(file, source, wrong):
    assert bool(wrong_imports(PACKAGE / file, source)) == wrong


def test_the_print_test_sees_what_it_should():
    assert prints("def f():\n    print('x')\n    console.print('x')") == [2]


def test_the_documented_floors_are_these():
    block = re.search(r"^## Who may import whom\n.*?^```\n(.*?)^```$", ARCHITECTURE.read_text(), re.M | re.S)
    assert block is not None
    assert [set(line.split()) for line in block[1].splitlines()] == FLOORS


# --- The contract of models -------------------------------------------------------------------------------------------

BY_CONTRACT = [  # files and folders that know a model only by zipfel/models/base.py
    "tagger.py", "tagging.py", "fitting.py", "plan.py", "explain.py", "persistence.py", "evaluate.py",
    "report", "bench", "tune", "server",
]  # fmt: skip
MODEL_NAME = re.compile(rf"(?<![a-z])({'|'.join(BUILT_IN)})(?![a-z])", re.IGNORECASE)
MODULE_NAME = re.compile(r"zipfel[./]models(?![./]base\b)")
IMPORTS_BY_NAME = {"import_module", "__import__"}
ASKS = {
    "getattr", "hasattr", "setattr", "delattr", "vars", "dir", "attrgetter", "methodcaller", "getattr_static",
    "getmembers", "__dict__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__",
}  # fmt: skip
MODEL_WORDS = {
    "model", "models", "settings", "kind", "network", "learner", "learners", "predictor", "classifier", "blueprint",
    "fitted",
}  # fmt: skip


def is_model_module(name: str) -> bool:
    """Whether a dotted name is `zipfel.models` or leads into one of its modules other than `base`."""
    package, part, module = (*name.split("."), "", "")[:3]
    return (package, part) == ("zipfel", "models") and module != "base"


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """Return the string constants that are docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, owners) and node.body]
    return {statement.value for statement in first if isinstance(statement, ast.Expr)}


def other_names(tree: ast.AST) -> set[str]:
    """Return the names that hold no model: `self`, `cls`, names imported from other packages, caught exceptions."""
    names = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            own = (getattr(node, "module", None) or "").split(".")[0] == "zipfel"
            aliases = [] if own else [alias for alias in node.names if alias.name.split(".")[0] != "zipfel"]
            names |= {alias.asname or alias.name.split(".")[0] for alias in aliases}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def is_other(node: ast.expr | None, names: set[str]) -> bool:
    """Whether an object is no model: `self`, or something of another package such as `os` or `torch.cpu`."""
    while isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[0] not in ("self", "cls"):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def is_other_module(node: ast.expr | None) -> bool:
    """Whether this is the literal name of a module of another package."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    return node.value.split(".")[0] not in ("", "zipfel")


def reflections(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, message) for imports by name, and for questions such as getattr and hasattr, that may reach a model.

    Only calls are allowed, and only on objects that are certainly no model: another name for one, such as
    `ask = getattr` or `it = fitted.model`, would hide it.
    """
    names, allowed = other_names(tree), set[ast.AST]()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        first = call.args[0] if call.args else None
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if is_other_module(first) if name in IMPORTS_BY_NAME else is_other(first, names):
            allowed.add(call.func)
    for node in ast.walk(tree):
        name = getattr(node, "id", getattr(node, "attr", ""))
        if node in allowed or (isinstance(node, ast.Attribute) and name == "__dict__" and is_other(node.value, names)):
            continue
        if name in IMPORTS_BY_NAME:
            yield node.lineno, f"{name} may import a module of models"
        elif name in ASKS:
            yield node.lineno, f"{name} may ask a model or its settings; declare it in models/base.py"
        elif isinstance(node, ast.alias) and node.asname and node.name.split(".")[-1] in IMPORTS_BY_NAME | ASKS:
            yield node.lineno, f"{node.name} must not be hidden behind another name"


def tried_attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, message) where an attribute that a model or its settings lack is caught: hasattr in disguise."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            caught = [handler.type for handler in node.handlers if handler.type is not None]
        elif isinstance(node, ast.With):
            caught = [item.context_expr for item in node.items]
        else:
            continue
        words = set().union(*(words_in(statement) for statement in node.body))
        if "AttributeError" in set().union(*map(words_in, caught)) and words & MODEL_WORDS:
            yield node.lineno, f"asks {', '.join(words & MODEL_WORDS)} by AttributeError; declare it in models/base.py"


def words_in(tree: ast.AST) -> set[str]:
    """Return the names and attributes that code uses."""
    return {str(getattr(node, "id", getattr(node, "attr", ""))).strip("_") for node in ast.walk(tree)}


def contract_breaches(path: Path, source: str) -> list[str]:
    """Return the lines of a file that use models beyond their contract."""
    tree = ast.parse(source)
    breaches = [(line, f"imports {name}") for line, name in imports(path, tree) if is_model_module(name)]
    breaches += [*reflections(tree), *tried_attributes(tree)]
    texts = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_model_module(dotted := ast.unparse(node)) and dotted.count(".") > 1:
            breaches.append((node.lineno, f"reaches into {dotted}"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node not in texts:
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if MODEL_NAME.search(text):
                breaches.append((node.lineno, f"names a model: {text!r}"))
            if MODULE_NAME.search(text):
                breaches.append((node.lineno, f"names a module of models: {text!r}"))
    return [f"{path.relative_to(PACKAGE)}:{line}: {message}" for line, message in breaches]


@pytest.mark.parametrize("part", BY_CONTRACT)
def test_models_are_known_only_by_their_contract(part):
    path = PACKAGE / part
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    assert all(file.exists() for file in files), f"{part} is gone; if it has a new name, list that one"
    assert [breach for file in files for breach in contract_breaches(file, file.read_text())] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        # imports
        ("tagger.py", "import zipfel.models"),
        ("tagger.py", "import zipfel.models.decaf"),
        ("tagger.py", "import zipfel.models.decaf as model"),
        ("tagger.py", "from zipfel import models"),
        ("tagger.py", "from zipfel.models import decaf"),
        ("tagger.py", "from zipfel.models import base, learner"),
        ("tagger.py", "from zipfel.models import *"),
        ("explain.py", "from zipfel.models.learner import Ensemble"),
        ("plan.py", "from zipfel.models.neighbours import Memory as Kept"),
        ("plan.py", "from . import models"),
        ("plan.py", "from .models import glas"),
        ("plan.py", "from .models.glas import Glas"),
        ("bench/race.py", "from ..models import mixed"),
        ("server/app.py", "from ..models.saving import Tensors"),
        ("fitting.py", "def late():\n    from zipfel.models.dxml import Dxml"),
        ("fitting.py", "if TYPE_CHECKING:\n    from zipfel.models.mnn import Mnn"),
        ("fitting.py", "import zipfel.models.base\nkind = zipfel.models.tokens.start_tokens"),
        # imports by name
        ("plan.py", "from importlib import import_module\nimport_module('zipfel.models.neighbours')"),
        ("plan.py", "import importlib\nimportlib.import_module(f'zipfel.{part}.{name}')"),
        ("plan.py", "from importlib import import_module\nimport_module('.models.tokens', 'zipfel')"),
        ("plan.py", "from importlib import import_module as load\nload(name)"),
        ("plan.py", "from importlib import import_module\nload = import_module"),
        ("plan.py", "__import__(name)"),
        ("report/page.py", "import sys\nsys.modules['zipfel.models.saving']"),
        ("report/page.py", "HOME = 'zipfel.models'"),
        ("report/page.py", "home = f'zipfel.models.{name}'"),
        ("report/page.py", "PATH = 'zipfel/models/tokens.py'"),
        # names of models
        *(("tagger.py", f"is_it = choice.model == {name!r}") for name in ("glas", "mnn", "dxml", "lightdxml", "decaf")),
        ("tagger.py", "is_it = type(model).__name__ == 'Decaf'"),
        ("server/schema.py", "kind: Annotated[str, Field(description='glas, lightdxml, ...')]"),
        ("bench/table.py", "title = f'LightDXML and {others}'"),
        ("bench/table.py", "stage = 'decaf_network'"),
        ("bench/table.py", "def f():\n    return 'MNN'"),
        ("bench/table.py", "def f(model: Literal['mnn']): ..."),
        ("bench/table.py", "name = b'dxml'"),
        ("bench/table.py", "match name:\n    case 'glas': ..."),
        ("bench/table.py", "'''The table.'''\n'''It has a column for GLaS.'''"),
        # questions
        ("tagger.py", "hasattr(model, 'label_vectors')"),
        ("tagger.py", "getattr(self.model_, 'text_scores', None)"),
        ("tagger.py", "getattr(self._fitted().model, 'text_scores', None)"),
        ("tagger.py", "getattr(fitted.model, name)"),
        ("tagger.py", "hasattr(self.models[0], 'beta')"),
        ("plan.py", "hasattr(settings, 'cycle')"),
        ("plan.py", "getattr(blueprint.settings, 'batch_size', 1)"),
        ("plan.py", "getattr(blueprint.kind, 'presets')"),
        ("plan.py", "getattr(type(model), 'presets')"),
        ("plan.py", "setattr(network, 'beta', 1)"),
        ("plan.py", "delattr(learner, 'index')"),
        ("plan.py", "vars(classifier)"),
        ("plan.py", "'cycle' in vars(facts.fitted.predictor)"),
        ("plan.py", "'cycle' in dir(settings)"),
        ("plan.py", "model.__dict__['beta']"),
        ("plan.py", "object.__getattribute__(model, 'beta')"),
        ("plan.py", "it = fitted.model\nhasattr(it, 'beta')"),
        ("plan.py", "ask = getattr\nask(model, 'beta')"),
        ("plan.py", "import builtins\nbuiltins.getattr(model, 'beta')"),
        ("plan.py", "from builtins import hasattr as has\nhas(model, 'beta')"),
        ("plan.py", "from operator import attrgetter\nattrgetter('beta')(model)"),
        ("plan.py", "import inspect\ninspect.getattr_static(model, 'beta')"),
        ("plan.py", "list(map(getattr, models, names))"),
        ("plan.py", "try:\n    model.beta\nexcept AttributeError: ..."),
        ("plan.py", "try:\n    cycle = self.fitted_.blueprint.settings.cycle\nexcept (KeyError, AttributeError): ..."),
        ("plan.py", "with contextlib.suppress(AttributeError):\n    predictor.learners[0].beta"),
        ("plan.py", "from zipfel.models import base\ngetattr(base, name)"),
        ("plan.py", "from zipfel.fitting import fitted\nhasattr(fitted, name)"),
    ],
)
def test_the_contract_test_sees_a_breach(file, source):
    assert contract_breaches(PACKAGE / file, source) != []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("tagger.py", "import zipfel.models.base\nkind = zipfel.models.base.Model"),
        ("tagger.py", "from zipfel.models import base"),
        ("tagger.py", "from zipfel.models.base import Model, settings_of"),
        ("plan.py", "from .models.base import Cost"),
        ("server/app.py", "from ..models import base"),
        ("server/app.py", "from .schema import Model"),
        ("bench/race.py", "from zipfel.data import splits\nimport numpy, sklearn.base"),
        ("plan.py", "from importlib import import_module\nimport_module('matplotlib.pyplot')"),
        ("tagger.py", "'''Train `glas`, or decaf.'''\nclass A:\n    'As GLaS does.'\n    def f(self): 'mnn'"),
        ("tagger.py", "words = ['glass', 'glasgow', 'decaffeinated', 'xml', 'model', 'models', 'zipfel models']"),
        ("tagger.py", "is_it = choice.model == 'auto'"),
        ("server/worker.py", "class Worker:\n    def stop(self): setattr(self, 'should_exit', True)"),
        ("server/worker.py", "class Worker:\n    def stop(self): self.__dict__.clear()"),
        ("server/worker.py", "import os\nhasattr(os, 'sysconf')"),
        ("server/worker.py", "import torch\ngetattr(torch.cpu, 'get_capabilities', dict)"),
        ("server/worker.py", "try: ...\nexcept OSError as error:\n    getattr(error, 'strerror', None)"),
        ("plan.py", "object.__setattr__(self, 'X', X)"),
        ("server/door.py", "try:\n    socket.TCP_INFO\nexcept (OSError, AttributeError): ..."),
        ("plan.py", "model.cost(lesson).rounds, blueprint.settings, type(blueprint.settings)"),
    ],
)
def test_the_contract_test_lets_pass_what_is_harmless(file, source):
    assert contract_breaches(PACKAGE / file, source) == []
