"""How long a thesaurus takes to read, and in how much memory: python -m benchmarks.thesaurus_speed --concepts 200000.

Writes N-Triples or Turtle of that many concepts (seven triples each: type, name, two synonyms, definition, notation and
broader concept, in a tree of eight narrower concepts each), reads them in a process of its own, hierarchy included, and
makes a data set of one document with all of them as labels. Generating is not measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.record import record

SKOS = "http://www.w3.org/2004/02/skos/core#"
NARROWER = 8


def triples(count: int) -> Iterator[str]:
    """Yield the N-Triples of a concept at a time."""
    for number in range(count):
        concept = f"<http://example.org/concept/{number}>"
        rows = [
            f"<http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <{SKOS}Concept>",
            f'<{SKOS}prefLabel> "name of concept {number}"@en',
            f'<{SKOS}altLabel> "synonym {number}"@en',
            f'<{SKOS}altLabel> "another word for {number}"@en',
            f'<{SKOS}definition> "A thing of kind {number} that people write about in their texts."@en',
            f'<{SKOS}notation> "{number / 1000}"',
        ]
        if number:
            rows.append(f"<{SKOS}broader> <http://example.org/concept/{(number - 1) // NARROWER}>")
        yield "".join(f"{concept} {row} .\n" for row in rows)


def read(path: Path) -> dict[str, float]:
    """Read a thesaurus and a corpus with it; return seconds and peak memory."""
    from zipfel.data.formats import TableSettings
    from zipfel.data.formats import read as read_dataset
    from zipfel.data.formats.thesaurus import read_thesaurus

    start = time.perf_counter()
    count = len(read_thesaurus(path).ids)
    loaded = time.perf_counter() - start
    memory = peak()
    corpus = path.with_suffix(".tsv")
    corpus.write_text("a text\t<http://example.org/concept/1>\n")
    start = time.perf_counter()
    read_dataset(corpus, TableSettings(label_texts=path))
    whole = time.perf_counter() - start
    return {"concepts": count, "seconds": round(loaded, 2), "GB": round(memory, 2),
            "seconds with corpus": round(whole, 2), "GB with corpus": round(peak(), 2)}  # fmt: skip


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--concepts", type=int, default=200_000)
    parser.add_argument("--format", choices=("nt", "ttl"), default="nt")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        print(json.dumps(read(options.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"thesaurus.{options.format}"
        with path.open("w") as file:
            file.writelines(triples(options.concepts))
        size = path.stat().st_size
        words = [sys.executable, "-m", "benchmarks.thesaurus_speed", "--read", str(path)]
        figures = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    record("thesaurus_speed", {"format": options.format, "MB": round(size / 1e6, 1), **figures}, 0, ("pyoxigraph",))


if __name__ == "__main__":
    main()
