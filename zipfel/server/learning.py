"""Learn from documents: they join the points that a model remembers, and the model is saved and served.

No weight changes. Each process of a service loads the model from its folder, so the folder is the one truth: it is
locked, changed as a whole, and then all processes load it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path

from zipfel import persistence
from zipfel.errors import ConfigError, DataError, ZipfelError, quoted
from zipfel.fitting import check_remembers
from zipfel.server import log
from zipfel.server.answers import Problem, busy
from zipfel.server.catalog import Loaded, Slot
from zipfel.server.service import Service
from zipfel.tagger import Tagger

OFF = Problem(403, "this service does not learn; its option --learn lets models that remember points learn")

WAITING = 8  # requests that may wait to be learned; their documents are in memory, even if their clients have left

TASK = "learn"  # name of the tasks

FAILED = Problem(503, "nothing was learned: the server cannot change the model; its log has the reason")


def check(service: Service, slot: Slot) -> None:
    """Raise Problem 403 if the service may not learn, or if the model cannot."""
    if not service.settings.learn:
        raise OFF
    fitted = slot.current.tagger.fitted_
    assert fitted is not None
    try:
        check_remembers(fitted.blueprint.choice, fitted.blueprint.settings)
    except ConfigError as problem:
        raise Problem(403, str(problem)) from None


def check_known(loaded: Loaded, subjects: Sequence[Sequence[str]]) -> None:
    """Raise Problem 400 for a subject that is no label of the model."""
    for place, names in enumerate(subjects):
        unknown = next((name for name in names if name not in loaded.label_ids), None)
        if unknown is not None:
            raise Problem(400, f"document {place}: unknown subject {quoted(unknown, 200)}; nothing was learned")


async def learn(service: Service, slot: Slot, texts: Sequence[str | dict[str, str]], tags: list[list[str]]) -> None:
    """Return when the model has learned and is served; a client that leaves earlier changes nothing of that."""
    if sum(task.get_name() == TASK for task in service.tasks) >= WAITING:
        raise busy(f"{WAITING} requests wait to be learned")
    task = asyncio.create_task(_learn(service, slot, texts, tags), name=TASK)
    service.keep(task)
    await asyncio.shield(task)


async def _learn(service: Service, slot: Slot, texts: Sequence[str | dict[str, str]], tags: list[list[str]]) -> None:
    async with service.swapping:
        try:
            newer = await asyncio.get_running_loop().run_in_executor(service.swapper, _changed, slot, texts, tags)
        except (ZipfelError, OSError) as error:
            log.line("not learned", level="error", model=slot.id, error=str(error))
            raise FAILED from None
        service.put(slot, newer)
    parent = parent_process()
    if parent is not None and parent.pid is not None:
        os.kill(parent.pid, signal.SIGHUP)  # the other processes load it, too


def _changed(slot: Slot, texts: Sequence[str | dict[str, str]], tags: list[list[str]]) -> Loaded:
    """Add points to the saved model, and load it."""
    with _locked(persistence.located(slot.folder)) as folder:
        tagger = Tagger.load(folder, device=slot.device)
        tagger.partial_fit(_columns(texts, tagger.source_.fields), tags).save(folder, replace=True)
    newer = slot.newer()
    if newer is None:
        raise DataError("has the same version as before", folder)
    return newer


def _columns(texts: Sequence[str | dict[str, str]], fields: Sequence[str]) -> list[str] | dict[str, list[str]]:
    """Return texts, or columns of texts where the model has fields; a field that a document lacks is empty."""
    if len(fields) == 1:
        return [text if isinstance(text, str) else text.get(fields[0], "") for text in texts]
    rows = [{fields[0]: text} if isinstance(text, str) else text for text in texts]
    return {name: [row.get(name, "") for row in rows] for name in fields}


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Keep other processes from changing a model until the block ends; a model that is replaced is locked anew."""
    folder = path.resolve()
    while True:
        file = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), folder.stat()):
                yield folder
                return
        finally:
            os.close(file)
