from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any

import orjson
import pytest
import torch

from zipfel.errors import ConfigError, DataError
from zipfel.training import run as run_file
from zipfel.training.progress import Growth, Observer, Progress
from zipfel.training.run import Run, part_of, read_state, with_prefix, write_state

INPUTS = {"model": "glas", "settings": {"dimension": 8, "dropout": 0.2}}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run", seed=3)
    assert run.open(INPUTS) is False
    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != ".lock"}


def test_a_stage_is_made_once_and_then_loaded(run):
    calls = []

    def make() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"a": torch.arange(3), "b": torch.tensor([0.1, float("nan")])}

    first = run.stage("walks", make)
    again = Run(run.folder, seed=3)
    assert again.open(INPUTS) is True
    second = again.stage("walks", make)
    assert len(calls) == 1
    assert second["a"].tolist() == first["a"].tolist() == [0, 1, 2]
    assert second["a"].dtype == torch.int64
    assert torch.equal(second["b"], first["b"]) or second["b"].isnan().tolist() == [False, True]


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run()
    assert run.open(INPUTS) is False
    run.log(stage="walks", epoch=1)
    values = iter([1, 2])
    assert [run.stage("walks", lambda: {"a": torch.tensor(next(values))})["a"].item() for _ in range(2)] == [1, 2]
    assert names(tmp_path) == set()


def test_the_observer_hears_of_a_stage_when_it_is_made_and_not_when_it_is_loaded(run):
    made: list[tuple[str, bool, Growth]] = []

    class Listener(Observer):
        def made(self, stage: str, seconds: float, grows_with: Growth) -> None:
            made.append((stage, 0.01 < seconds < 10, grows_with))

    def make() -> dict[str, torch.Tensor]:
        time.sleep(0.02)
        return {}

    for _ in range(2):
        run.observer = Listener()
        run.stage("tokens", make)
        run.stage("clusters", make, "labels")
    assert made == [("tokens", True, "points"), ("clusters", True, "labels")]


@pytest.mark.parametrize("opened_before", [False, True])
def test_a_run_that_was_not_opened_neither_resumes_nor_keeps_anything(tmp_path, opened_before):
    folder = tmp_path / "run"
    if opened_before:  # by another run, whose inputs may be others
        earlier = Run(folder)
        earlier.open(INPUTS)
        earlier.keep("walks", {"a": torch.ones(1)})
    kept = names(folder) if opened_before else set()
    run = Run(folder)
    assert not run.is_open
    uses: list[Callable[[], object]] = [
        lambda: run.load("walks"),
        lambda: run.stage("walks", dict),
        lambda: run.keep("walks", {}),
        lambda: run.forget("walks"),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"was not opened: call run\.open\(inputs\) first"):
            use()
    assert (names(folder) if folder.exists() else set()) == kept
    run.open(INPUTS)
    assert run.is_open
    assert (run.load("walks") is not None) == opened_before


def test_a_run_without_a_folder_needs_no_opening():
    assert Run().is_open
    assert Run().load("walks") is None


def test_prefixes_are_added_and_removed():
    state = {"a": torch.zeros(1), "b.c": torch.ones(1)}
    prefixed = with_prefix("x.", state)
    assert list(prefixed) == ["x.a", "x.b.c"]
    assert part_of({**prefixed, "y.a": torch.ones(1)}, "x.") == state


def test_notes_are_loaded_and_forgotten_results_are_not(run):
    run.keep("one", {"a": torch.ones(2)}, {"epoch": 2, "best": None})
    _, notes = run.load("one")
    assert notes == {"epoch": 2, "best": None}
    run.forget("one")
    run.forget("one")
    assert run.load("one") is None


@pytest.mark.parametrize(
    ("seed", "inputs", "message"),
    [
        (3, {**INPUTS, "model": "decaf"}, "model was 'glas' and is 'decaf'"),
        (3, {"model": "decaf", "settings": {"beam": 9}}, "inputs: model was 'glas' and is 'decaf'; name"),
        (3, {**INPUTS, "settings": {"dimension": 9, "dropout": 0.2}}, "inputs: dimension was 8 and is 9; name"),
        (3, {**INPUTS, "more": 1}, "more was None and is 1"),
        (3, {"model": "glas"}, "dimension was 8 and is None, dropout was 0.2 and is None"),
        (4, INPUTS, "seed was 3 and is 4"),
    ],
)
def test_other_inputs_are_refused(run, seed, inputs, message):
    run.keep("walks", {"a": torch.ones(1)})
    with pytest.raises(ConfigError, match=message) as caught:
        Run(run.folder, seed).open(inputs)
    assert "--fresh" in str(caught.value)
    assert str(run.folder) in str(caught.value)
    assert run.load("walks") is not None


def test_a_second_process_is_kept_out_until_the_first_ends(run):
    code = (
        "import sys; from pathlib import Path; from zipfel.training.run import Run\n"
        f"Run(Path({str(run.folder)!r}), seed=3).open({INPUTS!r}); print('in', flush=True); sys.stdin.read()"
    )
    refused = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, check=False)
    assert "another process is training" in refused.stderr
    os.close(run_file._locks.pop(run.folder / ".lock"))
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(ConfigError, match="another process is training"):
            Run(run.folder, seed=3).open(INPUTS)
        other.kill()
    Run(run.folder, seed=3).open(INPUTS)


def test_fresh_starts_over_and_leaves_other_files(run):
    run.keep("walks", {"a": torch.ones(1)})
    run.log(stage="walks")
    (run.folder / "notes.txt").write_text("mine")
    (run.folder / "sub").mkdir()
    other = Run(run.folder, seed=4)
    assert other.open(INPUTS, fresh=True) is False
    assert names(run.folder) == {"run.json", "notes.txt", "sub"}
    other.keep("walks", {"a": torch.ones(1)})
    assert Run(run.folder, seed=4).open(INPUTS) is True


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_somebody_else_is_never_touched(tmp_path, fresh):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "weights.safetensors").write_bytes(b"not ours")
    (tmp_path / ".film.mkv.part").write_bytes(b"half a download")
    with pytest.raises(ConfigError, match="not the folder of a run"):
        Run(tmp_path).open(INPUTS, fresh=fresh)
    assert names(tmp_path) == {"thesis.tex", "weights.safetensors", ".film.mkv.part"}


def test_a_file_instead_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(DataError, match="cannot be the folder of a run"):
        Run(tmp_path / "run").open(INPUTS)


def test_an_empty_folder_is_accepted_and_so_is_one_of_a_run_killed_at_its_start(tmp_path):
    (tmp_path / ".run.json.123.part").write_bytes(b"{")
    assert Run(tmp_path).open(INPUTS) is False
    assert names(tmp_path) == {"run.json"}


def test_half_written_files_of_a_killed_run_are_removed(run):
    (run.folder / ".glas.checkpoint.safetensors.123.part").write_bytes(b"half")
    (run.folder / ".tmpZVZySH").write_bytes(b"half, as safetensors leaves it")
    run.keep("walks", {"a": torch.ones(1)})
    assert Run(run.folder, 3).open(INPUTS) is True
    assert names(run.folder) == {"run.json", "walks.safetensors"}


def test_a_run_killed_before_its_first_result_does_not_block_other_inputs(run):
    """Killed in the first epoch: a log, and half of a checkpoint, but nothing to resume from."""
    run.log(stage="glas", epoch=1)
    (run.folder / ".glas.checkpoint.safetensors.123.part").write_bytes(b"half")
    other = {**INPUTS, "model": "decaf"}
    assert Run(run.folder, seed=4).open(other) is False
    assert names(run.folder) == {"run.json"}
    again = Run(run.folder, seed=4)
    assert again.open(other) is False
    again.keep("walks", {"a": torch.ones(1)})
    with pytest.raises(ConfigError, match="model was 'decaf' and is 'glas'"):
        Run(run.folder, seed=4).open(INPUTS)


def test_an_unreadable_run_json_without_results_does_not_block_either(run):
    (run.folder / "run.json").write_bytes(b"{")
    assert Run(run.folder, seed=3).open(INPUTS) is False


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"[1, 2]"])
def test_a_broken_run_json_is_reported(run, content):
    run.keep("walks", {"a": torch.ones(1)})
    (run.folder / "run.json").write_bytes(content)
    with pytest.raises(DataError, match=r"run\.json: is unreadable .*start over with --fresh"):
        Run(run.folder, 3).open(INPUTS)
    assert Run(run.folder, 3).open(INPUTS, fresh=True) is False


@pytest.mark.parametrize("cut", [0, 5, 60, -1])
def test_a_broken_file_of_tensors_is_reported(run, cut):
    run.keep("walks", {"a": torch.ones(100)})
    path = run.folder / "walks.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"walks\.safetensors: not a file of tensors"):
        run.load("walks")


def test_keeping_is_all_or_nothing(run, monkeypatch):
    run.keep("walks", {"a": torch.ones(3)}, {"epoch": 1})

    def full(state: Any, name: str, metadata: Mapping[str, str]) -> None:
        Path(name).write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_file, "save_file", full)
    with pytest.raises(DataError, match="No space left"):
        run.keep("walks", {"a": torch.zeros(3)}, {"epoch": 2})
    state, notes = run.load("walks")
    assert (state["a"].tolist(), notes) == ([1, 1, 1], {"epoch": 1})
    assert names(run.folder) == {"run.json", "walks.safetensors"}


def test_a_state_that_is_in_use_can_be_replaced_and_changed(tmp_path):
    path = tmp_path / "a.safetensors"
    write_state(path, {"a": torch.ones(1000)}, {})
    old, _ = read_state(path)
    write_state(path, {"a": torch.full((1000,), 2.0)}, {})
    assert old["a"].sum() == 1000
    old["a"] += 5
    assert read_state(path)[0]["a"].sum() == 2000


def test_a_view_is_kept_as_its_own_numbers(run):
    base = torch.arange(12).view(3, 4)
    run.keep("views", {"transposed": base.T, "row": base[1]})
    state, _ = run.load("views")
    assert state["transposed"].tolist() == base.T.tolist()
    assert state["row"].tolist() == [4, 5, 6, 7]


def test_the_log_grows_by_lines_and_reaches_the_progress(tmp_path):
    logged: list[Mapping[str, Any]] = []

    class Listener(Progress):
        def log(self, values: Mapping[str, Any]) -> None:
            logged.append(values)

    for epoch in (1, 2):
        run = Run(tmp_path / "run", 0, Listener())
        run.open({})
        run.log(stage="a\nb", epoch=epoch, validation=None)
        run.keep("a", {"a": torch.ones(1)})
    lines = (tmp_path / "run" / "log.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == logged
    assert [values["epoch"] for values in logged] == [1, 2]


def test_draws_depend_on_seed_stage_epoch_and_step_only(tmp_path):
    def drawn(run: Run, *position: Any) -> tuple[float, float]:
        return run.numbers(*position).random(), torch.rand((), generator=run.generator(*position)).item()

    positions = [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 1, 1), ("b", 0, 0), ("b", 1, 0)]
    run = Run(seed=3)
    first = [drawn(run, *position) for position in positions]
    other = Run(tmp_path / "elsewhere", seed=3)
    torch.manual_seed(99)
    assert [drawn(other, *position) for position in reversed(positions)] == first[::-1]
    everything = [*first, *(drawn(Run(seed=4), *position) for position in positions)]
    assert len({number for number, _ in everything}) == len({number for _, number in everything}) == 2 * len(positions)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ConfigError, match="seed must be"):
        Run(seed=seed)
