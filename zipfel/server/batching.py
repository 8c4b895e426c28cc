"""Dynamic batching: one queue and one thread per model tag the requests that arrive together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from zipfel.server.answers import busy
from zipfel.server.catalog import Loaded, Slot
from zipfel.server.measures import Measures

if TYPE_CHECKING:
    from zipfel.tagging import Request, Tag

TEXTS, CHARACTERS = 128, 1 << 20  # per batch; a request is never split, so a large one is a batch of its own
LINGER = 0.002  # seconds to wait for more requests: a batch of 8 costs hardly more than a single text


class Answer(NamedTuple):
    """The tags of each text, and whether it has a known word."""

    tags: list[list[Tag]]
    known: list[bool]


@dataclass(frozen=True, eq=False)
class Job:
    """A queued request."""

    request: Request
    answer: asyncio.Future[tuple[Answer, Loaded]]
    arrived: float = field(default_factory=time.perf_counter)


class Batcher:
    """Queues the requests for a model, and tags them in a thread, one batch at a time.

    While one batch is tagged, the next one collects: the higher the load, the larger the batches.
    """

    def __init__(self, slot: Slot, queue: int, measures: Measures) -> None:
        self.slot, self.queue, self.measures = slot, queue, measures
        self.own_measures, self.closed = measures.model(slot.id), False
        self.jobs: deque[Job] = deque()
        self.waiting = 0  # texts
        self.wake = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, f"tag-{slot.id}")

    async def tag(self, request: Request) -> tuple[Answer, Loaded]:
        """Return the tags of texts, and the model version that predicted them."""
        if not request.X:
            return Answer([], []), self.slot.current
        if self.waiting + len(request.X) > self.queue:
            raise busy(f"the queue has no room: {self.waiting} texts are waiting")
        job = Job(request, asyncio.get_running_loop().create_future())
        self.jobs.append(job)
        self.waiting += len(request.X)
        self.wake.set()
        try:
            return await job.answer
        except asyncio.CancelledError:  # the client is gone, or it took too long: make room for others
            if job in self.jobs:
                self.jobs.remove(job)
                self.waiting -= len(request.X)
            raise

    def close(self) -> None:
        """Stop after the queued requests."""
        self.closed = True
        self.wake.set()

    async def run(self) -> None:
        """Tag batches until closed or cancelled."""
        loop = asyncio.get_running_loop()
        while not self.closed or self.jobs:
            await self.wake.wait()
            await asyncio.sleep(LINGER)
            batch, loaded = self._taken(), self.slot.current
            if not batch:
                continue
            self._count(batch)
            try:
                tags = await loop.run_in_executor(self.thread, tagged, loaded, batch)
            except Exception as error:
                await self._one_by_one(loaded, batch, error)
                continue
            for job, answer in zip(batch, tags, strict=True):
                _deliver(job, answer, loaded)
        self.thread.shutdown(wait=False)

    def _taken(self) -> list[Job]:
        """Remove a batch from the queue and return it, without requests whose client is gone or that took too long."""
        batch, texts, total = list[Job](), 0, 0
        while self.jobs and (not batch or (texts < TEXTS and total < CHARACTERS)):
            job = self.jobs.popleft()
            self.waiting -= len(job.request.X)
            if not job.answer.done():
                batch.append(job)
                texts += len(job.request.X)
                total += sum(map(characters, job.request.X))
        if not self.jobs:
            self.wake.clear()
        return batch

    def _count(self, batch: Sequence[Job]) -> None:
        texts, now = sum(len(job.request.X) for job in batch), time.perf_counter()
        self.measures.batch(texts)
        self.own_measures.batch(texts)
        for job in batch:
            self.own_measures.queued(now - job.arrived)

    async def _one_by_one(self, loaded: Loaded, batch: Sequence[Job], error: Exception) -> None:
        """Tag a failed batch job by job, so that only the jobs at fault fail."""
        loop = asyncio.get_running_loop()
        for job in batch:
            try:
                if len(batch) == 1:
                    raise error
                answer = (await loop.run_in_executor(self.thread, tagged, loaded, [job]))[0]
            except Exception as own:
                if not job.answer.done():
                    job.answer.set_exception(own)
            else:
                _deliver(job, answer, loaded)


def characters(document: str | Mapping[str, str]) -> int:
    """Return the number of characters of a text, or of all fields of a document."""
    return len(document) if isinstance(document, str) else sum(map(len, chain(document, document.values())))


def _deliver(job: Job, answer: Answer, loaded: Loaded) -> None:
    if not job.answer.done():  # the client may have disconnected
        job.answer.set_result((answer, loaded))


def tagged(loaded: Loaded, batch: Sequence[Job]) -> list[Answer]:
    """Tag the texts of all jobs in one call, and return the answer to each job."""
    requests = [job.request for job in batch]
    return [Answer(answer.tags(), answer.known.tolist()) for answer in loaded.tagger.tag(requests)]
