from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from tests.hub import StandIn

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores, and so do the processes that their tests start
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts a job in the background has it ignore Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("zipfel", deadline=None, derandomize=True)  # a busy machine is no reason to fail
settings.register_profile("mutants", settings.get_profile("zipfel"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("zipfel")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Keep small models off a second core: where that is busy, waiting for it costs more than the arithmetic."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def in_other_processes() -> Callable[[str, Path], set[str]]:
    """Return the output of code, which may import from a folder of tests, in processes with different hash seeds."""

    def printed(code: str, folder: Path) -> set[str]:
        found = set()
        for hash_seed in ("1", "2"):
            folders = os.pathsep.join([str(folder), *sys.path])
            environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": folders}
            run = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
            )
            assert run.stderr == ""  # nor does gensim say anything
            found.add(run.stdout.strip())
        return found

    return printed


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def zipfel_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run the command line in this process."""
    from zipfel.cli.main import main

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["zipfel", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "120")
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """Start a stand-in for the Hugging Face Hub, which the library uses then, with a token that may write."""
    from huggingface_hub import constants

    from tests.hub import StandIn

    home = tmp_path_factory.mktemp("home")
    with StandIn() as hub:
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for name, value in {
            "ENDPOINT": hub.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "hf_writer")
        yield hub


@pytest.fixture
def nothing_is_learned_again(zipfel_command: Callable[..., Outcome]) -> Callable[..., None]:
    """Train once more, in a folder whose run is done: the model stays as it is, bit for bit."""

    def check(words: list[object], folder: Path) -> None:
        kept = {path: path.read_bytes() for path in (folder / "model").rglob("*.safetensors")}
        again = zipfel_command(*words)
        assert again.code == 0
        assert "epoch 4" not in again.err
        assert len(kept) == 2
        assert all(path.read_bytes() == content for path, content in kept.items())
        assert zipfel_command("verify", folder).code == 0

    return check
