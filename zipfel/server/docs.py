"""The OpenAPI document, with the request bodies that routes parse themselves, and its HTML page without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import orjson
from pydantic import BaseModel

from zipfel.server import corrections, language, schema

BODIES: dict[str, type[BaseModel]] = {
    "/tag": schema.TagRequest,
    "/explain": schema.ExplainRequest,
    **language.BODIES,
    **corrections.BODIES,
}
REF = "#/components/schemas/{model}"


def with_bodies(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Wrap `make`, which returns FastAPI's document: add request bodies and the token, drop status 422."""

    def complete() -> dict[str, Any]:
        document = make()
        schemas = document["components"]["schemas"]
        for path, kind in BODIES.items():
            schemas[kind.__name__] = kind.model_json_schema(ref_template=REF)
            schemas.update(schemas[kind.__name__].pop("$defs", {}))  # the parts of a body
            content = {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}
            document["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            operation["responses"].pop("422", None)  # we respond with 400
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"token": []}]
        return document

    return complete


def html_page(document: Mapping[str, Any]) -> str:
    """Return the document as a plain HTML page."""
    operations_html = [
        _operation(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    schemas_html = [
        f"<h3 id='{escape(name)}'>{escape(name)}</h3><pre>{_json(content)}</pre>"
        for name, content in document["components"]["schemas"].items()
    ]
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        "<title>zipfel: API</title><link rel='stylesheet' href='page/docs.css'><main><h1>zipfel: API</h1>"
        "<p>Machine-readable: <a href='openapi.json'>openapi.json</a></p>"
        f"{''.join(operations_html)}<h2>Request and response bodies</h2>{''.join(schemas_html)}</main></html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<li><code>{escape(p['name'])}</code> ({escape(p['in'])}) {escape(p.get('description', ''))}</li>"
        for p in operation.get("parameters", ())
    )
    request, response = _reference(operation.get("requestBody", {})), _reference(operation["responses"].get("200", {}))
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
        f"<ul>{parameters}</ul><p>{request and f'Request: {request}. '}{response and f'Response: {response}.'}</p>"
    )


def _reference(body: Mapping[str, Any]) -> str:
    reference = body.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    name = escape(reference.rpartition("/")[2])
    return f"<a href='#{name}'>{name}</a>" if name else ""


def _json(value: Any) -> str:
    return escape(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
