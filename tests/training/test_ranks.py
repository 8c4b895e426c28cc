"""Two processes that split the labels train as one does: losses, gradients, weights, rankings, and files of a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from zipfel.nn.encoders import dropped, own_normals
from zipfel.training.ranks import World
from zipfel.training.together import read_together
from zipfel.types import Share

WORKER = Path(__file__).with_name("two_ranks.py")


def started(out: Path, **more: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.Popen([sys.executable, str(WORKER), str(out)], env=environment)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [started(folder / "two", **meeting, RANK=str(rank)) for rank in range(2)] + [started(folder / "one")]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    return torch.load(folder / "one"), torch.load(folder / "two"), folder


def test_steps_of_two_ranks_are_those_of_one_process(both: tuple[Any, Any, Path]):
    one, two, _ = both
    for case, alone in one["found"].items():
        split, exact = two["found"][case], case.endswith("float64")
        assert alone.keys() == split.keys()
        assert len(alone["losses"]) == 100
        torch.testing.assert_close(split["losses"], alone["losses"], rtol=1e-9 if exact else 1e-4, atol=0, msg=case)
        for name in (name for name in alone if name.startswith("gradient")):
            difference = (split[name] - alone[name]).abs().max() / alone[name].abs().max()
            assert difference < 1e-6, (case, name)
        for name in (name for name in alone if exact and name.startswith("weight")):
            torch.testing.assert_close(split[name], alone[name], rtol=0, atol=1e-7, msg=f"{case} {name}")


def test_a_whole_fit_with_validation_ends_with_the_same_model(both: tuple[Any, Any, Path]):
    one, two, _ = both
    for case, alone in one["fits"].items():
        split = two["fits"][case]
        assert alone.keys() == split.keys()
        assert (alone["ids"] == split["ids"]).float().mean() > 0.99  # ranked while labels were split
        for name, value in alone.items():
            assert split[name].shape == value.shape, (case, name)
            if value.is_floating_point():
                torch.testing.assert_close(split[name], value, rtol=0, atol=1e-3, msg=f"{case} {name}")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_what_two_have_written(both: tuple[Any, Any, Path], ranks: int):
    path = both[2] / "two-decoupled" / "module-4-0.safetensors"
    with safe_open(path, framework="pt") as file:
        whole = file.get_tensor("refinement.rows")
    assert whole.shape == (31, 12)
    assert whole.any(dim=1).all()
    shares = [Share.of(rank, ranks, 31) for rank in range(ranks)]
    parts = [read_together(path, {"refinement.rows": share})[0]["refinement.rows"] for share in shares]
    assert torch.equal(torch.cat(parts), whole)


def test_a_rank_draws_its_rows_of_what_one_process_draws():
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    whole = torch.empty(50_001, 37).normal_(0, 0.5, generator=seeded())  # more than are drawn at a time
    kept = dropped(torch.ones(50_001, 37), 0.4, seeded())
    for share in (Share.of(rank, 3, 50_001) for rank in range(3)):
        assert torch.equal(own_normals(share, 37, seeded(), 0.5), whole[share.rows])
        assert torch.equal(dropped(torch.ones(share.size, 37), 0.4, seeded(), share), kept[share.rows])


def test_one_process_talks_to_nobody():
    world, values = World(), torch.arange(3.0)
    assert world.gather(values, 3) is values
    assert world.log_sum(values) is values
    assert not world.sent
