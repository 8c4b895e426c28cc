"""Annif's REST API beside our own: a model is a project, and its labels are a vocabulary.

Paths, fields and errors are those of Annif 1.4: programs that talk to Annif, and Annif itself, can use a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import orjson
from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError
from starlette.responses import Response

from zipfel import __version__, persistence
from zipfel.server import learning, schema
from zipfel.server.answers import Problem, json_response
from zipfel.server.batching import characters
from zipfel.server.catalog import Loaded, Slot
from zipfel.server.service import Service
from zipfel.server.settings import K
from zipfel.server.turn import chosen, in_time

Kind = TypeVar("Kind", bound=BaseModel)
PREFIX = "/v1/"
LIMIT = 10  # results by default
BATCH = 32  # most documents of a batch
UNKNOWN = "und"  # code of an undetermined language
FORM = "application/x-www-form-urlencoded"


# --- Schemas ----------------------------------------------------------------------------------------------------------


class Info(BaseModel):
    """What this API is."""

    title: str
    version: str


class Vocabulary(BaseModel):
    """The labels of a model as a vocabulary; the language of models without a thesaurus is `und`."""

    vocab_id: str
    languages: list[str]
    size: int
    loaded: bool


class Vocabularies(BaseModel):
    """All vocabularies."""

    vocabs: list[Vocabulary]


class Backend(BaseModel):
    """The kind of model."""

    backend_id: str


class Project(BaseModel):
    """A model as a project."""

    project_id: str
    name: str
    language: str
    backend: Backend
    vocab: Vocabulary
    vocab_language: str
    is_trained: bool
    modification_time: str | None


class Projects(BaseModel):
    """All projects."""

    projects: list[Project]


class Suggestion(BaseModel):
    """A label of a document: its URI, its name for people, its notation and its score."""

    uri: str
    label: str
    notation: str | None
    score: float


class Suggestions(BaseModel):
    """The labels of a document, best first."""

    results: list[Suggestion]


class BatchSuggestions(Suggestions):
    """The labels of a document of a batch."""

    document_id: str | None


class _Given(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, allow_inf_nan=False)


class SuggestForm(_Given):
    """A text; fields that begin with `metadata_` are text fields of the model, where it has them."""

    model_config = ConfigDict(extra="allow")

    text: str
    limit: Annotated[int, Field(ge=0)] = LIMIT
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    language: str | None = None


class Document(_Given):
    """A document to tag."""

    text: str
    document_id: str | None = None
    metadata: dict[str, str] = {}


class Batch(_Given):
    """Documents to tag."""

    documents: Annotated[list[Document], Field(max_length=BATCH)]


class Subject(_Given):
    """A subject of a document."""

    uri: str


class IndexedDocument(_Given):
    """A document with its subjects; one that lacks text or subjects is skipped."""

    text: str = ""
    metadata: dict[str, str] = {}
    subjects: list[Subject] = []


class Lesson(RootModel[list[IndexedDocument]]):
    """Documents to learn from."""


class ProblemReport(BaseModel):
    """Why a request was refused or failed (RFC 7807)."""

    type: str
    title: str
    status: int
    detail: str


# --- Routes -----------------------------------------------------------------------------------------------------------


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of errors in Annif's form, in which too large requests are answered as text."""
    problem = {"application/problem+json": {"schema": ProblemReport.model_json_schema()}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": text if status == 413 else problem}
            for status in statuses}  # fmt: skip


def _body(kind: type[BaseModel], media_type: str = "application/json") -> dict[str, Any]:
    content = kind.model_json_schema(ref_template="{model}")
    content = _inlined(content, content.pop("$defs", {}))
    if kind is SuggestForm:
        content["additionalProperties"] = {"type": "string"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": content}}}}


def add_annif(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    _add_listings(app, service)
    asked = _problems(400, 404, 405, 408, 413, 415, 429, 503)
    root = "/v1/projects/{project_id}"

    @app.post(
        f"{root}/suggest", responses={200: {"model": Suggestions}, **asked}, openapi_extra=_body(SuggestForm, FORM)
    )
    async def suggest(request: Request, project_id: str) -> Response:
        """Suggest labels for a text, as Annif does."""
        async with service.bodies.of(request) as body:
            given = _form(request, body)
            slot = chosen(request, service, project_id, None, 1)
            fields = {name.removeprefix("metadata_"): value for name, value in (given.model_extra or {}).items()
                      if name.startswith("metadata_")}  # fmt: skip
            document = Document(text=given.text, metadata=fields)
            limits = (given.limit, given.threshold, given.language)
            (results,) = await in_time(request, service, _suggested(service, slot, [document], *limits))
            return json_response(results)

    @app.post(
        f"{root}/suggest-batch", responses={200: {"model": list[BatchSuggestions]}, **asked}, openapi_extra=_body(Batch)
    )
    async def suggest_batch(
        request: Request,
        project_id: str,
        limit: Annotated[int, Query(ge=0)] = LIMIT,
        threshold: Annotated[float, Query(ge=0, le=1)] = 0.0,
        language: str | None = None,
    ) -> Response:
        """Suggest labels for up to 32 documents, as Annif does."""
        async with service.bodies.of(request) as body:
            documents = _checked(Batch, body).documents
            slot = chosen(request, service, project_id, None, len(documents))
            work = _suggested(service, slot, documents, limit, threshold, language)
            results = await in_time(request, service, work)
            named = zip(results, documents, strict=True)
            return json_response([{**result, "document_id": document.document_id} for result, document in named])

    _add_learning(app, service, f"{root}/learn")


def _inlined(content: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a JSON schema with references replaced by the definitions."""
    if isinstance(content, list):
        return [_inlined(each, definitions) for each in content]
    if not isinstance(content, dict):
        return content
    if "$ref" in content:
        return _inlined(definitions[content["$ref"]], definitions)
    return {name: _inlined(each, definitions) for name, each in content.items()}


def _add_learning(app: FastAPI, service: Service, path: str) -> None:
    refused = _problems(400, 403, 404, 405, 408, 413, 415, 429, 503)

    @app.post(path, status_code=204, response_class=Response, responses=refused, openapi_extra=_body(Lesson))
    async def learn(request: Request, project_id: str) -> Response:
        """Learn from documents with subjects, if the service may and the model can: it remembers them as points."""
        slot = chosen(request, service, project_id, None)
        learning.check(service, slot)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Problem(415, "documents must be sent with the header Content-Type: application/json")
        async with service.bodies.of(request) as body:
            documents = [each for each in _checked(Lesson, body).root if each.text.strip() and each.subjects]
            texts = [_with_fields(slot.current, each) for each in documents]
            service.check_texts(list(map(characters, texts)))
            tags = [list({subject.uri: None for subject in each.subjects}) for each in documents]
            learning.check_known(slot.current, tags)
            if documents:
                await learning.learn(service, slot, texts, tags)
        return Response(status_code=204)


def _add_listings(app: FastAPI, service: Service) -> None:

    @app.get("/v1/", responses={200: {"model": Info}})
    async def info() -> Response:
        """Return what this API is."""
        return json_response({"title": "zipfel, with Annif's REST API", "version": __version__})

    @app.get("/v1/projects", responses={200: {"model": Projects}})
    async def projects() -> Response:
        """List the models as projects."""
        return json_response({"projects": [_project(slots[0]) for slots in service.catalog.versions.values()]})

    @app.get("/v1/projects/{project_id}", responses={200: {"model": Project}, **_problems(404)})
    async def project(request: Request, project_id: str) -> Response:
        """Return a model as a project."""
        return json_response(_project(chosen(request, service, project_id, None)))

    @app.get("/v1/vocabs", responses={200: {"model": Vocabularies}})
    async def vocabularies() -> Response:
        """List the labels of models as vocabularies."""
        listed = [_vocabulary(slots[0].current) for slots in service.catalog.versions.values()]
        return json_response({"vocabs": listed})

    @app.get("/v1/vocabs/{vocab_id}", responses={200: {"model": Vocabulary}, **_problems(404)})
    async def vocabulary(request: Request, vocab_id: str) -> Response:
        """Return the labels of a model as a vocabulary."""
        return json_response(_vocabulary(chosen(request, service, vocab_id, None).current))


# --- Work -------------------------------------------------------------------------------------------------------------


async def _suggested(
    service: Service, slot: Slot, documents: list[Document], limit: int, threshold: float, language: str | None
) -> list[dict[str, Any]]:
    """Return the suggestions for documents: the tags of POST /tag."""
    own = slot.current.tagger.labels_.language
    if language is not None and own and language.lower() != own:
        raise Problem(400, f'language "{language[:40]}" not supported by vocabulary')
    texts = [_with_fields(slot.current, document) for document in documents]
    if not texts or not limit:
        return [{"results": []} for _ in texts]
    asked = schema.TagRequest.model_construct(texts=texts, k=min(limit, K), threshold=threshold or None, extra=None)
    tags = (await service.tag(slot, asked))["tags"]
    return [{"results": [_suggestion(slot.current, tag) for tag in row]} for row in tags]


def _with_fields(loaded: Loaded, document: Document | IndexedDocument) -> str | dict[str, str]:
    """Return a text, or texts by field where the model has a field `text` and others, which are metadata of Annif."""
    fields = loaded.tagger.source_.fields
    if "text" not in fields or len(fields) == 1:
        return document.text
    return {"text": document.text, **{name: text for name, text in document.metadata.items() if name in fields}}


def _suggestion(loaded: Loaded, tag: dict[str, Any]) -> dict[str, Any]:
    name, labels = tag["label"], loaded.tagger.labels_
    id = labels.live.get(name)
    notation = labels.notations[id] if labels.notations is not None and id is not None else None
    return {"uri": name, "label": tag.get("title", name), "notation": notation or None, "score": tag["score"]}


def _project(slot: Slot) -> dict[str, Any]:
    loaded = slot.current
    language = loaded.tagger.labels_.language or UNKNOWN
    return {
        "project_id": slot.id,
        "name": slot.id,
        "language": language,
        "backend": {"backend_id": loaded.tagger.chosen_.model},
        "vocab": _vocabulary(loaded),
        "vocab_language": language,
        "is_trained": True,
        "modification_time": _modified(slot),
    }


def _vocabulary(loaded: Loaded) -> dict[str, Any]:
    labels = loaded.tagger.labels_
    return {
        "vocab_id": loaded.id,
        "languages": [labels.language or UNKNOWN],
        "size": len(labels.live),
        "loaded": True,
    }


def _modified(slot: Slot) -> str | None:
    """Return when the files of a model were written; None if they are gone."""
    try:
        seconds = persistence.located(slot.folder).stat().st_mtime
    except (OSError, ValueError):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _form(request: Request, body: bytes) -> SuggestForm:
    """Parse the fields of a form."""
    kind = request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    if kind != FORM:
        raise Problem(415, f"expected a form with Content-Type: {FORM}; found {kind[:60]!r}")
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=schema.FIELDS
        )
    except ValueError:
        raise Problem(400, f"expected a form in UTF-8 with up to {schema.FIELDS} fields") from None
    return _valid(SuggestForm, dict(pairs))


def _checked(kind: type[Kind], body: bytes) -> Kind:
    try:
        return _valid(kind, orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not valid JSON: {error.msg}") from None


def _valid(kind: type[Kind], content: Any) -> Kind:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Problem(400, schema._message(first["loc"], first["msg"])) from None


def problem_response(problem: Problem) -> Response:
    """Return a refusal in Annif's form: problem+json, or plain text for a request that is too large."""
    if problem.status == 413:
        return Response(problem.message, 413, problem.headers, "text/plain")
    titles = {403: "Learning not allowed", 404: "Project not found", 503: "Service unavailable"}
    title = titles.get(problem.status) or HTTPStatus(problem.status).phrase
    content = {"type": "about:blank", "title": title, "status": problem.status, "detail": problem.message}
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(orjson.dumps(content), problem.status, headers, "application/problem+json")
