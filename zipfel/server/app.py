"""The routes of the service."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from zipfel import __version__
from zipfel.server import files, language, schema
from zipfel.server.annif import PREFIX, add_annif, problem_response
from zipfel.server.answers import FAILURE, NOT_FOUND, Problem, error_response, json_response
from zipfel.server.corrections import Corrections, CorrectionsAnswer, CorrectionsRequest
from zipfel.server.docs import html_page, with_bodies
from zipfel.server.service import Service
from zipfel.server.turn import answered, chosen

Model = Annotated[str | None, Query(max_length=200, description="Id of a model, see /models; default: the first.")]
Version = Annotated[str | None, Query(max_length=64, description="Version of the model, if several are loaded.")]
LIMIT = 100  # maximum number of labels that a search returns


class AnyName(Convertor[str]):
    """The rest of a path: any characters, while starlette's `path` ends at a newline."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return the name."""
        return value

    def to_string(self, value: str) -> str:
        """Return the name."""
        return value


register_url_convertor("name", AnyName())


def built(service: Service) -> FastAPI:
    """Return the application with all routes and error handlers."""
    app = FastAPI(
        title="zipfel", version=__version__, description="Tags texts with labels.", docs_url=None, redoc_url=None,
        responses=errors(400, 401, 405, 421, 500, 503), separate_input_output_schemas=False,
        redirect_slashes=False,
    )  # fmt: skip
    add_models(app, service)
    add_language(app, service)
    add_corrections(app, service)
    add_labels(app, service)
    add_annif(app, service)
    add_state(app, service)
    add_pages(app)
    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid_parameter)
    app.add_exception_handler(Exception, on_failure)
    app.openapi = with_bodies(app.openapi)  # type: ignore[method-assign]
    return app


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of error responses."""
    return {status: {"model": schema.Error} for status in statuses}


def add_models(app: FastAPI, service: Service) -> None:
    """Add the routes that use a model."""

    @app.post("/tag", responses={200: {"model": schema.TagAnswer}, **errors(404, 408, 413, 415, 429)})
    async def tag(request: Request) -> Response:
        """Tag texts. Requests that arrive together are tagged in one batch."""
        async with service.bodies.of(request) as body:
            asked = schema.parsed(schema.TagRequest, body)
            slot = chosen(request, service, asked.model, asked.version, len(asked.texts))
            return await answered(request, service, service.tag(slot, asked))

    @app.post("/explain", responses={200: {"model": schema.ExplainAnswer}, **errors(404, 408, 413, 415, 429)})
    async def explain(request: Request) -> Response:
        """Explain a label: the terms of the text that support it, and those that count against it."""
        async with service.bodies.of(request) as body:
            asked = schema.parsed(schema.ExplainRequest, body)
            slot = chosen(request, service, asked.model, asked.version, 1)
            return await answered(request, service, service.explain(slot, asked))

    @app.get("/models", responses={200: {"model": schema.Models}})
    async def models() -> Response:
        """List the models; the first is the default."""
        return json_response(service.models())


def add_language(app: FastAPI, service: Service) -> None:
    """Add the routes for language models and programs that must answer with existing labels."""

    @app.post("/candidates", responses={200: {"model": language.CandidatesAnswer}, **errors(404, 408, 413, 415, 429)})
    async def candidates(request: Request) -> Response:
        """Return k labels that may fit a text, with names, texts and paths, also as lines for a prompt."""
        async with service.bodies.of(request) as body:
            asked = schema.parsed(language.CandidatesRequest, body)
            slot = chosen(request, service, asked.model, asked.version, 1)
            return await answered(request, service, language.candidates(service, slot, asked))

    @app.post("/ground", responses={200: {"model": language.GroundAnswer}, **errors(404, 408, 413, 415, 429)})
    async def ground(request: Request) -> Response:
        """Return the labels that a free phrase may mean, by names, synonyms, spelling and the model."""
        async with service.bodies.of(request) as body:
            asked = schema.parsed(language.GroundRequest, body)
            slot = chosen(request, service, asked.model, asked.version, 1)
            return await answered(request, service, language.ground(service, slot, asked))


def add_corrections(app: FastAPI, service: Service) -> None:
    """Add the route that keeps what people accept and reject."""
    corrections = Corrections(service)

    @app.post(
        "/corrections",
        responses={200: {"model": CorrectionsAnswer}, **errors(404, 408, 413, 415, 429, 507)},
    )
    async def keep(request: Request) -> Response:
        """Keep decisions on the labels of a text; they are on the server's disk when it answers."""
        corrections.check(request)
        async with service.bodies.of(request) as body:
            asked = schema.parsed(CorrectionsRequest, body)
            slot = chosen(request, service, asked.model, None, 1)
            return await answered(request, service, corrections.keep(slot, asked, request.scope["passage"]))


def add_labels(app: FastAPI, service: Service) -> None:
    """Add the routes on labels."""

    @app.get("/labels", responses={200: {"model": schema.LabelsAnswer}, **errors(404, 429)})
    async def labels(
        request: Request,
        q: Annotated[
            str, Query(max_length=1000, description="Substring of a label's name or text; case is ignored.")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=LIMIT, description="Maximum number of labels to return.")] = 20,
        model: Model = None,
        version: Version = None,
    ) -> Response:
        """Search labels by name or text; labels that begin with the query come first."""
        slot = chosen(request, service, model, version)
        return await answered(request, service, service.labels(slot, q, limit))

    @app.get("/labels/{name:name}", responses={200: {"model": schema.LabelAnswer}, **errors(404, 429)})
    async def label(request: Request, name: str, model: Model = None, version: Version = None) -> Response:
        """Return a label's text, its number of training points, and its nearest labels."""
        slot = chosen(request, service, model, version)
        return await answered(request, service, service.label(slot, name))


def add_state(app: FastAPI, service: Service) -> None:
    """Add the routes for operators."""

    @app.get("/health", responses={200: {"model": schema.Status}})
    async def health() -> Response:
        """Liveness: the process responds."""
        return json_response({"status": "alive"})

    @app.get("/ready", responses={200: {"model": schema.Status}})
    async def ready() -> Response:
        """Readiness: 503 until the models are loaded, and while the service stops."""
        if not service.ready:
            raise Problem(503, "not ready: the service is starting or stopping")
        return json_response({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return metrics in Prometheus' text format."""
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4")


def add_pages(app: FastAPI) -> None:
    """Add the HTML pages and their files."""

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return files.page_file("index.html", request.headers.get("if-none-match"))

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        return files.page_file(name, request.headers.get("if-none-match"))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(html_page(app.openapi()), media_type="text/html")


async def on_problem(request: Request, problem: Exception) -> Response:
    """Respond to a request that we refuse."""
    assert isinstance(problem, Problem)
    return refused(request, problem)


async def on_http_error(request: Request, problem: Exception) -> Response:
    """Respond to an unknown path or a method that it does not allow."""
    assert isinstance(problem, HTTPException)
    messages = {404: NOT_FOUND, 405: f"method {request.method:.20} is not allowed for this path"}
    message = messages.get(problem.status_code, str(problem.detail))
    return refused(request, Problem(problem.status_code, message, dict(problem.headers or {})))


async def on_invalid_parameter(request: Request, problem: Exception) -> Response:
    """Respond to an invalid query parameter."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return refused(request, Problem(400, f"{first['loc'][-1]}: {first['msg']}"))


def refused(request: Request, problem: Problem) -> Response:
    """Return the response to a refused request, in Annif's form on its routes."""
    return (problem_response if request.scope["route_path"].startswith(PREFIX) else error_response)(problem)


async def on_failure(request: Request, problem: Exception) -> Response:
    """Respond to a bug without revealing anything about it; the gate logs it."""
    return error_response(FAILURE)
