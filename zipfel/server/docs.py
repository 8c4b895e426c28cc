"""The OpenAPI document: bodies that the routes read themselves are added, and it is shown without foreign scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import orjson
from pydantic import BaseModel

from zipfel.server import schema

BODIES: dict[str, type[BaseModel]] = {"/tag": schema.TagRequest, "/explain": schema.ExplainRequest}
REF = "#/components/schemas/{model}"


def completed(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Return what makes the document with all that it must tell."""

    def document() -> dict[str, Any]:
        made = make()
        schemas = made["components"]["schemas"]
        for path, kind in BODIES.items():
            schemas[kind.__name__] = kind.model_json_schema(ref_template=REF)
            content = {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}
            made["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        for operation in (operation for path in made["paths"].values() for operation in path.values()):
            operation["responses"].pop("422", None)  # ours are 400
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{}, {"token": []}]
        return made

    return document


def shown(document: Mapping[str, Any]) -> str:
    """Return the document as a plain page."""
    parts = [
        _operation(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    shapes = [
        f"<h3 id='{escape(name)}'>{escape(name)}</h3><pre>{_json(shape)}</pre>"
        for name, shape in document["components"]["schemas"].items()
    ]
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>zipfel: API</title><h1>zipfel: API</h1>"
        "<p>As a document for programs: <a href='/openapi.json'>openapi.json</a></p>"
        f"{''.join(parts)}<h2>Bodies</h2>{''.join(shapes)}</html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<li><code>{escape(p['name'])}</code> ({escape(p['in'])}) {escape(p.get('description', ''))}</li>"
        for p in operation.get("parameters", ())
    )
    asked, answered = _reference(operation.get("requestBody", {})), _reference(operation["responses"]["200"])
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
        f"<ul>{parameters}</ul><p>{asked and 'Takes ' + asked + '. '}{answered and 'Answers ' + answered + '.'}</p>"
    )


def _reference(body: Mapping[str, Any]) -> str:
    reference = body.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    name = escape(reference.rpartition("/")[2])
    return f"<a href='#{name}'>{name}</a>" if name else ""


def _json(value: Any) -> str:
    return escape(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
