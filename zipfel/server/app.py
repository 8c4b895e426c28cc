"""The routes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from zipfel import __version__
from zipfel.server import files, schema
from zipfel.server.answers import answer, error
from zipfel.server.docs import completed, shown
from zipfel.server.problem import Problem
from zipfel.server.service import Service

Model = Annotated[str | None, Query(max_length=200, description="One of /models; else the first of them.")]
LIMIT = 100  # labels that a search finds at most


def built(service: Service) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title="zipfel", version=__version__, description="Tags texts with labels.", docs_url=None, redoc_url=None,
        responses=refusals(400, 401, 405, 500), separate_input_output_schemas=False,
        redirect_slashes=False,
    )  # fmt: skip
    add_models(app, service)
    add_labels(app, service)
    add_state(app, service)
    add_pages(app)
    app.add_exception_handler(Problem, told)
    app.add_exception_handler(HTTPException, told_by_library)
    app.add_exception_handler(RequestValidationError, told_by_checks)
    app.add_exception_handler(Exception, told_of_failure)
    app.openapi = completed(app.openapi)  # type: ignore[method-assign]
    return app


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the document says of answers that are errors."""
    return {status: {"model": schema.Error} for status in statuses}


def add_models(app: FastAPI, service: Service) -> None:
    """Add what asks a model."""

    @app.post("/tag", responses={200: {"model": schema.TagAnswer}, **refusals(404, 408, 413, 429)})
    async def tag(request: Request) -> Response:
        """Tag texts; requests that arrive together are tagged together."""
        async with service.bodies.of(request) as body:
            asked = schema.parsed(schema.TagRequest, body)
            request.scope["passage"].texts = len(asked.texts)
            return answer(await service.tag(asked))

    @app.post("/explain", responses={200: {"model": schema.ExplainAnswer}, **refusals(404, 408, 413, 429)})
    async def explain(request: Request) -> Response:
        """Tell which terms of a text speak for a label, and which against it."""
        async with service.bodies.of(request) as body:
            asked = schema.parsed(schema.ExplainRequest, body)
            request.scope["passage"].texts = 1
            return answer(await service.explain(asked))

    @app.get("/models", responses={200: {"model": schema.Models}})
    async def models() -> Response:
        """List the models; the first is the default."""
        return answer(service.models())


def add_labels(app: FastAPI, service: Service) -> None:
    """Add what tells of labels."""

    @app.get("/labels", responses={200: {"model": schema.LabelsAnswer}, **refusals(404, 429)})
    async def labels(
        q: Annotated[str, Query(max_length=1000, description="Part of a name or a text, in any case.")] = "",
        limit: Annotated[int, Query(ge=1, le=LIMIT)] = 20,
        model: Model = None,
    ) -> Response:
        """Search labels by name or text; those that begin with what is searched come first."""
        return answer(await service.labels(q, limit, model))

    @app.get("/labels/{name:path}", responses={200: {"model": schema.LabelAnswer}, **refusals(404, 429)})
    async def label(name: str, model: Model = None) -> Response:
        """Tell a label's text, how many training points have it, and which labels are nearest to it."""
        return answer(await service.label(name, model))


def add_state(app: FastAPI, service: Service) -> None:
    """Add what operators ask."""

    @app.get("/health", responses={200: {"model": schema.Status}})
    async def health() -> Response:
        """Tell that the process is alive."""
        return answer({"status": "alive"})

    @app.get("/ready", responses={200: {"model": schema.Status}, **refusals(503)})
    async def ready() -> Response:
        """Tell whether requests are welcome: not before models are loaded, nor while the service stops."""
        if not service.ready:
            raise Problem(503, "not ready")
        return answer({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return counts as Prometheus reads them."""
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4")


def add_pages(app: FastAPI) -> None:
    """Add what people look at."""

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return files.page_file("index.html", request.headers.get("if-none-match"))

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        return files.page_file(name, request.headers.get("if-none-match"))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(shown(app.openapi()), media_type="text/html")


async def told(request: Request, problem: Exception) -> Response:
    """Answer with a problem of ours."""
    assert isinstance(problem, Problem)
    return error(problem)


async def told_by_library(request: Request, problem: Exception) -> Response:
    """Answer with what the library found: no such path, or no such method."""
    assert isinstance(problem, HTTPException)
    what = {404: "nothing is here", 405: f"{request.method:.20} is not for this path"}
    message = what.get(problem.status_code, str(problem.detail))
    return error(Problem(problem.status_code, message, dict(problem.headers or {})))


async def told_by_checks(request: Request, problem: Exception) -> Response:
    """Answer with what is wrong with a parameter."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return error(Problem(400, f"{first['loc'][-1]}: {first['msg']}"))


async def told_of_failure(request: Request, problem: Exception) -> Response:
    """Answer with nothing that an error of ours might give away; what stands before us logs it."""
    return error(Problem(500, "something went wrong in the server"))
