"""What the service does with a request, once it has been read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from zipfel.errors import ConfigError, ZipfelError
from zipfel.server import log, schema
from zipfel.server.batching import Batcher
from zipfel.server.body import Bodies
from zipfel.server.catalog import Catalog, Loaded, Slot
from zipfel.server.measures import Measures
from zipfel.server.problem import Problem, busy
from zipfel.server.settings import K, ServeSettings

ASIDE = 64  # requests that may wait for what is not tagging
NEAR = 10  # labels that are named as nearest to a label

Found = TypeVar("Found")


class Service:
    """Models, their queues, and a thread for what is not tagging."""

    def __init__(self, catalog: Catalog, settings: ServeSettings, measures: Measures) -> None:
        self.catalog, self.settings, self.measures = catalog, settings, measures
        self.bodies = Bodies(settings.max_body)
        self.batchers = {id: Batcher(slot, settings.max_queue, measures) for id, slot in catalog.slots.items()}
        self.ready = False
        self.aside, self.waiting_aside = ThreadPoolExecutor(1, "aside"), 0
        self.swapper = ThreadPoolExecutor(1, "swap")
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to take from the queues."""
        self.tasks = [asyncio.create_task(batcher.run()) for batcher in self.batchers.values()]
        self.ready = True

    async def stop(self) -> None:
        """Stop taking from the queues, which are empty by now."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for thread in (self.aside, self.swapper, *(batcher.thread for batcher in self.batchers.values())):
            thread.shutdown(wait=False)

    async def swap(self) -> None:
        """Look for newer versions of all models; one that cannot be loaded leaves the current one where it is."""
        loop = asyncio.get_running_loop()
        for slot in self.catalog.slots.values():
            try:
                newer = await loop.run_in_executor(self.swapper, slot.newer)
            except Exception as problem:
                log.line("swap failed", level="error", model=slot.id, error=str(problem))
                continue
            if newer is not None:
                log.line("swap", model=slot.id, before=slot.current.version, after=newer.version)
                slot.current = newer

    async def tag(self, asked: schema.TagRequest) -> dict[str, Any]:
        """Tag texts."""
        slot, extra = self.catalog.slot(asked.model), asked.extra or {}
        self._check_texts([*asked.texts, *extra.values(), *extra])
        known = next((name for name in extra if name in slot.current.places), None)
        if known is not None:
            raise Problem(400, f"extra: the model has a label {known!r} already")
        try:
            tags, loaded = await self.batchers[slot.id].tag(asked.texts, asked.k, asked.threshold, extra)
        except ConfigError as problem:  # a model that knows nothing of labels' texts
            raise Problem(400, str(problem)) from None
        return {"tags": [list(map(scored, row)) for row in tags], "model": named(loaded)}

    def _check_texts(self, texts: Sequence[str]) -> None:
        most, longest = self.settings.max_texts, self.settings.max_length
        if len(texts) > most:
            raise Problem(413, f"a request may have {most} texts; found {len(texts)}")
        for place, text in enumerate(texts):
            if len(text) > longest:
                raise Problem(413, f"a text may have {longest} characters; text {place} has {len(text)}")

    async def explain(self, asked: schema.ExplainRequest) -> dict[str, Any]:
        """Give reasons for a label."""
        self._check_texts([asked.text])
        loaded = self.catalog.slot(asked.model).current
        _place(loaded, asked.label)
        try:
            return await self._aside(lambda: explained(loaded, asked.text, asked.label))
        except ZipfelError as problem:  # a model that cannot tell
            raise Problem(400, str(problem)) from None

    def models(self) -> dict[str, Any]:
        """List the models."""
        slots = self.catalog.slots.values()
        return {"models": [described(slot, slot.id == self.catalog.default) for slot in slots]}

    async def labels(self, query: str, limit: int, model: str | None) -> dict[str, Any]:
        """Search labels."""
        loaded = self.catalog.slot(model).current
        found = await self._aside(lambda: loaded.search(query, limit))
        return {"labels": [loaded.about(label) for label in found], "model": named(loaded)}

    async def label(self, name: str, model: str | None) -> dict[str, Any]:
        """Tell what is known of a label."""
        loaded = self.catalog.slot(model).current
        place = _place(loaded, name)
        return await self._aside(lambda: known_of(loaded, name, place))

    async def _aside(self, work: Callable[[], Found]) -> Found:
        """Do in the thread aside what might take long enough for others to notice."""
        if self.waiting_aside >= ASIDE:
            raise busy(f"{self.waiting_aside} requests are waiting")
        self.waiting_aside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.aside, work)
        finally:
            self.waiting_aside -= 1

    def metrics(self) -> str:
        """Return what was counted."""
        models = [(slot.id, slot.current.version) for slot in self.catalog.slots.values()]
        return self.measures.text(models, sum(batcher.waiting for batcher in self.batchers.values()))


def _place(loaded: Loaded, name: str) -> int:
    place = loaded.places.get(name)
    if place is None:
        raise Problem(404, f"the model has no label {name!r:.200}")
    return place


def named(loaded: Loaded) -> dict[str, str]:
    """Return what tells a model and its version."""
    return {"id": loaded.id, "version": loaded.version}


def scored(tag: tuple[str, float]) -> dict[str, Any]:
    """Return a tag as JSON has it."""
    return {"label": tag[0], "score": tag[1]}


def described(slot: Slot, default: bool) -> dict[str, Any]:
    """Return what /models tells of one."""
    tagger = slot.current.tagger
    return {**named(slot.current), "kind": tagger.chosen_.model, "labels": len(slot.current.places), "default": default}


def explained(loaded: Loaded, text: str, label: str) -> dict[str, Any]:
    """Return a label's score, and the reasons for it."""
    scores: Mapping[str, float] = dict(loaded.tagger.predict([text], K)[0])
    reasons = [reason._asdict() for reason in loaded.tagger.explain(text, label)]
    return {"label": label, "score": scores.get(label, 0.0), "reasons": reasons, "model": named(loaded)}


def known_of(loaded: Loaded, name: str, place: int) -> dict[str, Any]:
    """Return a label's text, number of points and nearest labels."""
    try:
        near, why = loaded.tagger.nearest_labels(name, NEAR), None
    except ConfigError as problem:
        near, why = [], str(problem)
    return {**loaded.about(place), "near": list(map(scored, near)), "why": why, "model": named(loaded)}
