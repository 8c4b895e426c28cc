"""Read a thesaurus in SKOS: Turtle, N-Triples, RDF/XML or JSON-LD, as a stream of triples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

from zipfel.data.formats.concepts import CODE, LABEL, MEANING, NAME, NOTE, SYNONYM, Concepts
from zipfel.data.formats.files import opened, reason, unpacked_name
from zipfel.errors import DataError, check_installed

ENDINGS = {".ttl": "TURTLE", ".nt": "N_TRIPLES", ".rdf": "RDF_XML", ".xml": "RDF_XML", ".owl": "RDF_XML",
           ".jsonld": "JSON_LD"}  # fmt: skip
REMOTE = "has a context on the network, which is not fetched; write the context into the file, or convert it to Turtle"
_KINDS = {"TURTLE": "Turtle", "N_TRIPLES": "N-Triples", "RDF_XML": "RDF/XML", "JSON_LD": "JSON-LD"}
_SKOS, _RDF = "http://www.w3.org/2004/02/skos/core#", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_TYPE, _DEPRECATED, _BROADER, _NARROWER = range(10, 14)
_USES = {
    f"{_RDF}type": _TYPE,
    "http://www.w3.org/2002/07/owl#deprecated": _DEPRECATED,
    f"{_SKOS}broader": _BROADER,
    f"{_SKOS}narrower": _NARROWER,
    f"{_SKOS}prefLabel": NAME,
    "http://www.w3.org/2000/01/rdf-schema#label": LABEL,
    f"{_SKOS}altLabel": SYNONYM,
    f"{_SKOS}hiddenLabel": SYNONYM,
    f"{_SKOS}definition": MEANING,
    f"{_SKOS}scopeNote": NOTE,
    f"{_SKOS}note": NOTE,
    f"{_SKOS}example": NOTE,
    f"{_SKOS}notation": CODE,
}


def is_skos(path: Path) -> bool:
    """Whether a file is a thesaurus by its ending."""
    return unpacked_name(path).endswith(tuple(ENDINGS))


def read_concepts(path: Path) -> Concepts:
    """Read all concepts of a file."""
    check_installed("reading a thesaurus", "skos", "pyoxigraph")
    from pyoxigraph import Literal, NamedNode

    concepts = Concepts()
    for quad in _triples(path):
        use, subject, value = _USES.get(quad.predicate.value), quad.subject, quad.object
        if use is None or type(subject) is not NamedNode:
            continue
        if type(value) is Literal:
            if use < _TYPE:
                concepts.text(subject.value, use, value.value, value.language or "")
            elif use == _DEPRECATED and value.value in ("true", "1"):
                concepts.withdraw(subject.value)
        else:
            _link(concepts, subject.value, use, value.value)
    return concepts


def _link(concepts: Concepts, subject: str, use: int, value: str) -> None:
    """Take a triple whose object is a resource."""
    if use == _TYPE and value == f"{_SKOS}Concept":
        concepts.declare(subject)
    elif use == _BROADER:
        concepts.broader(subject, value)
    elif use == _NARROWER:
        concepts.broader(value, subject)
    elif use in (MEANING, NOTE):
        concepts.unread += 1


def _triples(path: Path) -> Iterator[Any]:
    """Yield the triples of a file; raise DataError with the line where it is broken."""
    from pyoxigraph import RdfFormat, parse

    name = unpacked_name(path)
    kind = next(kind for ending, kind in ENDINGS.items() if name.endswith(ending))
    with opened(path) as stream:
        try:
            yield from parse(stream, getattr(RdfFormat, kind))
        except SyntaxError as error:
            if "remote context" in error.msg:
                raise DataError(REMOTE, path) from None
            line = error.lineno if kind != "RDF_XML" else _broken_line(path)
            raise DataError(f"broken {_KINDS[kind]}: {reason(Exception(error.msg))}", path, line) from None
        except ValueError as error:  # such as bytes that are no text
            raise DataError(f"cannot be parsed: {reason(error)}", path) from None


def _broken_line(path: Path) -> int | None:
    """Return the line at which a file stops to be XML; None if it is XML."""
    parser = expat.ParserCreate()
    with opened(path) as stream:
        try:
            parser.ParseFile(stream)
        except expat.ExpatError as error:
            return error.lineno
    return None
