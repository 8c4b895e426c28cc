"""What it costs to split labels over ranks: `python -m benchmarks.label_ranks measure|simulate|accuracy [...]`.

measure: trains a model on random data, alone and with `ranks` processes (gloo) on this machine, and counts what each
holds for its labels (classifiers and the state of their optimizer) and what a step sends; beside that, what it would
send if the rows of the table of token vectors were split too.
simulate: computes memory, bytes and time of a step with ten and a hundred million labels on 8 and 64 GPUs. Nothing is
run: bytes are those of the formulas that `measure` is held against, and time is that of a step measured on one GPU, in
proportion to the labels, plus bytes over bandwidth: no latency, and nothing overlaps.
accuracy: `accuracy DATA [model=decaf] [ranks=2]` trains a model by `zipfel train`, alone and with `--workers`, and
evaluates both on test.
Defaults: model=decaf labels=20011 points=2560 features=20000 dimension=64 batch=256 ranks=2 shuffled=0 (frequent labels
come first; 1: in any order). One JSON line, or several.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy.sparse import csr_array

from benchmarks.record import record

SEED, RIGHT, TOKENS, WORDS = 0, 3, 16, 6  # labels and tokens of a point, words of a label's text
DEFAULTS = {"model": "decaf", "labels": "20011", "points": "2560", "features": "20000", "dimension": "64",
            "batch": "256", "ranks": "2", "shuffled": "0"}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "decaf": {"shortlist": "none", "epochs": 1, "min_steps": 1},
    "lightdxml": {"epochs": 1, "min_steps": 1, "index": "exact"},
    "glas": {"epochs": 1, "min_steps": 1, "pool": 10**9},
    "linear": {"negatives": "mined"},
}

GPUS, NVLINK, NETWORK = 8, 450e9, 50e9  # of a node; bytes a second each way, of a GPU and between nodes (400 Gbit/s)
STEP, STEP_LABELS, STEP_TOKENS = (
    0.195,
    1_300_000,
    300_000,
)  # DECAF on one H200, D 512, 4,096 points: docs/papers/decaf.md
PEAK = 34e9 / (1_300_000 * 512)  # bytes for each number of the classifiers at the peak of that measurement
FITS = 141e9  # bytes of an H200


@dataclass(frozen=True)
class Step:
    """What a rank sends in a step; it receives as much.

    tokens: rows of the token table that all ranks together touch; own: those that this rank touches.  layers: numbers
    in the parameters that all ranks have, but for tokens.
    """

    points: float
    dimension: int
    tokens: float
    layers: float
    ranks: int
    own: float | None = None

    def gathered(self) -> dict[str, float]:
        """Return the bytes that a rank has and all others get."""
        ids = 8 * (1 + (self.tokens if self.own is None else self.own))
        return {"points": ceil(self.points / self.ranks) * self.dimension * 4, "ids of tokens": ids}

    def summed(self) -> dict[str, float]:
        """Return the bytes of which all ranks get the sum."""
        return {
            "sums over labels": self.points * 20,  # of the decoupled loss: three numbers, and a count of 8 bytes
            "gradients of points": self.points * self.dimension * 4,
            "gradients of tokens": self.tokens * self.dimension * 4,
            "gradients of layers": self.layers * 4,
        }

    def sent(self) -> dict[str, float]:
        """Return the bytes that a rank sends; sums go round a ring."""
        others, ring = self.ranks - 1, 2 * (self.ranks - 1) / self.ranks
        gathered = {name: others * size for name, size in self.gathered().items()}
        return gathered | {name: ring * size for name, size in self.summed().items()}

    def seconds(self) -> float:
        """Return the time that the bytes take: sums first within a node, then between nodes."""
        near, nodes = min(self.ranks, GPUS), ceil(self.ranks / GPUS)
        gathered, summed = sum(self.gathered().values()), sum(self.summed().values())
        within = gathered * (self.ranks - 1) + summed * 2 * (near - 1) / near
        between = gathered * near * (nodes - 1) + summed * 2 * (nodes - 1) / nodes
        return within / NVLINK + between / NETWORK


def token_ways(step: Step) -> dict[str, int]:
    """Return what both ways to hold token vectors cost in a step: bytes of a rank without ids, and time between nodes.

    Replicated, gradients are summed, first within a node. Split by rows, a rank fetches the rows that it needs, and
    returns their gradients.
    """
    n, near, nodes, row = step.ranks, min(step.ranks, GPUS), ceil(step.ranks / GPUS), step.dimension * 4
    own = step.tokens if step.own is None else step.own
    figures = {
        "replicated: sent": 2 * (n - 1) / n * step.tokens * row,
        "split by rows: sent": 2 * (n - 1) / n * own * row,
    }
    if nodes > 1:
        figures["replicated: ms between nodes"] = 1e3 * 2 * (nodes - 1) / nodes * step.tokens * row / NETWORK
        figures["split by rows: ms between nodes"] = 1e3 * near * 2 * (n - near) / n * own * row / NETWORK
    return {name: round(value) for name, value in figures.items()}


# --- Measured ---------------------------------------------------------------------------------------------------------


def drawn(rows: int, columns: int, each: int, numbers: np.random.Generator) -> csr_array:
    """Return rows of length about 1 with about `each` entries; columns are as frequent as words."""
    ids = np.sort((columns * numbers.random((rows, each)) ** 2.5).astype(np.int64), axis=1)
    X = csr_array((np.full(ids.size, each**-0.5, np.float32), ids.ravel(), np.arange(rows + 1) * each), (rows, columns))
    X.sum_duplicates()
    return X


def data(sizes: dict[str, int]) -> tuple[csr_array, csr_array, csr_array]:
    """Return features, labels, and texts of labels."""
    numbers = np.random.default_rng(SEED)
    X = drawn(sizes["points"], sizes["features"], TOKENS, numbers)
    Y = csr_array((drawn(sizes["points"], sizes["labels"], RIGHT, numbers) != 0).astype(np.float32))
    if sizes["shuffled"]:
        Y = csr_array(Y[:, numbers.permutation(sizes["labels"])])
    return X, Y, drawn(sizes["labels"], sizes["features"], WORDS, numbers)


def rank(model: str, sizes: dict[str, int], out: Path) -> None:
    """Train as one process, or as the rank that the environment says, and write what that took."""
    import torch

    from zipfel.cli.launch import is_rank
    from zipfel.data.dataset import Part
    from zipfel.models.base import Lesson, model_class, settings_of
    from zipfel.training import trainer
    from zipfel.training.ranks import Ranks, World
    from zipfel.training.run import Run

    world = Ranks.met(torch.device("cpu")) if is_rank() else World()
    given = {} if model == "linear" else {"dimension": sizes["dimension"], "batch_size": sizes["batch"]}
    X, Y, Z = data(sizes)
    own = (model_class(model).shared(world, np.diff(Y.tocsc().indptr)),) if world.splits else ()
    rows = {sizes["labels"]} | {share.size for share in own}
    figures: dict[str, Any] = {}

    class Watched(trainer._Training):
        def finish(self, interrupted: bool = False) -> trainer.Outcome:
            steps = max(1, self.position.epoch * self.steps_an_epoch)
            held = [
                tensor.nbytes for tensor in self.optimizer.state_dict().values() if tensor.ndim and len(tensor) in rows
            ]
            if not self.stage.startswith("labels-"):
                figures.update(steps=steps, seconds=self.position.seconds / steps, optimizer=sum(held),
                               sent={name: count // self.summed for name, count in self.sent.items()})  # fmt: skip
            return super().finish(interrupted)

    trainer._Training = Watched  # type: ignore[misc]
    settings = settings_of(model, changes=SETTINGS[model] | given)
    built = model_class(model)(sizes["features"], sizes["labels"], settings, torch.Generator().manual_seed(SEED), *own)
    built.fit(Lesson(Part(Y, X=X), Z=Z), Run(seed=SEED, world=world))
    weights = ("labels", "values") if model == "linear" else ()
    rows |= {built.own.size} if built.own is not None else set()  # linear cuts labels anew
    by_label = [value.nbytes for name, value in built.state_dict().items()
                if name in weights or (value.ndim and len(value) in rows)]  # fmt: skip
    figures |= {"classifiers": sum(by_label), "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    Path(f"{out}.{world.rank}").write_bytes(orjson.dumps(figures))


def trained(arguments: list[str], ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Train in so many processes, one after the other if it is one, and return what each has written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    out, processes = folder / str(ranks), []
    for number in range(ranks):
        meeting = {"RANK": str(number), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(meeting if ranks > 1 else {})}
        command = [sys.executable, "-m", "benchmarks.label_ranks", "rank", str(out), *arguments]
        processes.append(subprocess.Popen(command, env=environment))
    if any(process.wait() for process in processes):
        raise SystemExit("a process failed")
    return [orjson.loads(Path(f"{out}.{number}").read_bytes()) for number in range(ranks)]


def touched(sizes: dict[str, int], ranks: int, texts: bool) -> tuple[float, float]:
    """Return how many rows of the token table a batch touches, and how many one rank does."""
    X, _, Z = data(sizes)
    some = np.random.default_rng(SEED).permutation(sizes["points"])[: sizes["batch"]]
    parts = []
    for number in range(ranks):
        points = X[np.sort(some)[number * len(some) // ranks : (number + 1) * len(some) // ranks]].indices
        labels = slice(number * sizes["labels"] // ranks, (number + 1) * sizes["labels"] // ranks)
        parts.append(np.unique(np.concatenate([points, Z[labels].indices if texts else points[:0]])))
    return len(np.unique(np.concatenate(parts))), float(np.mean([len(part) for part in parts]))


def layers_of(model: str, D: int) -> int:
    """Return the numbers in the parameters that all ranks have, but for tokens."""
    return {"decaf": 2 * (D * D + 2 * D) + 2 * D + 1, "lightdxml": D * D + 2 * D + 1, "glas": D + 2}.get(model, 0)


def measure(changes: dict[str, str]) -> None:
    """Print a line about a model that one process trains, and several."""
    model, ranks = changes.pop("model"), int(changes.pop("ranks"))
    sizes = {name: int(value) for name, value in changes.items()}
    arguments = [f"{name}={value}" for name, value in {"model": model, "ranks": ranks, **sizes}.items()]
    with tempfile.TemporaryDirectory() as folder:
        (one,), several = trained(arguments, 1, Path(folder)), trained(arguments, ranks, Path(folder))
    both = [sum(figures.get(name, 0) for name in ("classifiers", "optimizer")) for figures in (one, *several)]
    figures: dict[str, object] = {"model": model, "ranks": ranks, **sizes, "one process": one, "each rank": several,
               "classifiers and optimizer, of one process": round(max(both[1:]) / both[0], 3)}  # fmt: skip
    if model != "linear":
        tokens, own = touched(sizes, ranks, texts=model == "decaf")
        step = Step(sizes["batch"], sizes["dimension"], tokens, layers_of(model, sizes["dimension"]), ranks, own)
        figures |= {"computed": {name: round(size) for name, size in step.sent().items()}, "tokens": token_ways(step)}
    record("label_ranks", figures, SEED, ("torch",))


# --- Simulated --------------------------------------------------------------------------------------------------------


def simulate(changes: dict[str, str]) -> None:
    """Print a line for each number of labels and GPUs."""
    dimension, points, features = 512, 4096, STEP_TOKENS
    for labels in (10_000_000, 100_000_000):
        for ranks in (8, 64):
            step = Step(points, dimension, features, layers_of("decaf", dimension), ranks)
            share = labels / ranks
            compute, talk, memory = STEP * share / STEP_LABELS, step.seconds(), PEAK * share * dimension
            figures = {
                "simulated": True, "model": "decaf", "labels": labels, "dimension": dimension, "batch": points,
                "ranks": ranks, "classifiers and optimizer, GB a rank": round(share * dimension * 16 / 1e9, 1),
                "peak, GB a rank": round(memory / 1e9, 1), "fits an H200": memory < FITS,
                "token vectors and optimizer, GB a rank": round(features * dimension * 12 / 1e9, 2),
                "sent, MB a step and rank": {name: round(size / 1e6, 2) for name, size in step.sent().items()},
                "compute, ms": round(1e3 * compute), "talk, ms": round(1e3 * talk, 1),
                "step, ms": round(1e3 * (compute + talk)), "tokens": token_ways(step),
            }  # fmt: skip
            record("label_ranks", figures, SEED)


# --- Accuracy ---------------------------------------------------------------------------------------------------------


def accuracy(data: str, changes: dict[str, str]) -> None:
    """Print the figures on test of a model that one process trains, and of one that several do."""
    model, ranks = changes["model"], int(changes["ranks"])
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, ranks):
            out, command = f"{folder}/{size}", [sys.executable, "-m", "zipfel"]
            words = ["--model", model, "--seed", str(SEED), "--device", "cpu", "--workers", str(size), "--out", out]
            subprocess.run([*command, "train", data, *words], check=True, stdout=subprocess.DEVNULL)
            told = ["evaluate", out, data, "--device", "cpu", "--json", f"{out}.json"]
            subprocess.run([*command, *told], check=True, stdout=subprocess.DEVNULL)
            report = orjson.loads(Path(f"{out}.json").read_bytes())
            figures[str(size)] = {name: report[name] for name in ("P@1", "P@5", "PSP@1", "PSP@5")}
    record("label_ranks", {"data": Path(data).name, "model": model, "preset": "default", "ranks": ranks,
                           "figures by number of ranks": figures}, SEED, ("torch",))  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run what the first argument says."""
    what, *rest = arguments or ["measure"]
    path = rest.pop(0) if what in ("rank", "accuracy") else ""
    changes = DEFAULTS | dict(argument.split("=", 1) for argument in rest)
    unknown = sorted(set(changes) - set(DEFAULTS))
    if what not in ("measure", "simulate", "accuracy", "rank") or unknown:
        raise SystemExit(
            f"expected measure, simulate or accuracy, and {', '.join(DEFAULTS)}; found {', '.join([what, *unknown])}"
        )
    if what == "rank":
        model = changes.pop("model")
        rank(model, {name: int(value) for name, value in changes.items()}, Path(path))
    elif what == "accuracy":
        accuracy(path, changes)
    else:
        {"measure": measure, "simulate": simulate}[what](changes)


if __name__ == "__main__":
    main(sys.argv[1:])
