"""Mutation testing: `make mutants`, or `python -m tests.mutants --model glas --count 100 --seed 0 --jobs 1`.

Makes small wrong changes in a copy of the tree, one at a time, and runs tests of the changed file: first the mutants of
named_mutants.py, then generated ones, drawn evenly from all kinds of change. A mutant is caught if a test fails or does
not end. It is not mutmut or cosmic-ray, because here a seed draws the sample, tests are chosen by the file, and torch
is imported once: each mutant runs in a fork, in seconds.
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
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from named_mutants import MODELS, NAMED, STEPS, TESTS  # noqa: E402

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
COPY = Path()  # of the tree, in a worker
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


def changed(node: ast.AST, **parts: object) -> ast.AST:
    return type(node)(**{**dict(ast.iter_fields(node)), **parts})


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kinds of change of a node, and what stands in its place."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield "operator", changed(node, op=OPERATORS[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", changed(node, ops=[COMPARISONS[type(op)]()])
        case ast.UnaryOp():
            yield "sign or not", node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name() | ast.Tuple()]):
            return  # a docstring; a name without a value would always be noticed
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.If() | ast.For():
            yield "statement deleted", ast.Pass()


def call_changes(call: ast.Call, parameters: list[str], numbers: random.Random) -> Iterator[tuple[str, ast.AST]]:
    """Yield changes of a call; parameters: those of the function it is in, which may replace an argument."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if name in CALLS:
        field = "id" if isinstance(call.func, ast.Name) else "attr"
        yield "min and max", changed(call, func=changed(call.func, **{field: CALLS[name]}))
    for place, keyword in enumerate(call.keywords):
        if keyword.arg not in UNSEEN:
            rest = [*call.keywords[:place], *call.keywords[place + 1 :]]
            yield "keyword dropped", changed(call, keywords=rest)
    texts = [ast.unparse(argument) for argument in call.args] if name != "setting" else []
    for place, text in enumerate(texts):
        if others := sorted({*texts, *parameters} - {text}):
            other = ast.Name(numbers.choice(others))
            yield "argument replaced", changed(call, args=[*call.args[:place], other, *call.args[place + 1 :]])


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


def mutants_of(model: str, file: str, numbers: random.Random) -> Iterator[Mutant]:
    """Yield all mutants of a model's file, or of the parts of it that the model uses."""
    source = (ROOT / file).read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(source) if byte == ord("\n"))]  # of lines
    parts, tests = MODELS[model][file], tuple(dict.fromkeys([*STEPS[model], *TESTS[file].split()]))
    used = [part for part in ast.parse(source).body if not parts or getattr(part, "name", None) in parts]
    for node, parameters in nodes(ast.Module(used, []), []):
        of_call = call_changes(node, parameters, numbers) if isinstance(node, ast.Call) else ()
        for kind, new in chain(changes(node), of_call):
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + node.end_col_offset
            text = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
            whole = (source[:first] + text.encode() + source[last:]).decode()
            yield Mutant(kind, file, node.lineno, ast.unparse(node), ast.unparse(new), whole, tests)


def generated(model: str, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of a model, as many of each kind of change as there are, or as of the others."""
    numbers, kinds = random.Random(seed), dict[str, list[Mutant]]()
    for mutant in chain.from_iterable(mutants_of(model, file, numbers) for file in MODELS[model]):
        kinds.setdefault(mutant.kind, []).append(mutant)
    for mutants in kinds.values():
        numbers.shuffle(mutants)
    in_turn = chain.from_iterable(zip_longest(*(kinds[kind] for kind in sorted(kinds))))
    return list(islice((mutant for mutant in in_turn if mutant is not None and compiles(mutant)), count))


def compiles(mutant: Mutant) -> bool:
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(mutant.source))
    return False


def named(model: str) -> list[Mutant]:
    """Return the named mutants of a model."""
    found = []
    for own in (own for own in NAMED if own.model == model):
        source = (ROOT / own.file).read_text()
        before, after = source.split(own.old)  # occurs once
        line, whole = before.count("\n") + 1, before + own.new + after
        found.append(Mutant("named", own.file, line, own.old.strip(), own.name, whole, own.tests))
    return found


def drawn(model: str, kind: str, count: int, seed: int) -> list[Mutant]:
    """Return the mutants of a model: named ones, generated ones, or all."""
    first = named(model) if kind != "generated" else []
    return first + (generated(model, count, seed) if kind != "named" else [])


# --- Running tests ----------------------------------------------------------------------------------------------------


def start_worker(folder: str) -> None:
    """Copy the tree, and import what all tests need but do not test."""
    global COPY
    import scipy.sparse  # noqa: F401
    import torch

    torch.set_num_threads(1)
    COPY = Path(tempfile.mkdtemp(dir=folder))
    for name in ("zipfel", "tests", "benchmarks", "docs", "examples"):
        shutil.copytree(ROOT / name, COPY / name)
    shutil.copy(ROOT / "pyproject.toml", COPY)


def of_checkout(path: Path) -> bool:
    """Whether a path has the unchanged code; the packages of a .venv in the checkout do not."""
    return path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)


def run_tests(tests: tuple[str, ...], unchanged: bool) -> None:
    """Run tests in the copy, in this process, and end it with pytest's exit status."""
    import pytest

    os.setsid()
    os.chdir(COPY)
    os.environ["PYTHONPATH"] = str(COPY)
    sys.path[:] = [str(COPY), *(path for path in sys.path if path and not of_checkout(Path(path)))]
    sys.dont_write_bytecode = not unchanged  # else the next mutant might be read from a cache
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", *tests]))
    assert Path(str(sys.modules["zipfel"].__file__)).is_relative_to(COPY)
    os._exit(status)


def status_of(tests: tuple[str, ...], seconds: float, unchanged: bool = False) -> int | None:
    """Return pytest's exit status in a fork; None if it takes too long."""
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(tests, unchanged))
    child.start()
    child.join(seconds)
    if child.exitcode is None and child.pid is not None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return None
    return child.exitcode


def usual_seconds(test: str) -> float:
    """Return how long a test file takes without a mutant, which it must pass."""
    began = time.monotonic()
    if status_of((test,), 900, unchanged=True) != 0:
        raise RuntimeError(f"fails without a mutant: {test}\n{(COPY / 'output.txt').read_text()}")
    return time.monotonic() - began


def judged(mutant: Mutant, usual: float) -> str:
    """Return the outcome of a mutant.  usual: seconds that its tests take without it."""
    seconds, path = 10 + 3 * usual, COPY / mutant.file
    before = path.read_text()
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
        cached.unlink()
    path.write_text(mutant.source)
    status = status_of(mutant.tests, seconds)
    path.write_text(before)
    return OUTCOMES.get(status, f"caught ({status})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=100, help="generated mutants of each model; 0: only named ones")
    parser.add_argument("--kind", choices=("all", "named", "generated"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--survivors", type=Path, default=Path("mutants.json"), help="file to write survivors to")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    fork, survivors = multiprocessing.get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.jobs, fork, start_worker, [folder]) as pool:
        for model in asked.model or MODELS:
            mutants, outcomes = drawn(model, asked.kind, asked.count, asked.seed), Counter[str]()
            files = list(dict.fromkeys(chain.from_iterable(mutant.tests for mutant in mutants)))
            usual = dict(zip(files, pool.map(usual_seconds, files), strict=True))
            print(" ".join(f"{file} {seconds:.0f} s" for file, seconds in usual.items()), flush=True)
            limits = [sum(usual[file] for file in mutant.tests) for mutant in mutants]
            for mutant, outcome in zip(mutants, pool.map(judged, mutants, limits), strict=True):
                outcomes[outcome] += 1
                change = " ".join((mutant.new if mutant.kind == "named" else f"{mutant.old} → {mutant.new}").split())
                print(f"{outcome:14} {mutant.kind:18} {mutant.file}:{mutant.line}  {change[:150]}", flush=True)
                if outcome == "survived":
                    survivors.append({"model": model, "seed": asked.seed, **mutant._asdict(), "source": None})
            share = 1 - outcomes["survived"] / max(1, len(mutants))
            print(
                f"{model}: {share:.0%} of {len(mutants)} mutants caught, {outcomes['survived']} survived\n", flush=True
            )
    asked.survivors.write_text(json.dumps(survivors, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(any(survivor["kind"] == "named" for survivor in survivors))


if __name__ == "__main__":
    main()
