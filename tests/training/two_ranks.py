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
from zipfel.models import decaf, glas, lightdxml, linear
from zipfel.models.base import Lesson, model_class, settings_of
from zipfel.training import trainer
from zipfel.training.ranks import Ranks, World
from zipfel.training.run import Run
from zipfel.types import Share

POINTS, FEATURES, LABELS, STEPS = 120, 40, 31, 100
TINY = {"dimension": 12, "batch_size": 11, "epochs": 12, "min_steps": 1}
LIGHT = {**TINY, "shortlist_size": 9, "negatives": 5}
MINED = {"negatives": "mined", "mined": "6", "rounds": "2"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "decoupled": ("decaf", {**TINY, "shortlist": "none", "dropout": 0.3}),
    "logistic": ("decaf", {**TINY, "shortlist": "none", "loss": "logistic", "label_bias": True, "relu": True}),
    "glas": ("glas", TINY),
    "light": ("lightdxml", {**LIGHT, "dropout": 0.3}),
    "light-logistic": ("lightdxml", {**LIGHT, "loss": "logistic", "shared_negatives": False, "relu": True}),
    "light-labels": ("lightdxml", {**LIGHT, "relu": True}),  # the steps of its label encoder
    "linear": ("linear", MINED),
    "linear-all": ("linear", {"negatives": "all", "loss": "logistic"}),
    "blend": ("blend", {"main": "lightdxml", "main_settings": {**LIGHT, "epochs": 3}, "linear_settings": MINED}),
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


def recorded(case: str, kind: torch.dtype, world: World, patch: Any) -> dict[str, Any]:
    """Return the loss of each step, the first step's gradients by table, the last weights, and what they cost."""
    name, changes = CASES[case]
    settings, start = settings_of(name, changes=changes), Run(seed=3).generator("start")
    own = (world.share(LABELS),) if world.splits else ()
    model = model_class(name)(FEATURES, LABELS, settings, start, *own)
    found: dict[str, Any] = {}
    if case == "light-labels":
        plain_centroids = model.centroids
        model.centroids = lambda *data: plain_centroids(*data).to(kind)

    def steps(run, stage, module, points, objective, schedule, validate=None, turn=None):  # type: ignore[no-untyped-def]
        if stage.startswith("labels") and case != "light-labels":
            return trainer.train(run, stage, module, points, objective, schedule)
        if turn is not None:
            turn(0, False)
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
            if len(losses) == 1:  # after a step, Adam's first moment is a tenth of the gradient
                moments = [moments["exp_avg"].flatten() for moments in training.optimizer.dense.state.values()]
                found["gradient of layers"] = 10 * torch.cat(moments)
        found["sent"] = {part: count // STEPS for part, count in training.sent.items()}
        tensors = [*model.state_dict().values(), *training.optimizer.state_dict().values()]
        rows = {LABELS} if not world.splits else {LABELS, world.share(LABELS).size}
        held = sum(tensor.nbytes for tensor in tensors if tensor.ndim and len(tensor) in rows)
        found["bytes of labels"] = int(world.max(torch.tensor(held)))
        found["losses"] = torch.tensor(losses, dtype=torch.float64)
        split = trainer.split_of(module)
        for key, value in module.state_dict().items():
            found[f"weight {key}"] = world.collected(value, split[key]) if key in split else value.clone()
        raise Recorded

    patch(steps)
    with suppress(Recorded):
        model.fit(lesson(), Run(seed=3, world=world))
    return found


def uneven(world: World) -> Share:
    """Return a range of labels, as ranks of linear classifiers have them: of unequal lengths."""
    return Share.balanced(world.rank, world.size, np.arange(LABELS, 0, -1.0))


def fitted(case: str, world: World, folder: Path, held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of a whole fit, joined on the first rank, and the ranking of the points it is validated on.

    held: gets the numbers of linear weights that the ranks have.
    """
    name, changes = CASES[case]
    changes = changes if name in ("linear", "blend") else {**changes, "epochs": 3}
    own = (uneven(world) if name == "linear" else world.share(LABELS),) if world.splits else ()
    model = model_class(name)(
        FEATURES, LABELS, settings_of(name, changes=changes), Run(seed=3).generator("start"), *own
    )
    data, run = lesson(), Run(folder, 3, world=world)
    run.open({"case": case})
    seen, unseen = (data.train.take(rows) for rows in np.split(np.arange(POINTS), [POINTS - 60]))
    model.fit(replace(data, train=seen, validation=unseen, whole=data.train), run)
    ranking = model.predictor().rank(data.train.X, 5)
    linear_part = getattr(model, "linear", model)
    if isinstance(linear_part, linear.Linear):
        held[case] = world.columns(torch.tensor([[len(linear_part.values)]]))
    if world.splits:
        model.join()
    return {"ids": torch.from_numpy(ranking.ids), **(model.tensors().all if world.is_first else {})}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    world: World = Ranks.met(torch.device("cpu")) if "RANK" in os.environ else World()

    def patch(steps: Any) -> None:
        decaf.train = glas.train = lightdxml.train = steps  # type: ignore[assignment]

    found = {
        f"{case} {kind}": recorded(case, kind, world, patch)
        for case in CASES
        if CASES[case][0] not in ("linear", "blend")
        for kind in (torch.float32, torch.float64)
    }
    decaf.train = glas.train = lightdxml.train = trainer.train
    whole = ("decoupled", "glas", "light", "linear", "linear-all", "blend")
    held: dict[str, torch.Tensor] = {}
    fits = {case: fitted(case, world, out.parent / f"{out.name}-{case}", held) for case in whole}
    linear.liblinear = None  # type: ignore[assignment]  # a second fit reads what the first one has kept
    fits["linear again"] = fitted("linear", world, out.parent / f"{out.name}-linear", {})
    if world.is_first:
        torch.save({"found": found, "fits": fits, "held": held, "sent": dict(world.sent)}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
