"""Requests that arrive together are tagged together: one queue and one thread for each model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zipfel.server.catalog import Loaded, Slot
from zipfel.server.measures import Measures
from zipfel.server.problem import busy

if TYPE_CHECKING:
    from zipfel.tagger import Tag

TEXTS, CHARACTERS = 128, 1 << 20  # in a batch; a request is never cut, so that a large one is a batch of its own
LINGER = 0.002  # seconds to wait for company: a batch of 8 costs hardly more than a text alone


@dataclass(frozen=True, eq=False)
class Job:
    """A request that waits for its tags."""

    texts: Sequence[str]
    k: int
    threshold: float | None
    extra: Mapping[str, str]
    answer: asyncio.Future[tuple[list[list[Tag]], Loaded]]


class Batcher:
    """Collects what waits for a model, and lets the model tag it in a thread, a batch at a time.

    While one batch is in the thread the next one gathers: the busier, the larger the batches.
    """

    def __init__(self, slot: Slot, queue: int, measures: Measures) -> None:
        self.slot, self.queue, self.measures = slot, queue, measures
        self.jobs: deque[Job] = deque()
        self.waiting = 0  # texts
        self.wake = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, f"tag-{slot.id}")

    async def tag(
        self, texts: Sequence[str], k: int, threshold: float | None, extra: Mapping[str, str]
    ) -> tuple[list[list[Tag]], Loaded]:
        """Return the tags of texts, and the version of the model that gave them."""
        if not texts:
            return [], self.slot.current
        if self.waiting + len(texts) > self.queue:
            raise busy(f"{self.waiting} texts are waiting")
        job = Job(texts, k, threshold, extra, asyncio.get_running_loop().create_future())
        self.jobs.append(job)
        self.waiting += len(texts)
        self.wake.set()
        return await job.answer

    async def run(self) -> None:
        """Tag what comes, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.wake.wait()
            await asyncio.sleep(LINGER)
            batch, loaded = self._taken(), self.slot.current
            self.measures.batch(sum(len(job.texts) for job in batch))
            try:
                tags = await loop.run_in_executor(self.thread, tagged, loaded, batch)
            except Exception as error:
                await self._one_by_one(loaded, batch, error)
                continue
            for job, found in zip(batch, tags, strict=True):
                _deliver(job, found, loaded)

    def _taken(self) -> list[Job]:
        """Take a batch out of the queue."""
        batch, texts, characters = list[Job](), 0, 0
        while self.jobs and (not batch or (texts < TEXTS and characters < CHARACTERS)):
            job = self.jobs.popleft()
            batch.append(job)
            texts += len(job.texts)
            characters += sum(map(len, job.texts))
        self.waiting -= texts
        if not self.jobs:
            self.wake.clear()
        return batch

    async def _one_by_one(self, loaded: Loaded, batch: Sequence[Job], error: Exception) -> None:
        """Find out whose fault it was, so that the others do not suffer."""
        loop = asyncio.get_running_loop()
        for job in batch:
            try:
                if len(batch) == 1:
                    raise error
                found = (await loop.run_in_executor(self.thread, tagged, loaded, [job]))[0]
            except Exception as own:
                if not job.answer.done():
                    job.answer.set_exception(own)
            else:
                _deliver(job, found, loaded)

    def close(self) -> None:
        """Let the thread end."""
        self.thread.shutdown(wait=False)


def _deliver(job: Job, found: list[list[Tag]], loaded: Loaded) -> None:
    if not job.answer.done():  # who asked may have gone
        job.answer.set_result((found, loaded))


def tagged(loaded: Loaded, batch: Sequence[Job]) -> list[list[list[Tag]]]:
    """Tag the texts of all jobs at once, and return the tags of each job."""
    texts = [text for job in batch for text in job.texts]
    tags = iter(loaded.tagger.predict(texts, max(job.k for job in batch)))
    return [_own(loaded, job, [next(tags)[: job.k] for _ in job.texts]) for job in batch]


def _own(loaded: Loaded, job: Job, tags: list[list[Tag]]) -> list[list[Tag]]:
    """Let a job's own labels compete, and leave out what is below its threshold."""
    if job.extra:
        tags = loaded.tagger.predict(job.texts, job.k, extra=job.extra)
    if job.threshold is not None:
        tags = [[tag for tag in row if tag.score >= job.threshold] for row in tags]
    return tags
