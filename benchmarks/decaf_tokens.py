"""Which tokens DECAF's vectors of documents are made of: `python -m benchmarks.decaf_tokens DATA [--preset paper]`.

The paper's Fig. 3 says that stop words are discarded. We keep them; this shows what training makes of them. A token's
norm is ‖e_t‖; its pull is its share of r̂ = E x, the mean of x_t e_t · r̂ / ‖r̂‖² over the documents that have it (the
shares of a document's tokens add up to 1); its weight is the mean of x_t / Σ x over them, the share by tf-idf alone.

Prints one JSON line: the tokens with the largest and the smallest norm and pull; and norm, pull, weight and rank by
pull of STOP_WORDS. Options: --seed 0, --top 20, --device auto, key=value settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from benchmarks.decaf_bound import trained
from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.formats import read
from zipfel.data.text import featurized

STOP_WORDS = ("a", "an", "and", "as", "at", "by", "for", "from", "in", "is", "of", "on", "or", "the", "to", "with")
FEWEST = 5  # documents that a token must be in to be listed


def pulls(X: csr_array, E: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the mean share of each token in r̂ = E x over the documents that have it, [V].

    X: [N, V].  E: [V, D].

    >>> pulls(csr_array([[1.0, 1.0]]), np.array([[3.0, 0.0], [0.0, 1.0]])).tolist()  # r̂ = (3, 1): 9 and 1 of 10
    [0.9, 0.1]
    """
    sums = X @ E  # [N, D]
    sums /= np.maximum((sums * sums).sum(axis=1, keepdims=True), 1e-12)
    return np.asarray(((X.T @ sums) * E).sum(axis=1) / np.maximum(np.diff(X.tocsc().indptr), 1))


def weights(X: csr_array) -> NDArray[np.float64]:
    """Return the mean share of each token in Σ x over the documents that have it, [V].

    >>> weights(csr_array([[1.0, 3.0], [0.0, 2.0]])).tolist()
    [0.25, 0.875]
    """
    shares = diags_array(1 / np.maximum(X.sum(axis=1), 1e-12)) @ X
    return np.asarray(shares.sum(axis=0) / np.maximum(np.diff(X.tocsc().indptr), 1))


def listed(terms: Sequence[str], X: csr_array, E: NDArray[np.floating], top: int) -> dict[str, Any]:
    """Return the first and last tokens by norm and by pull, and the stop words among them, as JSON values."""
    frequent = np.flatnonzero(np.diff(X.tocsc().indptr) >= FEWEST)
    figures = {"norm": np.linalg.norm(E, axis=1), "pull": pulls(X, E), "weight": weights(X)}
    found: dict[str, Any] = {"tokens": len(frequent)}
    for name in ("norm", "pull"):
        order = frequent[np.argsort(-figures[name][frequent], kind="stable")]
        found[f"largest {name}"] = [terms[token] for token in order[:top]]
        found[f"smallest {name}"] = [terms[token] for token in order[::-1][:top]]
    ranks = {int(token): rank for rank, token in enumerate(order)}  # by pull
    found["stop words"] = {
        terms[token]: {**{name: round(float(values[token]), 4) for name, values in figures.items()}, "rank": rank}
        for token, rank in ranks.items()
        if terms[token] in STOP_WORDS
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens of DECAF by norm and by pull.")
    parser.add_argument("data")
    parser.add_argument("changes", nargs="*", help="settings: key=value")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    dataset, changes = featurized(read(asked.data)), words_of(asked.changes)
    model = trained(dataset, asked.preset, changes, asked.seed, asked.device)
    E = model.all_networks()[0].tokens.rows.detach().cpu().numpy().astype(np.float64)
    terms = dataset.feature_names or [str(token) for token in range(dataset.sizes.features)]
    about = {"data": dataset.name, "preset": asked.preset, "changes": changes}
    record("decaf_tokens", {**about, **listed(terms, dataset.train.X, E, asked.top)}, asked.seed, ("torch",))


if __name__ == "__main__":
    main()
