"""Read a thesaurus: SKOS, or a vocabulary of Annif in TSV (`<uri>`, name, notation) or CSV (`uri`, `label_en`, ...)."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from zipfel.data.formats import skos
from zipfel.data.formats.concepts import CODE, NAME, Concepts, Thesaurus
from zipfel.data.formats.files import text_lines, unpacked_name
from zipfel.data.formats.table_files import open_table
from zipfel.errors import DataError, quoted

_LANGUAGE = "label_"  # begins the names of columns with names in a language


def is_thesaurus(path: Path, encoding: str | None = None) -> bool:
    """Whether a file is a thesaurus: by its ending, or a vocabulary of Annif by its first line."""
    if skos.is_skos(path):
        return True
    if not path.is_file() or not unpacked_name(path).endswith((".tsv", ".csv")):
        return False
    if unpacked_name(path).endswith(".csv"):
        columns = open_table(path, encoding).columns
        return columns[0] == "uri" and any(name.startswith(_LANGUAGE) for name in columns)
    with closing(text_lines(path, encoding or "utf-8")) as lines:  # type: ignore[type-var]
        first = next(filter(str.strip, lines), "").partition("\t")[0].strip()
    return first.startswith("<") and first.endswith(">")


def read_thesaurus(
    path: Path | str, language: str | None = None, hierarchy: bool = True, encoding: str | None = None
) -> Thesaurus:
    r"""Read a thesaurus, with names in a language; None is that of most names.

    Args:
        path: SKOS in .ttl, .nt, .rdf or .jsonld (extra `skos`), or a vocabulary of Annif in .tsv or .csv.
        language: of names, such as "en".
        hierarchy: whether to read broader concepts; a cycle is an error.
        encoding: of a vocabulary of Annif; default: utf-8.

    Returns:
        The concepts, which `label_texts` of `Tagger.fit` takes; its `notes` say what was left out.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "subjects.tsv")
        ...     _ = path.write_text("<http://example.org/c1>\tprinters\n")
        ...     read_thesaurus(path).names
        ['printers']
    """
    path = Path(os.fspath(path))
    if not path.is_file():
        raise DataError("no such file", path)
    if not is_thesaurus(path, encoding):
        endings = ", ".join(skos.ENDINGS)
        raise DataError(f"not a thesaurus: expected {endings}, or a vocabulary of Annif in .tsv or .csv", path)
    if skos.is_skos(path):
        concepts = skos.read_concepts(path)
    elif unpacked_name(path).endswith(".tsv"):
        concepts = _tsv(path, encoding or "utf-8", language or "")
    else:
        concepts = _csv(path, encoding)
    return concepts.thesaurus(path, language, hierarchy)


def _tsv(path: Path, encoding: str, language: str) -> Concepts:
    """Read lines `<uri>`, name and perhaps notation; a subject without a name is deprecated."""
    concepts = Concepts()
    for number, line in enumerate(text_lines(path, encoding), start=1):
        uri, *cells = (cell.strip() for cell in line.rstrip("\r\n").split("\t", 2))
        if not uri and not cells:
            continue
        if not (uri.startswith("<") and uri.endswith(">") and len(uri) > 2):
            raise DataError(f"expected <uri>, a tab and a name; found {quoted(line.strip())}", path, number)
        _add(concepts, path, number, uri[1:-1], {language: cells[0] if cells else ""}, *cells[1:])
    return concepts


def _csv(path: Path, encoding: str | None) -> Concepts:
    """Read the columns uri, notation and label_LANGUAGE; a subject without a name is deprecated."""
    concepts, table = Concepts(), open_table(path, encoding)
    languages = [name for name in table.columns if name.startswith(_LANGUAGE)]
    for number, (uri, *cells) in table.rows(["uri", *languages, *table.present(["notation"])]):
        uri = str(uri).strip().removeprefix("<").removesuffix(">")
        if not uri:
            raise table.error("the URI of the subject is empty", number)
        names = {name.removeprefix(_LANGUAGE): cell for name, cell in zip(languages, cells, strict=False)}
        _add(concepts, path, number, uri, names, *cells[len(languages) :])
    return concepts


def _add(concepts: Concepts, path: Path, line: int, uri: str, names: dict[str, str], notation: str = "") -> None:
    if uri in concepts.numbers:
        raise DataError(f"the subject {quoted(uri, 100)} is repeated", path, line)
    concepts.declare(uri)
    named = {language: name for language, name in names.items() if name.strip()}
    if not named:
        concepts.withdraw(uri)
    for language, name in named.items():
        concepts.text(uri, NAME, name, language)
    if notation.strip():
        concepts.text(uri, CODE, notation)
