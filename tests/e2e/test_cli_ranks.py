"""`zipfel train` in several processes: the same model as one process makes, and ends that users understand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import zipfel
from zipfel.data.synthetic import Synthetic, make
from zipfel.evaluate import evaluate
from zipfel.training.run import read_state

FAULTS = Path(__file__).parent / "rank_faults"
STAGE = "module-4-0.safetensors"
SETTINGS = {"shortlist": "none", "dimension": 12, "batch_size": 12, "epochs": 6, "min_steps": 1}
STEPS = 120  # 20 an epoch
RESUME = "run the same command again to resume"


class Ended(NamedTuple):
    code: int
    lines: list[str]  # of standard error, without those of epochs
    out: Path
    losses: list[float]
    seconds: float  # after the last step


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "data"
    zipfel.write(make(Synthetic(points=330, labels=20, noise=0.2, seed=1)), folder, "npz")
    return folder


def command(data: Path, out: Path, *more: str) -> list[str]:
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    return [
        "train",
        str(data),
        "--out",
        str(out),
        "--seed",
        "7",
        "--threads",
        "1",
        "--model",
        "decaf",
        *settings,
        *more,
    ]


def ended(words: list[str], out: Path, torchrun: int = 0, **wanted: Any) -> Ended:
    """Run the command line in processes of its own, with a fault maybe."""
    record = out.with_name(f"{out.name}.losses")
    record.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["PYTHONPATH"] = os.pathsep.join([str(FAULTS), environment.get("PYTHONPATH", "")])
    environment["ZIPFEL_TEST"] = json.dumps({"record": str(record), **wanted})
    environment["OMP_NUM_THREADS"] = "1"
    first = [sys.executable, "-m"]
    if torchrun:
        first += [
            "torch.distributed.run",
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={torchrun}",
            "-m",
        ]
    run = subprocess.run([*first, "zipfel", *words], capture_output=True, text=True, env=environment, timeout=240)
    lines = [line for line in run.stderr.splitlines() if ", epoch " not in line and "resumed" not in line]
    texts = record.read_text().splitlines() if record.exists() else []
    last = record.stat().st_mtime if record.exists() else time.time()
    losses = [sum(json.loads(text).values()) for text in texts]
    return Ended(run.returncode, lines, out, losses, time.time() - last)


@pytest.fixture(scope="module")
def alone(data: Path) -> Ended:
    out = data.parent / "alone"
    return ended(command(data, out), out, alone=True)


@pytest.fixture(scope="module")
def two(data: Path) -> Ended:
    out = data.parent / "two"
    return ended(command(data, out, "--workers", "2"), out)


@pytest.fixture(scope="module")
def killed(data: Path) -> Ended:
    out = data.parent / "killed"
    return ended(command(data, out, "--workers", "2"), out, fault="kill", rank=1, step=70)


@pytest.fixture
def copied(killed: Ended) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(killed.out, killed.out.with_name(name)))


def weights(ended: Ended) -> dict[str, torch.Tensor]:
    return read_state(ended.out / "run" / STAGE)[0]


def figures(ended: Ended, data: Path) -> dict[str, float]:
    dataset, tagger = zipfel.read(data), zipfel.Tagger.load(ended.out / "model", device="cpu")
    return evaluate(tagger.rank(dataset.test.X, 5), dataset, "test", [1]).values


def test_two_ranks_make_the_model_of_one_process(data: Path, alone: Ended, two: Ended):
    assert (alone.code, two.code) == (0, 0), (alone.lines, two.lines)
    assert two.lines == alone.lines == []  # only the first rank prints, and nothing but epochs
    assert len(two.losses) == STEPS
    np.testing.assert_allclose(two.losses, alone.losses, rtol=1e-9)
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(two)[name], value, rtol=0, atol=1e-7, msg=name)
    one, split = figures(alone, data), figures(two, data)
    assert one["P@1"] > 50
    assert split["P@1"] == pytest.approx(one["P@1"], abs=0.5)
    assert split["PSP@1"] == pytest.approx(one["PSP@1"], abs=0.5)


def test_a_killed_rank_ends_all_with_one_line(killed: Ended):
    assert killed.code == 1
    assert killed.seconds < 30
    (line,) = killed.lines
    assert line.startswith("error: rank 1 of 2 (process ")
    assert "was killed by SIGKILL" in line
    assert line.endswith(RESUME)
    assert not (killed.out / "model").exists()
    assert list((killed.out / "run").glob("*.checkpoint.safetensors"))


def test_the_same_command_resumes_bit_for_bit_also_with_torchrun(data: Path, two: Ended, copied: Any):
    out = copied("resumed")
    again = ended(command(data, out), out, torchrun=2)
    assert again.code == 0, again.lines
    assert again.losses == two.losses[STEPS - len(again.losses) :]
    assert 0 < len(again.losses) < STEPS
    for name, value in weights(two).items():
        assert torch.equal(weights(again)[name], value), name


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_another_number_of_ranks_resumes(data: Path, two: Ended, copied: Any, ranks: int):
    out = copied(f"resumed-{ranks}")
    again = ended(command(data, out, "--workers", str(ranks)), out, alone=True)
    assert again.code == 0, again.lines
    np.testing.assert_allclose(again.losses, two.losses[STEPS - len(again.losses) :], rtol=1e-9)
    assert 0 < len(again.losses) < STEPS
    for name, value in weights(two).items():
        torch.testing.assert_close(weights(again)[name], value, rtol=0, atol=1e-7, msg=name)


def test_torchrun_says_which_rank_was_killed(data: Path, copied: Any):
    out = copied("killed-again")
    again = ended(command(data, out), out, torchrun=2, fault="kill", rank=1, step=90)
    assert again.code != 0
    ours = [line for line in again.lines if line.startswith("error: ")]
    assert len(ours) == 1, again.lines
    assert ours[0].startswith("error: rank 1 of 2 (process ")
    assert ours[0].endswith(f"died; {RESUME}")


def test_ctrl_c_leaves_the_best_model(data: Path):
    out = data.parent / "interrupted"
    stopped = ended(command(data, out, "--workers", "2"), out, fault="interrupt", rank=0, step=50)
    assert stopped.code == 130
    assert stopped.lines == ["stopped by Ctrl-C: the model is saved as it is; run the same command to resume"]
    assert len(stopped.losses) == 51
    assert figures(stopped, data)["P@1"] > 30
    assert list((out / "run").glob("*.checkpoint.safetensors"))


def test_a_full_disk_of_one_rank_ends_all_with_one_line(data: Path):
    out = data.parent / "full"
    full = ended(command(data, out, "--workers", "2"), out, fault="full", rank=1, step=30)
    assert full.code == 2
    (line,) = full.lines
    assert line.startswith("error: rank 1 on ")
    assert "module-4-0.checkpoint.safetensors: rank 1 cannot write it: File too large" in line
    kept = read_state(out / "run" / "module-4-0.checkpoint.safetensors")[1]
    assert kept["epoch"] == 1  # the one of the epoch before
    assert not list((out / "run").glob(".*.part"))
    assert not (out / "model").exists()


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("seed", "error: rank 1 was started with another seed than rank 0: 8, not 7"),
        ("data", "error: rank 1 was started with another data than rank 0: '[0-9a-f]+', not '[0-9a-f]+'"),
        ("version", rf"error: rank 1 on \S+ has zipfel 0\.0, but rank 0 has {re.escape(zipfel.__version__)}"),
    ],
    ids=["seed", "data", "version"],
)
def test_a_rank_that_was_started_otherwise_is_refused(data: Path, fault: str, line: str):
    out, other = data.parent / f"refused-{fault}", data.parent / "other"
    if fault == "data":
        zipfel.write(make(Synthetic(points=330, labels=20, noise=0.2, seed=2)), other, "npz")
    refused = ended(command(data, out, "--workers", "2"), out, fault=fault, rank=1, other=str(other))
    assert (refused.code, len(refused.lines)) == (2, 1), refused.lines
    assert re.fullmatch(line, refused.lines[0]), refused.lines
    assert not out.exists()


@pytest.mark.parametrize("local", ["0", "1"])
def test_a_first_rank_that_is_not_there_is_one_line_a_machine(data: Path, local: str):
    out = data.parent / "apart"
    meeting = {"RANK": "5", "LOCAL_RANK": local, "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    environment = {**os.environ, **meeting, "ZIPFEL_MEETING_SECONDS": "0.5"}
    words = [sys.executable, "-m", "zipfel", *command(data, out)]
    run = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert run.returncode == 2
    line = r"error: rank 5 of 8 on \S+ cannot reach the first one at 127\.0\.0\.1:1: .* for 0\.5 seconds\n"
    assert re.fullmatch(line if local == "0" else "", run.stderr)
    assert not out.exists()


def test_a_model_that_cannot_split_its_labels_says_so(data: Path):
    out = data.parent / "mnn"
    refused = ended([word if word != "decaf" else "mnn" for word in command(data, out)[:10]] + ["--workers", "2"], out)
    assert refused.code == 2
    (line,) = refused.lines
    assert line.startswith("error: mnn is trained by one process; several ranks can train glas")
    assert not out.exists()


def test_more_workers_than_labels_and_none_at_all(data: Path, zipfel_command: Any):
    outcome = zipfel_command(*command(data, data.parent / "none", "--workers", "0"))
    assert (outcome.code, outcome.err) == (2, "error: workers must be at least 1; found 0\n")
