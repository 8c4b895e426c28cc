"""One rank of those that tests start: trains small models for some steps, and writes what each step did to a file.

Run as `python two_ranks.py OUT`, alone or with RANK and WORLD_SIZE: the files must agree.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.models import decaf, glas
from zipfel.models.base import Lesson, model_class, settings_of
from zipfel.training import trainer
from zipfel.training.ranks import Ranks, World
from zipfel.training.run import Run

POINTS, FEATURES, LABELS, STEPS = 120, 40, 31, 100
TINY = {"dimension": 12, "batch_size": 11, "epochs": 12, "min_steps": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "decoupled": ("decaf", {**TINY, "shortlist": "none", "dropout": 0.3}),
    "logistic": ("decaf", {**TINY, "shortlist": "none", "loss": "logistic", "label_bias": True, "relu": True}),
    "glas": ("glas", TINY),
    "glas-pool": ("glas", {**TINY, "pool": 8, "weight_norm": True, "layers": 2, "nonlinear": True}),
}


def lesson() -> Lesson:
    numbers = np.random.default_rng(0)
    X = csr_array((numbers.random((POINTS, FEATURES)) * (numbers.random((POINTS, FEATURES)) < 0.2)).astype(np.float32))
    Y = csr_array((numbers.random((POINTS, LABELS)) < 0.08).astype(np.float32))
    Z = csr_array((numbers.random((LABELS, FEATURES)) < 0.1).astype(np.float32))
    filtered = csr_array((numbers.random((POINTS, LABELS)) < 0.02).astype(np.float32))
    return Lesson(Part(Y, X=X, filtered=filtered), None, None, None, Z)


class Recorded(Exception):  # noqa: N818
    pass


def recorded(case: str, kind: torch.dtype, world: World, patch: Any) -> dict[str, torch.Tensor]:
    """Return the loss of each step, the first step's gradients by table, and the last weights."""
    name, changes = CASES[case]
    settings, start = settings_of(name, changes=changes), Run(seed=3).generator("start")
    own = (world.share(LABELS),) if world.splits else ()
    model = model_class(name)(FEATURES, LABELS, settings, start, *own)
    found: dict[str, torch.Tensor] = {}

    def steps(run, stage, module, points, objective, schedule, *more):  # type: ignore[no-untyped-def]
        module.to(kind).train()
        training = trainer._Training(run, stage, module, points, objective, schedule, None, None)
        tables = {id(table.rows): (name, table) for name, table in training.optimizer.tables.items()}
        plain, losses = training.optimizer.update_rows, []

        def update(table, state, ids, gradient, rate):  # type: ignore[no-untyped-def]
            if training.optimizer.steps == 1:
                full = torch.zeros_like(table)
                full[slice(None) if ids is None else ids] = gradient
                label, holder = tables[id(table)]
                whole = full if holder.own is None else world.collected(full, holder.own)
                found[f"gradient {label}"] = whole
            plain(table, state, ids, gradient, rate)

        training.optimizer.update_rows = update
        while len(losses) < STEPS:
            epoch, step = divmod(len(losses), training.steps_an_epoch)
            order = trainer.drawn(points, run.numbers(stage, epoch))
            training.sums, training.summed = {}, 0
            training._step(order[step :: training.steps_an_epoch], epoch, step)
            losses.append(sum(training._losses().values()))
        found["losses"] = torch.tensor(losses, dtype=torch.float64)
        split = trainer.split_of(module)
        for key, value in module.state_dict().items():
            found[f"weight {key}"] = world.collected(value, split[key]) if key in split else value.clone()
        raise Recorded

    patch(steps)
    with suppress(Recorded):
        model.fit(lesson(), Run(seed=3, world=world))
    return found


def fitted(case: str, world: World, folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a whole fit, joined on the first rank, and the ranking of the points it is validated on."""
    name, changes = CASES[case]
    changes = {**changes, "epochs": 3}
    own = (world.share(LABELS),) if world.splits else ()
    model = model_class(name)(
        FEATURES, LABELS, settings_of(name, changes=changes), Run(seed=3).generator("start"), *own
    )
    data, run = lesson(), Run(folder, 3, world=world)
    run.open({"case": case})
    model.fit(replace(data, validation=data.train), run)
    ranking = model.predictor().rank(data.train.X, 5)
    if world.splits:
        model.join()
    return {"ids": torch.from_numpy(ranking.ids), **(model.tensors().all if world.is_first else {})}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    world: World = Ranks.met(torch.device("cpu")) if "RANK" in os.environ else World()

    def patch(steps: Any) -> None:
        decaf.train = glas.train = steps  # type: ignore[assignment]

    found = {
        f"{case} {kind}": recorded(case, kind, world, patch)
        for case in CASES
        for kind in (torch.float32, torch.float64)
    }
    decaf.train, glas.train = trainer.train, trainer.train
    fits = {case: fitted(case, world, out.parent / f"{out.name}-{case}") for case in ("decoupled", "glas")}
    if world.is_first:
        torch.save({"found": found, "fits": fits, "sent": dict(world.sent)}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
