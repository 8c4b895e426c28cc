"""Dense embeddings as points: every model learns from them as from sparse features."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from scipy.sparse import csr_array

from zipfel.errors import DataError
from zipfel.server.catalog import Catalog
from zipfel.server.settings import Sources
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


# --- Vectors beside texts ---------------------------------------------------------------------------------------------

WORDS = ["alpha", "beta", "gamma", "delta"]


def both(count: int, seed: int) -> tuple[dict[str, Any], list[list[str]]]:
    """Return points of which the word decides one tag, and the vector, of any length, another."""
    draws = np.random.default_rng(seed)
    words, sides = draws.integers(0, 4, count), draws.integers(0, 2, count)
    vectors = draws.normal(0, 0.2, (count, 3)) + np.where(sides == 1, 1, -1)[:, None] * [1.0, 0.0, 0.0]
    vectors *= draws.uniform(0.1, 10, (count, 1))
    tags = [[WORDS[word], f"side {side}"] for word, side in zip(words, sides, strict=True)]
    return {"text": [f"{WORDS[word]} word" for word in words], "vector": vectors.astype(np.float32)}, tags


def mixed(model: str = "glas", **given: Any) -> Tagger:
    settings = {"dimension": 16, "epochs": 40, "learning_rate": 0.03}
    least = {} if model == "mnn" else {"min_steps": 1}
    defaults = {"settings": settings | least, "text": {"min_count": 1}, "validation": 0, "device": "cpu"}
    return Tagger(model, **{**defaults, **given})


@pytest.mark.parametrize("model", ["glas", "lightdxml", "decaf", "mnn"])
def test_texts_and_vectors_decide_together(model, tmp_path):
    points, tags = both(120, 0)
    new, truth = both(40, 1)
    tagger = mixed(model).fit(points, tags)
    predicted = tagger.predict(new, 2)
    right = np.mean([{tag.label for tag in row} == set(own) for row, own in zip(predicted, truth, strict=True)])
    assert right > 0.8  # words alone, or vectors alone, leave a tag to chance
    tagger.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model", device="cpu").predict(new, 2) == predicted
    with pytest.raises(DataError, match="was fitted on vectors beside texts; only models fitted on texts alone can be"):
        Catalog(Sources({"m": [tmp_path / "model"]}))
    assert tagger.known({"text": ["zyzzyva", "zyzzyva"], "vector": np.array([[1, 0, 0], [0, 0, 0]])}).tolist() == [
        True,
        False,
    ]


def test_vectors_beside_texts_in_any_form():
    points, tags = both(30, 0)
    quick = {"settings": {"dimension": 4, "epochs": 2, "min_steps": 1}}
    wanted = mixed(**quick).fit(points, tags)
    answers, vectors = wanted.predict(points, 3), points["vector"]
    for form in (
        list(vectors),
        vectors.tolist(),
        pandas.Series(list(vectors)),
        torch.tensor(vectors),
        csr_array(vectors),
    ):
        assert mixed(**quick).fit({**points, "vector": form}, tags).predict({**points, "vector": form}, 3) == answers
    scaled = {**points, "vector": 7 * vectors}
    assert [[tag.label for tag in row] for row in wanted.predict(scaled, 3)] == [[t.label for t in r] for r in answers]
    for kind in (pandas.DataFrame, polars.DataFrame, pyarrow.table):
        frame = kind({"id": list(range(30)), "text": points["text"], "vector": vectors.tolist()})
        tagger = mixed(text_columns=["text", "vector"], **quick).fit(frame, tags)
        assert tagger.predict(frame, 3) == wanted.predict(frame, 3) == answers
    alone = mixed(**quick).fit({"vector": vectors}, tags)
    assert alone.predict({"vector": vectors}, 3) == mixed(**quick).fit(vectors, tags).predict(vectors, 3)


def test_words_of_mixed_models_are_explained_and_grow():
    points, tags = both(60, 0)
    tagger = mixed(warm_start=True).fit(points, tags)
    width = tagger.n_features_in_
    assert {reason.term for reason in tagger.explain("alpha word", "alpha")} == {"alpha", "word"}
    tagger.fit({"text": ["zebra herd"] * 9, "vector": np.ones((9, 3))}, [["animal"]] * 9)
    assert tagger.n_features_in_ == width + 2
    assert tagger.features_.terms[:4] == ["vector[0]", "vector[1]", "vector[2]", "word"]
    assert tagger.features_.terms[-2:] == ["herd", "zebra"]
    described = mixed("decaf").fit(points, tags, label_texts={"alpha": "alpha word"})
    assert described.predict(points, 1, extra={"new": "beta word"})


def test_missing_and_wrong_vectors_are_refused():
    points, tags = both(20, 0)
    tagger = mixed().fit(points, tags)
    expected = "the model expects as vectors beside the texts: 'vector' of 3 numbers; found: "
    for X, found in (
        (["alpha"], "none"),
        ({"text": ["alpha"], "vector": [[1.0, 2.0]]}, "'vector' of 2 numbers"),
        ({"text": ["alpha"], "vectors": [[1.0, 2.0, 3.0]]}, "'vectors' of 3 numbers"),
    ):
        with pytest.raises(DataError, match=re.escape(expected + found)):
            tagger.predict(X)
    with pytest.raises(DataError, match="the model expects as vectors beside the texts: none; found: 'vector' of 3"):
        mixed().fit(points["text"], tags).predict(points)
    with pytest.raises(DataError, match=r"vectors of 'vector' \(19\) differ from rows of Y \(20\)"):
        mixed().fit({**points, "vector": points["vector"][1:]}, tags)
    with pytest.raises(DataError, match="the model was fitted on texts; found a matrix"):
        tagger.predict({"vector": points["vector"]})
