from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import settings

settings.register_profile("zipfel", deadline=None, derandomize=True)  # a busy machine is no reason to fail
settings.load_profile("zipfel")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Keep small models off a second core: where that is busy, waiting for it costs more than the arithmetic."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def zipfel_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run the command line in this process, through the same door as a shell does."""
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
