"""Candidates for a text and labels that a phrase means, for language models: requests, responses and their work."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from zipfel import grounding
from zipfel.errors import ZipfelError
from zipfel.server import schema
from zipfel.server.answers import Problem
from zipfel.server.batching import characters
from zipfel.server.catalog import Slot
from zipfel.server.service import Service, check_fields, named
from zipfel.server.settings import K

_K = Annotated[int, Field(ge=1, le=K, description="Maximum number of labels."), BeforeValidator(schema._whole)]


class CandidatesRequest(schema._Asked):
    """A text to find labels for."""

    text: Annotated[
        schema.Document,
        WithJsonSchema({"anyOf": [{"type": "string"}, schema._FIELDED]}),
        Field(description="A text, or an object of texts by field, as in POST /tag."),
    ]
    k: _K = grounding.CANDIDATES


class GroundRequest(schema._Asked):
    """A phrase to find labels for."""

    phrase: Annotated[str, Field(max_length=grounding.LONGEST, examples=["heart attack"])]
    k: _K = 5


class Candidate(schema.ScoredLabel):
    """A label to choose: a title and a text for people, paths, a score, and how it was found."""

    title: str
    text: str
    paths: schema.Paths
    by: Annotated[str, Field(description="model: it is among the model's best; name: its name or a synonym was found.")]


class CandidatesAnswer(BaseModel):
    """Labels that may fit a text, best first, and the same as lines for a prompt."""

    candidates: list[Candidate]
    prompt: str
    model: schema.ModelVersion


class GroundAnswer(BaseModel):
    """Labels that a phrase may mean, best first; the score is the probability that it is meant, if one is."""

    labels: list[Candidate]
    model: schema.ModelVersion


BODIES: dict[str, type[BaseModel]] = {"/candidates": CandidatesRequest, "/ground": GroundRequest}


async def candidates(service: Service, slot: Slot, asked: CandidatesRequest) -> dict[str, Any]:
    """Return the response to POST /candidates."""
    service.check_texts([characters(asked.text)])
    loaded = slot.current
    check_fields(loaded, [asked.text])
    try:
        found = await service.run_aside(lambda: loaded.tagger.candidates(asked.text, asked.k))
    except ZipfelError as problem:
        raise Problem(400, str(problem)) from None
    listed = [each._asdict() for each in found]
    return {"candidates": listed, "prompt": grounding.prompt(found), "model": named(loaded)}


async def ground(service: Service, slot: Slot, asked: GroundRequest) -> dict[str, Any]:
    """Return the response to POST /ground."""
    loaded = slot.current
    found = await service.run_aside(lambda: loaded.tagger.ground(asked.phrase, asked.k))
    return {"labels": [each._asdict() for each in found], "model": named(loaded)}
