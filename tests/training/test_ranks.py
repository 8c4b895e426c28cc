"""Two processes that split the labels train as one does: losses, gradients, weights, rankings, and files of a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from benchmarks.label_ranks import Step, layers_of
from zipfel.models.linear import Linear
from zipfel.models.linear_split import entries_to_read, of_own_labels
from zipfel.nn.encoders import dropped, own_normals
from zipfel.training.ranks import Ranks, World
from zipfel.training.run import write_state
from zipfel.training.together import read_together, write_together
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
    assert [process.wait(timeout=600) for process in processes] == [0, 0, 0]
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


def test_a_rank_of_two_holds_half_of_the_classifiers_and_of_their_optimizer(both: tuple[Any, Any, Path]):
    one, two, _ = both
    for case, alone in one["found"].items():
        assert alone["bytes of labels"] >= 31 * 12 * 4
        assert two["found"][case]["bytes of labels"] <= 0.55 * alone["bytes of labels"], case


def test_what_a_step_sends_is_counted_and_is_what_the_docs_say(both: tuple[Any, Any, Path]):
    one, two, _ = both
    assert not any(alone["sent"] for alone in one["found"].values())
    for case, model in (("decoupled", "decaf"), ("light", "lightdxml")):
        sent = two["found"][f"{case} torch.float32"]["sent"]
        points, tokens = sent["gradients of points"] / (12 * 4), sent["gradients of tokens"] / (12 * 4)
        computed = Step(points, 12, tokens, layers_of(model, 12), ranks=2).sent()
        assert 10 <= points <= 13
        assert 30 < tokens <= 40
        for name in ("points", "gradients of layers", "sums over labels"):
            assert sent[name] == pytest.approx(computed[name], rel=0.02), (case, name)


def test_a_whole_fit_with_validation_ends_with_the_same_model(both: tuple[Any, Any, Path]):
    one, two, _ = both
    for case, alone in one["fits"].items():
        split = two["fits"][case]
        assert alone.keys() == split.keys()
        assert (alone["ids"] == split["ids"]).float().mean() > 0.99  # ranked while labels were split
        within = 1e-3 if case == "linear-all" else 1e-5  # Newton's method stops once a label is close enough
        for name, value in alone.items():
            exact = name != "ids" and not value.is_floating_point()  # such as the features that have a weight
            torch.testing.assert_close(split[name], value, rtol=0, atol=0 if exact else within, msg=f"{case} {name}")


def test_linear_classifiers_are_the_same_and_are_read_from_a_run(both: tuple[Any, Any, Path]):
    one, two, _ = both
    for case in ("linear", "linear again"):
        assert all(torch.equal(one["fits"]["linear"][name], value) for name, value in two["fits"][case].items())


@pytest.mark.parametrize("case", ["linear", "linear-all"])
def test_linear_ranks_end_with_as_many_weights_each_whatever_range_they_began_with(
    both: tuple[Any, Any, Path], case: str
):
    one, two, _ = both
    assert two["held"][case].shape == (1, 2)
    assert two["held"][case].sum() == one["held"][case].sum()
    assert two["held"][case].max() <= 0.53 * one["held"][case].sum()


def test_linear_ranks_have_about_as_many_weights_each_though_frequent_labels_come_first():
    points = (10_000 / np.arange(1, 2001)).astype(int)
    weights = np.minimum(points**0.8, 5000)
    for size in (2, 3, 4):
        shares = [Linear.shared(Ranks(rank, size), points.tolist()) for rank in range(size)]
        assert [share.start for share in shares[1:]] == [share.stop for share in shares[:-1]]
        assert all(weights[share.rows].sum() <= 1.1 / size * weights.sum() for share in shares)
        assert shares[0].size < 2000 // size // 3


def test_ranges_of_equal_cost_leave_each_rank_a_row():
    costs = np.array([5.0, 0, 0, 0, 90])
    assert [Share.balanced(rank, 4, costs)[:2] for rank in range(4)] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert [Share.balanced(rank, 4, costs[::-1])[:2] for rank in range(4)] == [(0, 1), (1, 2), (2, 3), (3, 5)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_weights_of_any_length(both: tuple[Any, Any, Path], ranks: int):
    path = both[2] / "two-linear" / "linear-1.safetensors"
    whole, _ = read_together(both[2] / "one-linear" / "linear-1.safetensors", {})
    assert whole["W.indptr"].diff().unique().numel() > 3
    shares = [Share.of(rank, ranks, 31) for rank in range(ranks)]
    states = [of_own_labels(read_together(path, entries_to_read(share))[0], share) for share in shares]
    for name in ("W.indices", "W.data", "bias"):
        assert torch.equal(torch.cat([state[name] for state in states]), whole[name])
    assert torch.equal(torch.cat([state["W.indptr"].diff() for state in states]), whole["W.indptr"].diff())


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


class Thread(World):
    """A rank that is a thread of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size, self.is_first, self.barrier = rank, barrier.parties, rank == 0, barrier

    def first(self, work: Any) -> Any:
        return self.all(work if self.is_first else lambda: None)

    def all(self, work: Any) -> Any:
        result = work()
        self.barrier.wait(timeout=30)
        return result


@pytest.mark.parametrize("writers", [1, 2, 3, 4])
def test_files_do_not_depend_on_the_number_of_ranks(tmp_path: Path, writers: int):
    whole, barrier = (
        {"rows": torch.rand(31, 5), "bias": torch.rand(31), "layer": torch.rand(7)},
        threading.Barrier(writers),
    )

    def write(rank: int) -> None:
        own = Share.of(rank, writers, 31)
        state = {name: value[own.rows] if len(value) == 31 else value for name, value in whole.items()}
        write_together(tmp_path / "file", state, {"epoch": 3}, {"rows": own, "bias": own}, Thread(rank, barrier))

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write_state(tmp_path / "alone", whole, {"epoch": 3})
    for path in (tmp_path / "file", tmp_path / "alone"):
        for readers in (1, 2, 3, 4):
            for own in (Share.of(rank, readers, 31) for rank in range(readers)):
                state, notes = read_together(path, {"rows": own, "bias": own})
                assert notes == {"epoch": 3}
                assert all(torch.equal(state[name], whole[name][own.rows]) for name in ("rows", "bias"))
                assert torch.equal(state["layer"], whole["layer"])


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
