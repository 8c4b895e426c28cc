"""Rank labels by the cosine of their text with a test point: `python examples/label_text_cosine.py DATA OUT.npz`.

A baseline in a few lines, and an example of scores of another program for `zipfel evaluate`.
"""

from __future__ import annotations

import sys

from scipy.sparse import save_npz

import zipfel
from zipfel.data.text import featurized
from zipfel.evaluate import ranked

data, out = sys.argv[1:3]
dataset = featurized(zipfel.read(data))  # X and Z: tf-idf of documents and label texts in one vocabulary
if dataset.test is None or dataset.Z is None:
    raise SystemExit(f"{data} must have a test part and label texts")
ranking = ranked(dataset.test.X @ dataset.Z.T, dataset, k=20)  # rows have length 1, so this is the cosine
save_npz(out, ranking.as_scores(dataset.sizes.labels))
