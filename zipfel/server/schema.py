"""Bodies of requests and answers, which the OpenAPI document is made of."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from zipfel.server.problem import Problem
from zipfel.server.settings import K

EXTRA = 100  # labels that a request may bring along

Texts = Annotated[list[str], FailFast()]  # one wrong item is enough to know
Asked = TypeVar("Asked", bound="_Asked")
ModelId = Annotated[str, Field(max_length=200, description="One of /models; else the first of them.")]


def _whole(value: object) -> object:
    """Take 5.0 for 5, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Asked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    model: ModelId | None = None


class TagRequest(_Asked):
    """Texts to tag."""

    texts: Annotated[Texts, Field(examples=[["sharp chest pain on breathing"]])]
    k: Annotated[int, Field(ge=1, le=K, description="Tags a text, at most."), BeforeValidator(_whole)] = 5
    threshold: Annotated[float | None, Field(ge=0, le=1, description="Lowest score of a tag.")] = None
    extra: Annotated[
        dict[str, str] | None,
        Field(max_length=EXTRA, description="Labels of this request alone, by name, with a text each."),
    ] = None


class ExplainRequest(_Asked):
    """A text, and a label to give reasons for."""

    text: str
    label: Annotated[str, Field(max_length=10_000)]


class ModelVersion(BaseModel):
    """Which model answered; another version has other weights."""

    id: str
    version: str


class Model(ModelVersion):
    """A model that is served."""

    kind: Annotated[str, Field(description="glas, lightdxml, ...")]
    labels: int
    default: Annotated[bool, Field(description="It answers where no model is named.")]


class Models(BaseModel):
    """All that are served."""

    models: list[Model]


class ScoredLabel(BaseModel):
    """A label and its score in [0, 1]."""

    label: str
    score: float


class TagAnswer(BaseModel):
    """Tags of each text, best first."""

    tags: list[list[ScoredLabel]]
    model: ModelVersion


class Label(BaseModel):
    """A label, its text and how many training points have it; null where the model was saved without."""

    name: str
    text: str | None
    count: int | None


class LabelsAnswer(BaseModel):
    """Labels that were found, those that begin with what was searched first."""

    labels: list[Label]
    model: ModelVersion


class LabelAnswer(Label):
    """A label and the labels nearest to it, by cosine; `why` tells why there are none."""

    near: list[ScoredLabel]
    why: str | None
    model: ModelVersion


class Reason(BaseModel):
    """A term, what it adds to the score, and where it stands in the text: [start, end) in characters."""

    term: str
    weight: float
    places: list[tuple[int, int]]


class ExplainAnswer(BaseModel):
    """What speaks for a label and against it; the score is 0 where it is not among the best 1000."""

    label: str
    score: float
    reasons: list[Reason]
    model: ModelVersion


class Status(BaseModel):
    """How the service is."""

    status: str


class Error(BaseModel):
    """What was wrong with the request."""

    error: str


def parsed(kind: type[Asked], body: bytes) -> Asked:
    """Read a body, or refuse it with a line that tells what is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Problem(400, _told(first["loc"], first["msg"])) from None


def _told(place: tuple[int | str, ...], message: str) -> str:
    """Return `texts[3]: Input should be a valid string`, cut where a name of the sender's is long."""
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.40}" for step in place).removeprefix(".")
    return f"{where}: {message}" if where else message
