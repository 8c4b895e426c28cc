"""Dense embeddings as points: every model learns from them as from sparse features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from zipfel.errors import DataError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS, DIMENSION = 8, 16
SETTINGS = {
    "glas": {"epochs": 15, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02},
    "mnn": {"epochs": 5},
    "dxml": {"epochs": 5},
    "lightdxml": {"epochs": 15, "min_steps": 1, "batch_size": 64},
    "decaf": {"dimension": 32, "min_steps": 300, "batch_size": 64},
}


def sample(points: int, seed: int) -> tuple[np.ndarray, list[list[str]]]:
    """Return unit vectors, each the sum of the vectors of its tags and noise; about half of the values are negative."""
    draws, vectors = np.random.default_rng(seed), np.random.default_rng(7).normal(size=(LABELS, DIMENSION))
    tags = [draws.choice(LABELS, size=draws.integers(1, 3), replace=False) for _ in range(points)]
    X = np.array([vectors[row].sum(axis=0) for row in tags]) + 0.3 * draws.normal(size=(points, DIMENSION))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X.astype(np.float32), [[f"l{label}" for label in row] for row in tags]


X, TAGS = sample(300, 0)
TEST, TRUTH = sample(100, 1)


def made(model: str) -> Tagger:
    settings = {"dimension": 16, **SETTINGS[model]}
    return Tagger(model, settings=settings, device="cpu", validation=0.1)


@pytest.mark.parametrize("model", SETTINGS)
def test_every_model_learns_from_embeddings(model, tmp_path):
    tagger = made(model).fit(X, TAGS)
    assert tagger.score(TEST, TRUTH) > 0.9
    assert tagger.n_features_in_ == DIMENSION
    tagger.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model", device="cpu").predict(TEST, 2) == tagger.predict(TEST, 2)


def test_dense_and_sparse_matrices_and_tensors_train_the_same_model():
    wanted = made("glas").fit(X, TAGS)
    for kind in (csr_array, torch.tensor, lambda X: X.astype(np.float64), lambda X: X.tolist()):
        other = made("glas").fit(kind(X), TAGS)
        for name, value in wanted.model_.state_dict().items():
            assert torch.equal(value, other.model_.state_dict()[name])
        assert other.predict(kind(TEST), 2) == wanted.predict(TEST, 2)


def test_a_single_vector_is_refused_with_the_remedy():
    tagger = made("mnn").fit(X, TAGS)
    with pytest.raises(DataError, match=r"found a flat array of numbers\. Reshape your data: X\.reshape\(1, -1\)"):
        tagger.predict(TEST[0])
    assert len(tagger.predict(TEST[0].reshape(1, -1), 1)) == 1
    with pytest.raises(DataError, match="X has 15 features, but Tagger is expecting 16 features as input"):
        tagger.predict(TEST[:, :15])
