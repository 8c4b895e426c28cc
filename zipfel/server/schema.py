"""Schemas of requests and responses, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from zipfel.server.answers import Problem
from zipfel.server.settings import K

EXTRA = 100  # maximum number of extra labels in a request

FIELDS = 100  # maximum number of fields of a document


def _text_or_fields(value: object) -> object:
    """Accept a text, or an object of texts by field."""
    if isinstance(value, dict):
        wrong = next((name for name, text in value.items() if not isinstance(text, str)), None)
        if wrong is not None:
            raise PydanticCustomError("field", "Field {name} should be a valid string", {"name": repr(wrong[:40])})
        if len(value) > FIELDS:
            raise PydanticCustomError("fields", "Input should have at most {most} fields", {"most": FIELDS})
    elif not isinstance(value, str):
        raise PydanticCustomError("text", "Input should be a valid string, or an object of texts by field")
    return value


def _alike(values: list[str | dict[str, str]]) -> list[str | dict[str, str]]:
    if len({type(value) for value in values}) > 1:
        raise PydanticCustomError("mixed", "Input should be all texts, or all objects of texts by field")
    return values


_FIELDED = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": FIELDS}
_KINDS = [{"type": "array", "items": items} for items in ({"type": "string"}, _FIELDED)]
Document = Annotated[str | dict[str, str], BeforeValidator(_text_or_fields)]
Documents = Annotated[  # report only the first wrong item
    list[Document], FailFast(), AfterValidator(_alike), WithJsonSchema({"anyOf": _KINDS})
]
_TEXTS_BY_NAME = {  # no name may be blank
    "type": "object",
    "propertyNames": {"pattern": r"\S"},
    "additionalProperties": {"type": "string"},
    "maxProperties": EXTRA,
}
Asked = TypeVar("Asked", bound="_Asked")
Paths = Annotated[list[list[str]], Field(description="Paths from the top of the hierarchy; none without one.")]
Title = Annotated[str, Field(description="Name that people see, of a model that learned with a thesaurus.")]
Titles = Annotated[dict[str, str], Field(description="Titles of the labels in the paths, where labels have titles.")]
ModelId = Annotated[str, Field(max_length=200, description="Id of a model, see /models; default: the first.")]
Version = Annotated[str, Field(max_length=64, description="Version of the model, if several are loaded; see /models.")]


def _whole(value: object) -> object:
    """Accept 5.0 as 5, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Asked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    model: ModelId | None = None
    version: Version | None = None


class TagRequest(_Asked):
    """Texts to tag."""

    texts: Annotated[
        Documents,
        Field(
            examples=[["sharp chest pain on breathing"], [{"title": "chest pain", "body": "sharp, on breathing"}]],
            description="Texts, or objects of texts by field (all of one kind); /models lists the fields of a model.",
        ),
    ]
    k: Annotated[
        int | None, Field(ge=1, le=K, description="Maximum number of tags per text."), BeforeValidator(_whole)
    ] = None
    threshold: Annotated[float | None, Field(ge=0, le=1, description="Minimum score of a tag.")] = None
    extra: Annotated[
        dict[str, str] | None,
        WithJsonSchema({"anyOf": [_TEXTS_BY_NAME, {"type": "null"}]}),
        Field(max_length=EXTRA, description="Additional labels for this request only: name to text."),
    ] = None


class ExplainRequest(_Asked):
    """A text, and the label to explain."""

    text: Annotated[
        Document,
        WithJsonSchema({"anyOf": [{"type": "string"}, _FIELDED]}),
        Field(description="A text, or an object of texts by field, as in POST /tag."),
    ]
    label: Annotated[str, Field(max_length=10_000)]


class ModelVersion(BaseModel):
    """The model that responded; versions differ in their weights."""

    id: str
    version: str


class Model(ModelVersion):
    """A served model."""

    kind: Annotated[str, Field(description="Kind of model, as listed by `zipfel models`.")]
    labels: int
    fields: Annotated[
        list[str], Field(description="Text fields that documents may have in POST /tag and POST /explain.")
    ]
    default: Annotated[bool, Field(description="Whether it is used when a request names no model.")]


class Models(BaseModel):
    """All served models."""

    models: list[Model]
    corrections: Annotated[bool, Field(description="Whether the service keeps corrections: POST /corrections.")]


class ScoredLabel(BaseModel):
    """A label and its score in [0, 1]."""

    label: str
    title: Title | None = None
    score: float


class TagAnswer(BaseModel):
    """Tags of each text, best first."""

    tags: list[list[ScoredLabel]]
    known: Annotated[
        list[bool], Field(description="Whether a text has a known word; if not, its tags are the most frequent labels.")
    ]
    model: ModelVersion


class Label(BaseModel):
    """A label, its text (null if no label has one) and its number of training points."""

    name: str
    title: Title | None = None
    text: str | None
    count: int


class LabelsAnswer(BaseModel):
    """Labels that match the query; those that begin with it come first."""

    labels: list[Label]
    model: ModelVersion


class NearLabel(ScoredLabel):
    """A label near another one, and its text (null if no label has one)."""

    text: str | None


class LabelAnswer(Label):
    """A label and its nearest labels by cosine; `why` is the reason if there are none."""

    paths: Paths
    titles: Titles | None = None
    near: list[NearLabel]
    why: str | None
    model: ModelVersion


class Reason(BaseModel):
    """A term, its contribution to the score, and its positions: [start, end) in characters."""

    term: str
    weight: float
    places: Annotated[
        list[tuple[int, int]] | dict[str, list[tuple[int, int]]],
        Field(description="In the text, or by field if the text was given by field."),
    ]


class ExplainAnswer(BaseModel):
    """The terms that support a label or count against it; the score is 0 if the label is not in the top 1000."""

    label: str
    title: Title | None = None
    score: float
    paths: Paths
    titles: Titles | None = None
    reasons: list[Reason]
    model: ModelVersion


class Status(BaseModel):
    """The state of the service."""

    status: str


class Error(BaseModel):
    """Why a request was refused or failed."""

    error: str


def parsed(kind: type[Asked], body: bytes) -> Asked:
    """Parse a body; raise Problem 400 that says what is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Problem(400, _message(first["loc"], first["msg"])) from None


def _message(location: tuple[int | str, ...], message: str) -> str:
    """Return `texts[3]: Input should be a valid string`; long names from the client are cut."""
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.40}" for step in location).removeprefix(".")
    return f"{where}: {message}" if where else message
