"""Cost of tagging a file: `python -m benchmarks.predict_stream MODEL TEXTS [rows=10000,100000] [ending=.jsonl]`.

Repeats the lines of a text file up to each number of rows and tags them with `zipfel predict --out` in a fresh process.
One JSON line per size: texts per second, and peak memory, which should not depend on the size.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from benchmarks.record import record
from zipfel.config import words_of


def tagged(model: str, source: Path, out: Path) -> dict[str, float]:
    """Tag a file; return seconds, and the peak memory of the process in GB."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "zipfel", "predict", model, "--input", str(source), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(status)
    scale = 1e9 if sys.platform == "darwin" else 1e6  # ru_maxrss is in bytes on macOS, in kilobytes on Linux
    return {"seconds": round(time.perf_counter() - start, 2), "peak GB": round(usage.ru_maxrss / scale, 3)}


def main(words: list[str]) -> None:
    model, texts = words[:2]
    options = words_of(words[2:])
    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    for rows in map(int, options.get("rows", "10000,100000").split(",")):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "in.txt"
            with source.open("w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in islice(cycle(lines), rows))
            figures = tagged(model, source, Path(folder) / f"out{options.get('ending', '.jsonl')}")
        rate = {"texts a second": round(rows / figures["seconds"])}
        record("predict_stream", {"rows": rows, **figures, **rate}, 0, ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
