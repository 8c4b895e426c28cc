"""Handles parsed requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from zipfel.errors import ConfigError, ZipfelError, quoted
from zipfel.persistence import overwritten
from zipfel.server import log, schema
from zipfel.server.answers import Problem, busy
from zipfel.server.batching import Batcher, characters
from zipfel.server.body import Bodies
from zipfel.server.catalog import Catalog, Loaded, Slot
from zipfel.server.measures import Measures
from zipfel.server.settings import K, ServeSettings
from zipfel.tagging import Request

ASIDE = 64  # maximum number of waiting requests other than tagging
NEAR = 10  # nearest labels in a response
WATCH = 5.0  # seconds between two looks at the files of models
OVERWRITTEN = (
    "the weights in use were overwritten in place: answers may be wrong, or the process may end; "
    "save new versions beside old ones, or serve with --copy"
)

Found = TypeVar("Found")


class Service:
    """The models, their queues, and a thread for requests other than tagging."""

    def __init__(self, catalog: Catalog, settings: ServeSettings, measures: Measures) -> None:
        self.catalog, self.settings, self.measures = catalog, settings, measures
        self.bodies = Bodies(settings.max_body)
        self.batchers = {id: Batcher(slot, settings.max_queue, measures) for id, slot in catalog.slots.items()}
        self.ready = False
        self.aside, self.waiting_aside = ThreadPoolExecutor(1, "aside"), 0
        self.swapper = ThreadPoolExecutor(1, "swap")
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to process the queues."""
        self.tasks = [asyncio.create_task(batcher.run()) for batcher in self.batchers.values()]
        self.tasks.append(asyncio.create_task(self.watch()))
        self.ready = True

    async def stop(self) -> None:
        """Stop processing the queues, which are empty by now."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for thread in (self.aside, self.swapper, *(batcher.thread for batcher in self.batchers.values())):
            thread.shutdown(wait=False)

    async def swap(self) -> None:
        """Load newer versions of all models; if one cannot be loaded, the current version stays."""
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

    async def watch(self) -> None:
        """Log an error, once for each version, if the files of a served model are overwritten in place."""
        reported: dict[str, Loaded] = {}
        while True:
            await asyncio.sleep(WATCH)
            for slot in self.catalog.slots.values():
                files = overwritten(slot.current.mapped)
                if files and reported.get(slot.id) is not slot.current:
                    reported[slot.id] = slot.current
                    log.line("files overwritten", level="error", model=slot.id, files=list(map(str, files)),
                             error=OVERWRITTEN)  # fmt: skip

    async def tag(self, asked: schema.TagRequest) -> dict[str, Any]:
        """Tag texts."""
        slot, extra = self.catalog.slot(asked.model), asked.extra or {}
        self._check_texts([*map(characters, asked.texts), *(max(map(len, pair)) for pair in extra.items())])
        _check_fields(slot.current, asked.texts)
        try:
            request = Request(asked.texts, asked.k, asked.threshold, extra)
            slot.current.tagger.check(request)
            answer, loaded = await self.batchers[slot.id].tag(request)
        except ZipfelError as problem:  # the model cannot answer this request
            raise Problem(400, str(problem)) from None
        return {"tags": [list(map(scored, row)) for row in answer.tags], "known": answer.known, "model": named(loaded)}

    def _check_texts(self, lengths: Sequence[int]) -> None:
        """Check the number of texts and their lengths in characters."""
        most, longest = self.settings.max_texts, self.settings.max_length
        if len(lengths) > most:
            raise Problem(413, f"a request may have at most {most} texts and extra labels; found {len(lengths)}")
        for number, length in enumerate(lengths):
            if length > longest:
                raise Problem(413, f"a text may have at most {longest} characters; text {number} has {length}")

    async def explain(self, asked: schema.ExplainRequest) -> dict[str, Any]:
        """Explain a label."""
        self._check_texts([characters(asked.text)])
        loaded = self.catalog.slot(asked.model).current
        _check_fields(loaded, [asked.text])
        _label_id(loaded, asked.label)
        try:
            return await self._aside(lambda: explained(loaded, asked.text, asked.label))
        except ZipfelError as problem:  # the model cannot explain
            raise Problem(400, str(problem)) from None

    def models(self) -> dict[str, Any]:
        """List the models."""
        slots = self.catalog.slots.values()
        return {"models": [described(slot, slot.id == self.catalog.default) for slot in slots]}

    async def labels(self, query: str, limit: int, model: str | None) -> dict[str, Any]:
        """Search labels."""
        loaded = self.catalog.slot(model).current
        matches = await self._aside(lambda: loaded.search(query, limit))
        return {"labels": [loaded.about(label) for label in matches], "model": named(loaded)}

    async def label(self, name: str, model: str | None) -> dict[str, Any]:
        """Return text, number of points and nearest labels of a label."""
        loaded = self.catalog.slot(model).current
        id = _label_id(loaded, name)
        return await self._aside(lambda: label_details(loaded, name, id))

    async def _aside(self, work: Callable[[], Found]) -> Found:
        """Run work in the second thread, because it would block other requests for too long."""
        if self.waiting_aside >= ASIDE:
            raise busy(f"the queue has no room: {self.waiting_aside} requests are waiting")
        self.waiting_aside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.aside, work)
        finally:
            self.waiting_aside -= 1

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        models = [(slot.id, slot.current.version) for slot in self.catalog.slots.values()]
        return self.measures.text(models, sum(batcher.waiting for batcher in self.batchers.values()))


def _check_fields(loaded: Loaded, texts: Sequence[str | Mapping[str, str]]) -> None:
    try:
        loaded.tagger.source_.check_fields(name for text in texts if not isinstance(text, str) for name in text)
    except ConfigError as problem:
        raise Problem(404, str(problem)) from None


def _label_id(loaded: Loaded, name: str) -> int:
    id = loaded.label_ids.get(name)
    if id is None:
        raise Problem(404, f"the model has no label {quoted(name, 200)}")
    return id


def named(loaded: Loaded) -> dict[str, str]:
    """Return id and version of a model, as JSON has them."""
    return {"id": loaded.id, "version": loaded.version}


def scored(tag: tuple[str, float]) -> dict[str, Any]:
    """Return a tag as JSON has it."""
    return {"label": tag[0], "score": tag[1]}


def described(slot: Slot, default: bool) -> dict[str, Any]:
    """Return the entry of a model in /models."""
    tagger = slot.current.tagger
    return {
        **named(slot.current),
        "kind": tagger.chosen_.model,
        "labels": len(slot.current.label_ids),
        "fields": list(tagger.source_.fields),
        "default": default,
    }


def explained(loaded: Loaded, document: str | Mapping[str, str], label: str) -> dict[str, Any]:
    """Return a label's score and the reasons for it, as JSON has them."""
    scores: Mapping[str, float] = dict(loaded.tagger.predict([document], K)[0])
    reasons = [reason._asdict() for reason in loaded.tagger.explain(document, label)]
    paths = loaded.tagger.labels_.paths(label)
    return {"label": label, "score": scores.get(label, 0.0), "paths": paths, "reasons": reasons, "model": named(loaded)}


def label_details(loaded: Loaded, name: str, id: int) -> dict[str, Any]:
    """Return a label's text, number of points and nearest labels."""
    try:
        near, why = loaded.tagger.nearest_labels(name, NEAR), None
    except ConfigError as problem:
        near, why = [], str(problem)
    paths = loaded.tagger.labels_.paths(name)
    return {**loaded.about(id), "paths": paths, "near": list(map(scored, near)), "why": why, "model": named(loaded)}
