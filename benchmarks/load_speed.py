"""Time from loading a saved model to its first answer: `python -m benchmarks.load_speed [GIGABYTES]`.

Saves a GLaS model with random weights, and loads it in a fresh process with a warm file cache: seconds from
`Tagger.load` to the first tags, without imports. One JSON line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel.choice import Choice
from zipfel.data.labels import LabelSpace
from zipfel.fitting import Blueprint, Fitted
from zipfel.models.base import settings_of
from zipfel.tagger import Tagger
from zipfel.training.trainer import Outcome

LABELS = 50_000
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


def untrained(features: int) -> Tagger:
    """Return a tagger with random weights."""
    tagger = Tagger("glas", device="cpu")
    labels = LabelSpace([f"label {number}" for number in range(LABELS)], [0] * LABELS)
    blueprint = Blueprint(Choice("glas", "default"), settings_of("glas"), None, labels)
    model = blueprint.built(features, seed=0)
    tagger.fitted_ = Fitted(blueprint, model, model.predictor(), Outcome(None, -1, 0, 0.0))
    return tagger


def main(gigabytes: float) -> None:
    features = int(gigabytes * 1e9 / 4 / 1024) - LABELS
    tagger = untrained(features)
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
