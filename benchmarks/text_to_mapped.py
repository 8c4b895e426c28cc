"""Texts to a mapped folder: `python -m benchmarks.text_to_mapped FOLDER [key=value ...]`.

Writes synthetic texts as lines of JSON, more and more of them, and converts each file by `zipfel.data.stream` in a
process of its own: with one process, and with as many as there are cores. Own memory is that of the first process,
anonymous. FOLDER is emptied. Defaults: rows=100000,1000000 words=40 vocabulary=200000 labels=10000. One JSON line.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.record import record
from benchmarks.sharded_labels import measured
from zipfel.config import words_of
from zipfel.data.processes import cores

SEED, BLOCK = 0, 10_000
DEFAULTS = {"rows": "100000,1000000", "words": "40", "vocabulary": "200000", "labels": "10000"}


def generate(path: Path, rows: int, told: dict[str, str]) -> None:
    """Write texts of words with Zipfian frequencies, and two labels each."""
    numbers, vocabulary = np.random.default_rng(SEED), int(told["vocabulary"])
    masses = 1 / np.arange(1, vocabulary + 1)
    bounds = np.cumsum(masses / masses.sum())
    with path.open("wb") as file:
        for start in range(0, rows, BLOCK):
            size = min(BLOCK, rows - start)
            ids = np.searchsorted(bounds, numbers.random((size, int(told["words"])))).tolist()
            labels = numbers.integers(0, int(told["labels"]), (size, 2)).tolist()
            for words, tags in zip(ids, labels, strict=True):
                row = {"text": " ".join(f"word{word}" for word in words), "labels": [f"label {tag}" for tag in tags]}
                file.write(orjson.dumps(row) + b"\n")


def convert(source: Path, target: Path, processes: int) -> None:
    """Convert in this process, and print figures."""
    from zipfel.data import stream
    from zipfel.data.formats import TableSettings
    from zipfel.data.splits import Preparation
    from zipfel.data.text import TextSettings

    tables = stream.tables_of(source, TableSettings())
    assert tables is not None
    with measured() as figures:
        stream.convert(tables, target, Preparation(holdout=0.01), TextSettings(), processes)
    sys.stdout.write(orjson.dumps({**figures, "processes": processes}).decode() + "\n")


def main(folder: Path, told: dict[str, str]) -> None:
    """Measure each size."""
    sizes = []
    for rows in map(int, told["rows"].split(",")):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        source = folder / "texts.jsonl"
        generate(source, rows, told)
        row: dict[str, Any] = {"rows": rows, "text_gb": round(source.stat().st_size / 1e9, 2), "runs": []}
        for processes in sorted({1, cores()}):
            target = folder / f"mapped-{processes}"
            words = ["--convert", str(source), str(target), str(processes)]
            command = [sys.executable, "-m", "benchmarks.text_to_mapped", *words]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            row["runs"].append(orjson.loads(done.stdout))
        sizes.append(row)
        sys.stderr.write(f"{row}\n")
    record("text_to_mapped", {**told, "sizes": sizes}, SEED)


if __name__ == "__main__":
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main(Path(sys.argv[1]), {**DEFAULTS, **words_of(sys.argv[2:])})
