"""Read a thesaurus in SKOS: Turtle, N-Triples, RDF/XML or JSON-LD, as a stream of triples."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from zipfel.data.formats.concepts import CODE, LABEL, MEANING, NAME, NOTE, SYNONYM, Concepts
from zipfel.data.formats.files import opened, reason, unpacked_name
from zipfel.errors import DataError, check_installed

ENDINGS = {".ttl": "TURTLE", ".nt": "N_TRIPLES", ".rdf": "RDF_XML", ".xml": "RDF_XML", ".owl": "RDF_XML",
           ".jsonld": "JSON_LD"}  # fmt: skip
REMOTE = "has a context on the network, which is not fetched; write the context into the file, or convert it to Turtle"
_KINDS = {"TURTLE": "Turtle", "N_TRIPLES": "N-Triples", "RDF_XML": "RDF/XML", "JSON_LD": "JSON-LD"}
_SKOS, _RDF = "http://www.w3.org/2004/02/skos/core#", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_CONCEPT = f"{_SKOS}Concept"
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
        if use is None:
            continue
        if type(subject) is not NamedNode:
            concepts.anonymous += use == _TYPE and value.value == _CONCEPT
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
    if use == _TYPE and value == _CONCEPT:
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
        if stream.peek(3)[:3] == codecs.BOM_UTF8:  # type: ignore[attr-defined]  # all streams of `opened` have it
            stream.read(3)
        source: Any = _CheckedXml(stream, path) if kind == "RDF_XML" else stream
        try:
            yield from parse(source, getattr(RdfFormat, kind))
        except SyntaxError as error:
            if "remote context" in error.msg:
                raise DataError(REMOTE, path) from None
            raise DataError(f"broken {_KINDS[kind]}: {reason(Exception(error.msg))}", path, error.lineno) from None
        except MemoryError as error:  # of the parser: its buffer is 16 MiB
            raise DataError(f"holds a text or URI that is too long: {reason(error)}", path) from None
        except DataError:
            raise
        except ValueError as error:  # such as bytes that are no text
            raise DataError(f"cannot be parsed: {reason(error)}", path) from None


class _CheckedXml:
    """A stream of XML that is checked while it is read: the parser of RDF takes a file that is cut off as whole."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self.stream, self.path, self.parser = stream, path, expat.ParserCreate()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; raise DataError with the line at which they stop to be XML."""
        block = self.stream.read(size)
        try:
            self.parser.Parse(block, not block)
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code) if block else "the file ends too early"
            raise DataError(f"broken {_KINDS['RDF_XML']}: {problem}", self.path, error.lineno) from None
        return block
