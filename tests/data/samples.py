"""Small data sets that use everything a format can hold, and a comparison of two data sets."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, random_array

from zipfel.data.dataset import Dataset, Part, Propensity

ODD_TEXTS = ["", " ends ", "two\nlines", "tab\there", "quote \" and ' , ;", "cr\rhere", "Ünïcödé 字 🙂", "[1]", "NaN"]


def features_dataset(seed: int = 0, points: int = 30, features: int = 12, labels: int = 8) -> Dataset:
    """Return features with everything beside them; some rows have no labels, no features, or neither."""
    rng = np.random.default_rng(seed)
    parts = {
        name: Part(_labels(rng, size, labels), X=_matrix(rng, size, features), filtered=_labels(rng, size, labels))
        for name, size in (("train", points), ("test", points // 2), ("validation", points // 3))
    }
    return Dataset(
        **parts,
        name="sample",
        label_names=[f"label {i} ü" for i in range(labels)],
        feature_names=[f" word\t{i} 字" for i in range(features)],
        Z=_matrix(rng, labels, features),
        propensity=Propensity(0.5, 0.4),
    )


def texts_dataset(seed: int = 0, points: int = 20, labels: int = 6) -> Dataset:
    """Return texts with everything beside them, odd ones among them."""
    rng = np.random.default_rng(seed)
    parts = {
        name: Part(
            _labels(rng, size, labels),
            texts={"title": _texts(rng, size), "content": _texts(rng, size)},
            uids=[f"{name} {i}" for i in range(size)],
            filtered=_labels(rng, size, labels),
        )
        for name, size in (("train", points), ("test", points // 2), ("validation", points // 4))
    }
    return Dataset(
        **parts,
        name="sample",
        label_names=["a", "a, b", "[c]", '"', "ü; |", "null", *(str(i) for i in range(labels))][:labels],
        label_texts={"title": _texts(rng, labels), "content": _texts(rng, labels)},
        propensity=Propensity(0.6, 2.6),
    )


def _texts(rng: np.random.Generator, size: int) -> list[str]:
    return [ODD_TEXTS[i] + str(row) * int(i > 0) for row, i in enumerate(rng.integers(len(ODD_TEXTS), size=size))]


def _labels(rng: np.random.Generator, points: int, labels: int) -> csr_array:
    return csr_array(random_array((points, labels), density=0.2, rng=rng, data_sampler=lambda size: np.ones(size)))


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> csr_array:
    """Return random float32 values of all magnitudes; some rows and columns are empty."""

    def sample(size: int) -> np.ndarray:
        return rng.standard_normal(size) * 10.0 ** rng.integers(-8, 8, size=size)

    matrix = csr_array(random_array((rows, columns), density=0.3, rng=rng, data_sampler=sample)).astype(np.float32)
    return csr_array(matrix * (np.arange(rows) % 5 != 2)[:, None])


def assert_same_matrix(one: csr_array | None, other: csr_array | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.shape == other.shape
        assert one.dtype == other.dtype == np.float32
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def assert_same(one: Dataset, other: Dataset) -> None:
    """Compare all but notes, exactly."""
    assert list(one.parts) == list(other.parts)
    for name, part in one.parts.items():
        again = other.parts[name]
        for matrix in ("X", "Y", "filtered"):
            assert_same_matrix(getattr(part, matrix), getattr(again, matrix))
        assert _plain(part.texts) == _plain(again.texts)
        assert _listed(part.uids) == _listed(again.uids)
    assert_same_matrix(one.Z, other.Z)
    assert one.name == other.name
    assert one.propensity == other.propensity
    assert _listed(one.label_names) == _listed(other.label_names)
    assert _listed(one.feature_names) == _listed(other.feature_names)
    assert _plain(one.label_texts) == _plain(other.label_texts)


def _plain(texts):
    return None if texts is None else [(name, list(column)) for name, column in texts.items()]


def _listed(names):
    return None if names is None else list(names)
