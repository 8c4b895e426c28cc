"""POST /corrections: what people accept and reject, kept as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from zipfel.data.corrections import OWN
from zipfel.server import log, schema
from zipfel.server.answers import Problem, busy
from zipfel.server.batching import characters
from zipfel.server.catalog import Slot
from zipfel.server.keeping import FULL, Keeper
from zipfel.server.service import Service, check_fields, named
from zipfel.server.settings import K

MOST = 1000  # decisions of a request
WAITING = 64  # requests that may wait for the disk
OFF = Problem(404, "this service keeps no corrections; its option --corrections FOLDER makes it keep them")
NO_JSON = Problem(415, "corrections must be sent with the header Content-Type: application/json")


def _not_blank(label: str) -> str:
    if not label.strip():
        raise PydanticCustomError("blank", "String should not be blank")
    return label


class Decision(BaseModel):
    """A label that a person accepts or rejects for a text, and how the label was shown."""

    model_config = schema._Asked.model_config

    label: Annotated[
        str, Field(min_length=1, max_length=10_000, json_schema_extra={"pattern": r"\S"}), AfterValidator(_not_blank)
    ]
    decision: Annotated[
        Literal["accept", "reject", "undo"], Field(description="undo: take back what was decided before.")
    ]
    rank: Annotated[
        int | None,
        Field(ge=1, le=K, description="Rank at which the label was shown; null if the person added it."),
        BeforeValidator(schema._whole),
    ] = None
    score: Annotated[float | None, Field(ge=0, le=1, description="Score that was shown.")] = None


class CorrectionsRequest(schema._Asked):
    """Decisions on the labels of a text. If a label has several, the last counts."""

    text: Annotated[
        schema.Document,
        WithJsonSchema({"anyOf": [{"type": "string"}, schema._FIELDED]}),
        Field(description="The text, or an object of texts by field, as in POST /tag."),
    ]
    decisions: Annotated[list[Decision], Field(min_length=1, max_length=MOST)]
    version: Annotated[
        str | None, Field(max_length=64, description="Version of the model that the labels came from, see POST /tag.")
    ] = None  # the service may have swapped it since, which is no reason to lose a decision


class CorrectionsAnswer(BaseModel):
    """How many decisions are on disk now."""

    kept: int
    model: schema.ModelVersion


BODIES: dict[str, type[BaseModel]] = {"/corrections": CorrectionsRequest}


class Corrections:
    """Keeps decisions in a thread of its own; without a folder, it refuses them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.thread, self.waiting = ThreadPoolExecutor(1, "corrections"), 0

    @cached_property
    def keeper(self) -> Keeper | None:
        """The files of this process, if the service keeps corrections."""
        folder = self.service.settings.corrections
        return None if folder is None else Keeper(folder, self.service.measures.number)

    def check(self, request: Request) -> None:
        """Raise Problem if the service keeps no corrections, or if a page of another origin may have sent the request.

        A browser asks before it sends JSON to another origin, and then our rules for origins hold.
        """
        if self.keeper is None:
            raise OFF
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise NO_JSON

    async def keep(self, slot: Slot, asked: CorrectionsRequest, passage: Any) -> dict[str, Any]:
        """Return the response once the decisions are on disk."""
        self.service.check_texts([characters(asked.text)])
        loaded = slot.current
        check_fields(loaded, [asked.text])
        clash = next((name for name in loaded.tagger.source_.fields if name in OWN), None)
        if clash is not None and not isinstance(asked.text, str):
            raise Problem(400, f"the model has a text field {clash!r}, which is a key of corrections; rename the field")
        about = {"model": loaded.id, "version": asked.version or loaded.version}
        who = {"request": passage.id, "token": passage.token}
        await self._write(orjson.dumps(record(asked, about, who), option=orjson.OPT_APPEND_NEWLINE))
        return {"kept": len(asked.decisions), "model": named(loaded)}

    async def _write(self, line: bytes) -> None:
        if self.waiting >= WAITING:
            raise busy(f"the disk is slow: {self.waiting} corrections are waiting")
        assert self.keeper is not None
        self.waiting += 1
        written = asyncio.get_running_loop().run_in_executor(self.thread, self.keeper.keep, line)
        written.add_done_callback(self._on_written)
        try:
            await asyncio.shield(written)  # a client that leaves, as a page that is closed, has decided nevertheless
        except OSError as error:
            raise _not_kept(error) from None

    def _on_written(self, written: asyncio.Future[None]) -> None:
        """Make room for another request, and log a failure, even if the client is gone."""
        self.waiting -= 1
        error = written.exception()
        if isinstance(error, OSError):
            log.line("corrections not kept", level="error", error=error.strerror or str(error))


def _not_kept(error: OSError) -> Problem:
    """Return the response to a request that could not be written."""
    if error.errno in FULL:
        return Problem(507, "the correction was not kept: the server's disk is full", {"Retry-After": "60"})
    return Problem(503, "the correction was not kept: the server cannot write it", {"Retry-After": "60"})


def record(asked: CorrectionsRequest, about: Mapping[str, str], who: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the line of a request: that of the page's download, with details under `correction`."""
    last = {each.label: each for each in asked.decisions}
    by = {kind: [one.label for one in last.values() if one.decision == kind] for kind in ("accept", "reject", "undo")}
    texts = {"text": asked.text} if isinstance(asked.text, str) else asked.text
    shown = {one.label: {"rank": one.rank, "score": one.score} for one in last.values() if one.rank is not None}
    details = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "version": about["version"],
        "undone": by["undo"], "shown": shown, **{name: value for name, value in who.items() if value is not None},
    }  # fmt: skip
    return {**texts, "labels": by["accept"], "rejected": by["reject"], "model": about["model"], "correction": details}
