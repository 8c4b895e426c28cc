"""How long a saved model of a given size takes to its first answer: `python -m benchmarks.load_speed [GIGABYTES]`.

A GLaS of random weights is saved, and loaded in a fresh process with a warm cache: seconds from `Tagger.load` to the
first tags, imports apart. One JSON line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel.models.glas import Glas
from zipfel.tagger import Tagger, settings_of
from zipfel.training.trainer import Outcome

LABELS, TOKENS = 50_000, 100
FIRST_ANSWER = """
import sys, time
import numpy as np
from scipy.sparse import csr_array
from zipfel.tagger import Tagger
import zipfel.models.glas
width = int(sys.argv[2])
row = csr_array((np.ones(100, np.float32), np.arange(0, width, width // 100)[:100], [0, 100]), shape=(1, width))
start = time.perf_counter()
tagger = Tagger.load(sys.argv[1], device="cpu")
loaded = time.perf_counter()
tagger.predict(row)
print(loaded - start, time.perf_counter() - start)
"""


def made(features: int) -> Tagger:
    """Return a tagger with random weights."""
    tagger = Tagger("glas", device="cpu")
    tagger.settings_, tagger.features_ = settings_of("glas"), None
    tagger.model_ = Glas(features, LABELS, tagger.settings_, torch.Generator().manual_seed(0))
    tagger.classes_ = [f"label {number}" for number in range(LABELS)]
    tagger.learner_, tagger.outcome_ = tagger.model_.learner(), Outcome(None, -1, 0, 0.0)
    return tagger


def main(gigabytes: float) -> None:
    features = int(gigabytes * 1e9 / 4 / 1024) - LABELS
    tagger = made(features)
    tagger.rank(csr_array((np.ones(1, np.float32), ([0], [0])), shape=(1, features)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        tagger.save(path)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        command = [sys.executable, "-c", FIRST_ANSWER, str(path), str(features)]
        times = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(5)]
    loaded, answered = np.median(np.array(times, dtype=float), axis=0).tolist()
    figures = {"GB": round(size / 1e9, 2), "load_s": round(loaded, 3), "first_answer_s": round(answered, 3)}
    record("load_speed", figures, 0, ("torch",))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
