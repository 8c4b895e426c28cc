"""Handles parsed requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
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
        self.batchers = {slot: Batcher(slot, settings.max_queue, measures) for slot in catalog.slots}
        self.ready = False
        self.aside, self.waiting_aside = ThreadPoolExecutor(1, "aside"), 0
        self.swapper, self.swapping = ThreadPoolExecutor(1, "swap"), asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to process the queues."""
        for batcher in self.batchers.values():
            self._run(batcher)
        self.keep(asyncio.create_task(self.watch()))
        self.ready = True

    def _run(self, batcher: Batcher) -> None:
        self.keep(asyncio.create_task(batcher.run()))

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it is done; it is cancelled if the service stops before."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def stop(self) -> None:
        """Stop processing the queues, which are empty by now."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for thread in (self.aside, self.swapper, *(batcher.thread for batcher in self.batchers.values())):
            thread.shutdown(wait=False)

    async def swap(self) -> None:
        """Load new models and newer versions of all models; if one cannot be loaded, what was loaded stays."""
        async with self.swapping:  # a second signal waits, and then finds little to do
            await self._read_sources()
            for slot in self.catalog.slots:
                newer = await self._loaded(slot.id, slot.newer)
                if newer is not None:
                    self.put(slot, newer)

    def put(self, slot: Slot, newer: Loaded) -> None:
        """Serve a newer version of a model from now on."""
        before, slot.current = slot.current.version, newer
        log.line("swap", model=slot.id, before=before, after=newer.version)

    async def watch(self) -> None:
        """Log an error, once for each version, if the files of a served model are overwritten in place."""
        reported: dict[Slot, Loaded] = {}
        while True:
            await asyncio.sleep(WATCH)
            for slot in self.catalog.slots:
                files = overwritten(slot.current.mapped)
                if files and reported.get(slot) is not slot.current:
                    reported[slot] = slot.current
                    log.line("files overwritten", level="error", model=slot.id, files=list(map(str, files)),
                             error=OVERWRITTEN)  # fmt: skip

    async def _loaded(self, id: str, load: Callable[[], Found]) -> Found | None:
        """Load a model in the thread for it; log a failure and return None."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.swapper, load)
        except Exception as problem:
            log.line("swap failed", level="error", model=id, error=str(problem))
            return None

    async def _read_sources(self) -> None:
        """Add and remove models as the file of models says now, if there is one."""
        if self.catalog.sources.file is None:
            return
        try:
            sources = self.catalog.sources.read()
        except ZipfelError as problem:
            log.line("reload failed", level="error", what="models", error=str(problem))
            return
        versions: dict[str, list[Slot]] = {}
        for id, folders in sources.items():
            slots = await self._slots(id, folders)
            if slots:
                versions[id] = slots
        self._replace(versions)

    async def _slots(self, id: str, folders: Sequence[Path]) -> list[Slot]:
        """Return the slots of a model, newly loaded unless there is one of that folder; the old ones if one fails."""
        old, catalog = self.catalog.versions.get(id, []), self.catalog
        known, slots = {slot.folder: slot for slot in old}, list[Slot]()
        for folder in folders:
            new = partial(Slot, id, folder, catalog.device, catalog.copy)
            slot = known.get(folder) or await self._loaded(id, new)
            if slot is None:
                return old
            slots.append(slot)
        return slots

    def _replace(self, versions: dict[str, list[Slot]]) -> None:
        """Serve these models from now on; removed ones finish the requests that they have."""
        if not versions:
            return
        before, self.catalog.versions = set(self.catalog.slots), versions
        for slot in set(self.catalog.slots) - before:
            self.batchers[slot] = Batcher(slot, self.settings.max_queue, self.measures)
            self._run(self.batchers[slot])
            log.line("added", model=slot.id, version=slot.current.version)
        for slot in before - set(self.catalog.slots):
            self.batchers.pop(slot).close()
            log.line("removed", model=slot.id, version=slot.current.version)

    async def tag(self, slot: Slot, asked: schema.TagRequest) -> dict[str, Any]:
        """Tag texts."""
        if slot not in self.batchers:  # replaced or removed since the request chose it
            slot = self.catalog.slot(slot.id, asked.version)
        extra = asked.extra or {}
        self.check_texts(list(map(characters, asked.texts)), [max(map(len, pair)) for pair in extra.items()])
        check_fields(slot.current, asked.texts)
        try:
            request = Request(asked.texts, asked.k, asked.threshold, extra)
            slot.current.tagger.check(request)
            answer, loaded = await self.batchers[slot].tag(request)
        except ZipfelError as problem:  # the model cannot answer this request
            raise Problem(400, str(problem)) from None
        return {
            "tags": [[scored(loaded, tag) for tag in row] for row in answer.tags],
            "known": answer.known,
            "model": named(loaded),
        }

    def check_texts(self, texts: Sequence[int], extra: Sequence[int] = ()) -> None:
        """Check the number of texts and extra labels, and their lengths in characters."""
        most, longest, found = self.settings.max_texts, self.settings.max_length, len(texts) + len(extra)
        if found > most:
            raise Problem(413, f"a request may have at most {most} texts and extra labels; found {found}")
        for kind, lengths in (("text", texts), ("extra label", extra)):
            for number, length in enumerate(lengths):
                if length > longest:
                    raise Problem(413, f"a text may have at most {longest} characters; {kind} {number} has {length}")

    async def explain(self, slot: Slot, asked: schema.ExplainRequest) -> dict[str, Any]:
        """Explain a label."""
        self.check_texts([characters(asked.text)])
        loaded = slot.current
        check_fields(loaded, [asked.text])
        _label_id(loaded, asked.label)
        try:
            return await self.run_aside(lambda: explained(loaded, asked.text, asked.label))
        except ZipfelError as problem:  # the model cannot explain
            raise Problem(400, str(problem)) from None

    def models(self) -> dict[str, Any]:
        """List the models."""
        models = [described(slot, slot is self.catalog.slot(None)) for slot in self.catalog.slots]
        return {"models": models, "corrections": self.settings.corrections is not None}

    async def labels(self, slot: Slot, query: str, limit: int) -> dict[str, Any]:
        """Search labels."""
        loaded = slot.current
        matches = await self.run_aside(lambda: loaded.search(query, limit))
        return {"labels": [loaded.about(label) for label in matches], "model": named(loaded)}

    async def label(self, slot: Slot, name: str) -> dict[str, Any]:
        """Return text, number of points and nearest labels of a label."""
        loaded = slot.current
        id = _label_id(loaded, name)
        return await self.run_aside(lambda: label_details(loaded, name, id))

    async def run_aside(self, work: Callable[[], Found]) -> Found:
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
        self.measures.process(log.lost())
        models = [(slot.id, slot.current.version) for slot in self.catalog.slots]
        return self.measures.text(models, sum(batcher.waiting for batcher in self.batchers.values()))


def check_fields(loaded: Loaded, texts: Sequence[str | Mapping[str, str]]) -> None:
    """Raise Problem 404 for a text field that the model does not have."""
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


def scored(loaded: Loaded, tag: tuple[str, float]) -> dict[str, Any]:
    """Return a tag as JSON has it: with a title where labels have titles."""
    return {"label": tag[0], "score": tag[1], **loaded.titled(tag[0])}


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
    about = {"label": label, **loaded.titled(label), "score": scores.get(label, 0.0), "paths": paths}
    return {**about, **loaded.titles(paths), "reasons": reasons, "model": named(loaded)}


def label_details(loaded: Loaded, name: str, id: int) -> dict[str, Any]:
    """Return a label's text, number of points and nearest labels."""
    try:
        near, why = loaded.tagger.nearest_labels(name, NEAR), None
    except ConfigError as problem:
        near, why = [], str(problem)
    paths = loaded.tagger.labels_.paths(name)
    texts = [loaded.about(loaded.label_ids[label])["text"] for label, _ in near]
    near_json = [{**scored(loaded, tag), "text": text} for tag, text in zip(near, texts, strict=True)]
    about = {**loaded.about(id), "paths": paths, **loaded.titles(paths)}
    return {**about, "near": near_json, "why": why, "model": named(loaded)}
