"""Mutation testing: `make mutants`, or `python -m tests.mutants --model glas --count 100 --seed 0 --jobs 1`.

Applies small wrong changes to a copy of the tree, one at a time, and runs the tests of the changed file: those named in
named_mutants.py, then generated ones, drawn evenly from all kinds of change. A mutant is caught if a test fails or does
not end. mutmut and cosmic-ray change neither arguments of calls nor draw a fixed sample, and start Python anew for each
mutant; here torch is imported once, and each mutant runs in a fork.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from named_mutants import NAMED  # noqa: E402

TESTS = {  # of each file, fastest first
    "zipfel/models/glas.py": ["tests/models/test_glas_step.py", "tests/models/test_settings.py"],
    "zipfel/nn/regularizers.py": ["tests/models/test_glas_step.py", "tests/nn/test_regularizers.py"],
    "zipfel/nn/losses.py": ["tests/nn/test_losses.py"],
    "zipfel/nn/encoders.py": ["tests/nn/test_encoders.py"],
    "zipfel/nn/classifiers.py": ["tests/nn/test_classifiers.py"],
    "zipfel/labelspace/graph.py": ["tests/labelspace/test_graph.py"],
    "zipfel/negatives.py": ["tests/test_negatives.py"],
    "zipfel/models/decaf.py": ["tests/models/test_decaf_step.py", "tests/models/test_decaf.py"],
    "zipfel/models/decaf_network.py": ["tests/models/test_decaf_step.py", "tests/models/test_decaf.py"],
}
MODELS: dict[str, dict[str, tuple[str, ...]]] = {  # files of a model, and the parts that it uses; () for all
    "glas": {
        "zipfel/models/glas.py": (),
        "zipfel/nn/regularizers.py": (),
        "zipfel/nn/losses.py": ("margin", "softmax", "logistic"),
        "zipfel/nn/encoders.py": ("EmbeddingTable", "TransposedBags", "_BagSum", "NormedLinear", "drop_features"),
        "zipfel/nn/classifiers.py": ("OneVsAll",),
        "zipfel/labelspace/graph.py": ("cooccurrence", "adjacency"),
        "zipfel/negatives.py": ("sampled_positives", "within", "holds", "hardest"),
    },
    "decaf": {"zipfel/models/decaf.py": (), "zipfel/models/decaf_network.py": ()},
}
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
CALLS = {"min": "max", "minimum": "maximum", "clamp_min": "clamp_max", "amin": "amax", "sum": "mean"}
CALLS |= {new: old for old, new in CALLS.items()}
UNSEEN = ("search", "was")  # keywords of `setting` that change no model
OUTPUT = "output.txt"  # of the last tests, in a copy of the tree
OUTCOMES = {0: "survived", 1: "caught", 2: "caught", None: "caught (time)"}  # by pytest's exit status


class Mutant(NamedTuple):
    kind: str
    file: str
    line: int
    old: str
    new: str
    source: str  # the whole file, changed
    tests: tuple[str, ...]


# --- Making mutants ---------------------------------------------------------------------------------------------------


def changes(node: ast.AST, parameters: list[str], numbers: random.Random) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kinds of change of a node, and what stands in its place."""

    def changed(**parts: object) -> ast.AST:
        return type(node)(**{**dict(ast.iter_fields(node)), **parts})

    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield "operator", changed(op=OPERATORS[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", changed(ops=[COMPARISONS[type(op)]()])
        case ast.UnaryOp():
            yield "sign or not", node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Call():
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in CALLS:
                func = type(node.func)(**{**vars(node.func), "id": CALLS[name], "attr": CALLS[name]})
                yield "min and max", changed(func=func)
            for keyword in node.keywords:
                if keyword.arg not in UNSEEN:
                    rest = [other for other in node.keywords if other is not keyword]
                    yield "keyword dropped", changed(keywords=rest)
            for place, argument in enumerate(node.args if name != "setting" else []):
                others = [ast.unparse(other) for other in node.args if other is not argument] + parameters
                if others := sorted({*others} - {ast.unparse(argument)}):
                    other = ast.parse(numbers.choice(others), mode="eval").body
                    yield "argument replaced", changed(args=[*node.args[:place], other, *node.args[place + 1 :]])
        case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name() | ast.Tuple()]):
            return  # a docstring; a name without a value would always be noticed
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.If() | ast.For():
            yield "statement deleted", ast.Pass()


def nodes(node: ast.AST, parameters: list[str]) -> Iterator[tuple[ast.AST, list[str]]]:
    """Yield all nodes below a node that can be changed, each with the parameters of the function it is in."""
    for field, below in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in below if isinstance(below, list) else [below]:
            if not isinstance(child, ast.AST) or (isinstance(child, ast.keyword) and child.arg in UNSEEN):
                continue
            if isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr):
                continue
            names = parameters
            if isinstance(child, ast.FunctionDef):
                names = [argument.arg for argument in child.args.args if argument.arg not in ("self", "cls")]
            yield child, names
            yield from nodes(child, names)


def mutants_of(file: str, parts: tuple[str, ...], numbers: random.Random) -> Iterator[Mutant]:
    """Yield all mutants of a file, or of some functions and classes in it."""
    source = (ROOT / file).read_text()
    starts = [0, *(place + 1 for place, byte in enumerate(source.encode()) if byte == ord("\n"))]
    tree = ast.parse(source)
    for part in tree.body:
        if parts and getattr(part, "name", None) not in parts:
            continue
        for node, parameters in nodes(part, []):
            for kind, new in changes(node, parameters, numbers):
                span = slice(
                    starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
                )
                text = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
                whole = source.encode()
                changed = (whole[: span.start] + text.encode() + whole[span.stop :]).decode()
                with contextlib.suppress(SyntaxError):  # a target of an assignment, a type
                    ast.parse(changed)
                    yield Mutant(kind, file, node.lineno, ast.unparse(node), ast.unparse(new), changed, tests_of(file))


def tests_of(file: str) -> tuple[str, ...]:
    return tuple(path for path in TESTS[file] if (ROOT / path).exists())


def generated(model: str, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of a model, as many of each kind of change as there are, or as of the others."""
    numbers, kinds = random.Random(seed), dict[str, list[Mutant]]()
    for mutant in chain.from_iterable(mutants_of(file, parts, numbers) for file, parts in MODELS[model].items()):
        kinds.setdefault(mutant.kind, []).append(mutant)
    for mutants in kinds.values():
        numbers.shuffle(mutants)
    in_turn = chain.from_iterable(zip_longest(*(kinds[kind] for kind in sorted(kinds))))
    return [mutant for mutant in in_turn if mutant is not None][:count]


def named(model: str) -> list[Mutant]:
    """Return the named mutants of a model."""
    found = []
    for own in (own for own in NAMED if own.model == model):
        source = (ROOT / own.file).read_text()
        if source.count(own.old) != 1:
            raise SystemExit(f"{own.file} has {source.count(own.old)} places like that of the mutant {own.name!r}, not 1")
        line = source[: source.index(own.old)].count("\n") + 1
        changed = source.replace(own.old, own.new)
        found.append(Mutant("named", own.file, line, own.old.strip(), own.name, changed, own.tests))
    return found


# --- Running tests ----------------------------------------------------------------------------------------------------


def copy_of_the_tree() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zipfel-mutants-"))
    for name in ("zipfel", "tests", "benchmarks", "docs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results", "*.jsonl"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, tests: tuple[str, ...], keep_bytecode: bool = False) -> None:
    """Run tests in a copy of the tree, in this process, and end it with pytest's exit status."""
    import pytest

    os.setsid()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if path and not Path(path).is_relative_to(ROOT))]
    sys.dont_write_bytecode = not keep_bytecode  # caches are of the unchanged files
    sys.modules.pop("named_mutants", None)
    output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
    if not keep_bytecode or status:
        os._exit(int(status))
    import zipfel

    os._exit(0 if Path(str(zipfel.__file__)).is_relative_to(folder) else 99)


def status_of(folder: Path, tests: tuple[str, ...], seconds: float, keep_bytecode: bool = False) -> int | None:
    """Return pytest's exit status in a fork; None if it takes too long."""
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, tests, keep_bytecode))
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
        return None
    return child.exitcode


class Worker:
    """A process with a copy of the tree, in which torch is imported once."""

    folder: Path
    seconds: dict[tuple[str, ...], float]

    @classmethod
    def start(cls) -> None:
        import scipy.sparse  # noqa: F401
        import torch

        torch.set_num_threads(1)
        cls.folder, cls.seconds = copy_of_the_tree(), {}

    @classmethod
    def judge(cls, mutant: Mutant) -> str:
        """Return the outcome of a mutant's tests; they must pass without it."""
        if mutant.tests not in cls.seconds:
            began = time.monotonic()
            if status := status_of(cls.folder, mutant.tests, 600, keep_bytecode=True):
                raise RuntimeError(f"{' '.join(mutant.tests)} fail without any mutant:\n{(cls.folder / OUTPUT).read_text()}")
            cls.seconds[mutant.tests] = time.monotonic() - began
        path = cls.folder / mutant.file
        before = path.read_text()
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
            cached.unlink()
        path.write_text(mutant.source)
        status = status_of(cls.folder, mutant.tests, 10 + 3 * cls.seconds[mutant.tests])
        path.write_text(before)
        return OUTCOMES.get(status, f"caught (exit status {status})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=100, help="generated mutants of each model; 0: only named ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--survivors", type=Path, default=Path("mutants.json"), help="file to write survivors to")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    survivors, missed = [], False
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("fork"), Worker.start) as pool:
        for model in asked.model or MODELS:
            mutants, outcomes = [*named(model), *generated(model, asked.count, asked.seed)], Counter[str]()
            for mutant, outcome in zip(mutants, pool.map(Worker.judge, mutants), strict=True):
                outcomes[outcome] += 1
                change = mutant.new if mutant.kind == "named" else f"{mutant.old}  →  {mutant.new}"
                change = " ".join(change.split())
                print(f"{outcome:14} {mutant.kind:18} {mutant.file}:{mutant.line}  {change[:150]}", flush=True)
                if outcome == "survived":
                    missed |= mutant.kind == "named"
                    survivors.append({"model": model, "seed": asked.seed, **mutant._asdict(), "source": None})
            share = 1 - outcomes["survived"] / max(1, len(mutants))
            print(f"{model}: {share:.0%} of {len(mutants)} mutants caught; {outcomes['survived']} survived\n")
        list(pool.map(forget_copy, range(asked.jobs)))
    asked.survivors.write_text(json.dumps(survivors, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(missed)


def forget_copy(number: int) -> None:
    shutil.rmtree(Worker.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
