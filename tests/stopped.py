"""Runs that stop at a chosen step, as a killed process does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zipfel.training.run import Run, State


class Stop(Exception):  # noqa: N818
    """A run has stopped."""


def stops_after(times: int, stage: str = "") -> Callable[[Run], None]:
    """Stop a run right after it has kept results `times` times: of one stage, or of any."""

    def prepare(run: Run) -> None:
        plain, left = run.keep, list(range(times))

        def keep(name: str, state: State, notes: Mapping[str, Any] | None = None, split: Any = None) -> None:
            plain(name, state, notes)
            if name == (stage or name):
                left.pop()
                if not left:
                    raise Stop

        run.keep = keep  # type: ignore[method-assign]

    return prepare
