"""Train on synthetic data with many labels: `python examples/many_labels.py [LABELS]`, a million by default.

The truth is planted, so that P@1 shows whether the model has found it.
"""

from __future__ import annotations

import sys

from zipfel import Tagger
from zipfel.data.synthetic import Synthetic, make


def main(labels: int = 1_000_000) -> None:
    """Make data with two points for each label, train one epoch of GLaS, and evaluate."""
    dataset = make(Synthetic(points=2 * labels, labels=labels, noise=0.2, seed=0))
    tagger = Tagger("glas", "fast", settings={"dimension": 128, "epochs": 5}).fit_dataset(dataset)
    assert dataset.test is not None
    score = tagger.score(dataset.test.X, dataset.test.Y)
    print(
        f"{labels:,} labels, {len(dataset.train):,} points: trained in {tagger.outcome_.seconds:.0f} s, P@1 {score:.1%}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
