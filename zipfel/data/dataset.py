"""A data set: points with labels, in train, test and validation parts. Frozen, and validated here, once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse, sparray, spmatrix

from zipfel.errors import DataError
from zipfel.types import Sizes, matrix_problem, stored

if TYPE_CHECKING:  # which imports this module
    from zipfel.data.hierarchy import Hierarchy

Texts = Mapping[str, Sequence[str]]  # field -> one text per row, such as {"title": [...], "content": [...]}
Rows = NDArray[np.int64]
Item = TypeVar("Item")


class Propensity(NamedTuple):
    """A and B of the propensity model (Jain et al., 2016): how likely a true label is to be observed."""

    A: float = 0.55
    B: float = 1.5


class TrainedOn(NamedTuple):
    """Number of training points of a model, in all and for each label, [labels]."""

    points: int
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """How a data set was read. text: text fields, in a table its columns.  Others: of a table, see `TableSettings`."""

    text: tuple[str, ...] = ()
    labels: str | None = None
    sep: str | None = None
    encoding: str | None = None

    def __str__(self) -> str:
        """Return the columns in words."""
        split = "" if self.sep is None else f", split at {self.sep!r}"
        encoding = "" if self.encoding is None else f"; encoding {self.encoding}"
        return f"text from {', '.join(self.text)}; labels from {self.labels}{split}{encoding}"


@dataclass(frozen=True, eq=False)
class Part:
    """Points of one part of a data set: features or texts (or both), labels, and filtered pairs.

    Y: [points, labels], 1 where a point has the label.  X: [points, features].
    filtered: [points, labels], stores the pairs to ignore because the document is that label; Y never has them.
    """

    Y: csr_array
    X: csr_array | None = None
    texts: Texts | None = None
    uids: Sequence[str] | None = None
    filtered: csr_array | None = None
    others: Mapping[str, Sequence[Any]] | None = None  # further columns of a table, where they are kept
    vectors: Mapping[str, csr_array] | None = None  # fields of vectors beside the texts, [points, width] each
    weights: NDArray[np.float64] | None = None  # how often training draws a point, 1 on average; None: each equally

    def __post_init__(self) -> None:
        """Check that everything has one row per point, and remove filtered pairs from Y."""
        Y = _labels("Y", self.Y)
        if self.X is not None:
            object.__setattr__(self, "X", _canonical("X", self.X))
            _equal("rows of X", self.X.shape[0], "rows of Y", Y.shape[0])
        for name, texts in (self.texts or {}).items():
            _equal(f"texts of {name!r}", len(texts), "rows of Y", Y.shape[0])
        if self.uids is not None:
            _equal("uids", len(self.uids), "rows of Y", Y.shape[0])
        for name, rows in (self.vectors or {}).items():
            _equal(f"vectors of {name!r}", rows.shape[0], "rows of Y", Y.shape[0])
        if self.weights is not None:
            _equal("weights", len(self.weights), "rows of Y", Y.shape[0])
        if self.filtered is not None:
            object.__setattr__(self, "filtered", _labels("filtered", self.filtered))
            _equal("shape of filtered", self.filtered.shape, "shape of Y", Y.shape)
            Y = without_pairs(Y, self.filtered)
        object.__setattr__(self, "Y", Y)

    def __len__(self) -> int:
        """Return the number of points."""
        return int(self.Y.shape[0])

    def take(self, rows: Rows) -> Part:
        """Return the points of `rows`, in that order."""
        return Part(
            Y=self.Y[rows],
            X=None if self.X is None else self.X[rows],
            texts=None if self.texts is None else {name: pick(t, rows) for name, t in self.texts.items()},
            uids=None if self.uids is None else pick(self.uids, rows),
            filtered=None if self.filtered is None else self.filtered[rows],
            others=None if self.others is None else {name: pick(c, rows) for name, c in self.others.items()},
            vectors=None if self.vectors is None else {name: v[rows] for name, v in self.vectors.items()},
            weights=None if self.weights is None else self.weights[rows],
        )

    @property
    def draws(self) -> int | NDArray[np.float64]:
        """What the trainer draws points by: their weights, or else their number."""
        return len(self) if self.weights is None else self.weights

    def with_labels(self, kept: Rows) -> Part:
        """Return the same points with only the labels `kept`, renumbered 0, 1, ..."""
        filtered = None if self.filtered is None else self.filtered[:, kept]
        return dataclasses.replace(self, Y=self.Y[:, kept], filtered=filtered)


@dataclass(frozen=True, eq=False)
class Dataset:
    """The train part, optional test and validation parts, and names, texts and features of labels.

    Z: [labels, features], the label texts as features.  notes: entries merged, points held out, labels dropped.
    """

    train: Part
    test: Part | None = None
    validation: Part | None = None
    name: str = ""
    label_names: Sequence[str] | None = None
    label_texts: Texts | None = None
    Z: csr_array | None = None
    feature_names: Sequence[str] | None = None
    propensity: Propensity = field(default_factory=Propensity)
    notes: tuple[str, ...] = ()
    columns: Columns | None = None  # of the table; None if it was none
    trained_on: TrainedOn | None = None  # where a model is judged that was trained on more than `train`
    hierarchy: Hierarchy | None = None  # of the labels

    def __post_init__(self) -> None:
        """Check that the parts agree in labels, features and text fields, and that test and validation differ."""
        labels = self.train.Y.shape[1]
        for name, part in self.parts.items():
            _equal(f"labels of {name}", part.Y.shape[1], "labels of train", labels)
            if (part.X is None) != (self.train.X is None) or (part.texts is None) != (self.train.texts is None):
                raise DataError(f"{name} and train must have the same kinds of input: features, texts or both")
            _equal(f"text fields of {name}", _fields(part), "text fields of train", _fields(self.train))
            if part.X is not None and self.train.X is not None:
                _equal(f"features of {name}", part.X.shape[1], "features of train", self.train.X.shape[1])
        if self.Z is not None:
            object.__setattr__(self, "Z", _canonical("Z", self.Z))
            _equal("rows of Z", self.Z.shape[0], "labels", labels)
            if self.train.X is not None:
                _equal("columns of Z", self.Z.shape[1], "features", self.train.X.shape[1])
        if self.label_names is not None:
            _equal("label names", len(self.label_names), "labels", labels)
        if self.feature_names is not None and self.train.X is not None:
            _equal("feature names", len(self.feature_names), "features", self.train.X.shape[1])
        for name, texts in (self.label_texts or {}).items():
            _equal(f"label texts of {name!r}", len(texts), "labels", labels)
        if self.test is not None and self.validation is not None and same_points(self.test, self.validation):
            raise DataError(
                "test and validation hold the same points, so that choices made on validation would be made on test; "
                "remove one of them"
            )

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by name: train, and test and validation if present."""
        named = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def sizes(self) -> Sizes:
        """Number of train points, features (0 if there are only texts) and labels."""
        features = 0 if self.train.X is None else self.train.X.shape[1]
        return Sizes(len(self.train), int(features), int(self.train.Y.shape[1]))

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Number of train points of each label, [labels]."""
        if self.trained_on is not None:
            return self.trained_on.counts
        return np.bincount(self.train.Y.indices, minlength=self.sizes.labels)

    def label_name(self, label: int) -> str:
        """Return the name of a label, or its id if there are no names."""
        return str(label) if self.label_names is None else self.label_names[label]

    def with_labels(self, kept: Rows) -> Dataset:
        """Return the same points with only the labels `kept`, renumbered 0, 1, ..."""
        texts = None if self.label_texts is None else {f: pick(t, kept) for f, t in self.label_texts.items()}
        return self.with_parts(
            lambda part: part.with_labels(kept),
            label_names=None if self.label_names is None else pick(self.label_names, kept),
            label_texts=texts,
            Z=None if self.Z is None else self.Z[kept],
        )

    def with_parts(self, change: Callable[[Part], Part], **others: Any) -> Dataset:
        """Return the data set with `change` applied to every part, and the attributes in `others` replaced."""
        parts: dict[str, Any] = {name: change(part) for name, part in self.parts.items()}
        return dataclasses.replace(self, **parts, **others)


def without_pairs(matrix: csr_array, pairs: csr_array) -> csr_array:
    """Return the matrix without the entries that `pairs` stores too."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    kept = ~stored(pairs, rows, matrix.indices)
    if kept.all():
        return matrix
    counts = np.bincount(rows[kept], minlength=matrix.shape[0])
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(matrix.indptr.dtype)
    return csr_array((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape)


def pick(items: Sequence[Item], rows: Rows) -> list[Item]:
    """Return the items at `rows`."""
    return [items[row] for row in rows]


def fingerprint(dataset: Dataset, parts: Iterable[Part]) -> str:
    """Return a short hash of everything a model can learn from these parts, label names and label texts included."""
    digest = hashlib.blake2b(digest_size=8)
    matrices = [dataset.Z]
    for part in parts:
        digest.update(fingerprints(part).tobytes())
        digest.update(b"" if part.weights is None else part.weights.tobytes())
        matrices += [part.Y, part.filtered, *(part.vectors or {}).values()]
    for matrix in matrices:
        for numbers in () if matrix is None else (matrix.indptr, matrix.indices, matrix.data):
            digest.update(numbers.tobytes())
        digest.update(b"|")
    digest.update(_digest(tuple(dataset.label_names or ())))
    for name, texts in sorted((dataset.label_texts or {}).items()):
        digest.update(_digest((name, *texts)))
    return digest.hexdigest()


def fingerprints(part: Part) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the texts, else the features, of each point, [points]; the same on every machine."""
    if part.texts:
        columns = [part.texts[name] for name in _fields(part)]
        digests = b"".join(map(_digest, zip(*columns, strict=True)))
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
    if part.X is None:
        raise DataError("the points have neither texts nor features")
    values = part.X.data.view(np.uint32).astype(np.uint64)
    terms = mixed(mixed(part.X.indices.astype(np.uint64)) ^ values)
    sums = np.cumsum(np.append(np.zeros(1, np.uint64), terms), dtype=np.uint64)  # mod 2^64: differences are exact
    return mixed(sums[part.X.indptr[1:]] - sums[part.X.indptr[:-1]])


def _digest(texts: tuple[str, ...]) -> bytes:
    """Hash the texts of a point, each prefixed by its length, so that different texts never join to the same bytes."""
    content = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the bits of 64-bit integers (finaliser of SplitMix64, Steele et al., 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def same_points(one: Part, other: Part) -> bool:
    """Whether two parts hold the same points, in any order and with any labels; False if they are empty."""
    if len(one) != len(other) or len(one) == 0:
        return False
    return bool(np.array_equal(np.sort(fingerprints(one)), np.sort(fingerprints(other))))


def _fields(part: Part) -> list[str]:
    """Return the sorted names of the text fields of a part."""
    return sorted(part.texts or {})


def _labels(name: str, matrix: csr_array | spmatrix | sparray) -> csr_array:
    """Return label pairs as a canonical CSR array of ones."""
    matrix = _canonical(name, matrix)
    if (matrix.data < 0).any():
        row = first_row(matrix, matrix.data < 0)
        raise DataError(f"{name} has a negative value in row {row}; labels must be positive")
    if not (matrix.data == 1).all():
        matrix = csr_array((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
    return matrix


def _canonical(name: str, matrix: csr_array | spmatrix | sparray) -> csr_array:
    """Return a CSR array of float32 with sorted, unique columns and no stored zeros; copy only if needed."""
    if issparse(matrix) and (problem := matrix_problem(matrix)):
        raise DataError(f"{name} is a broken matrix: {problem}")
    matrix = csr_array(matrix)  # a new object that shares the caller's arrays, which are never written to
    if matrix.ndim != 2:
        raise DataError(f"{name} must be a matrix of rows and columns; found shape {matrix.shape}")
    if matrix.dtype != np.float32:
        with np.errstate(over="ignore"):  # values too large for float32 become infinite and are rejected below
            matrix = matrix.astype(np.float32)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all():
        row = first_row(matrix, ~np.isfinite(matrix.data))
        raise DataError(f"row {row} of {name} has a value that is not a finite float32 number, such as NaN")
    if not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def first_row(matrix: csr_array, wrong: NDArray[np.bool_]) -> int:
    """Return the first row with a stored value that is `wrong`, [nnz]."""
    return int(np.searchsorted(matrix.indptr, np.argmax(wrong), side="right")) - 1


def _equal(name: str, value: object, reference: str, expected: object) -> None:
    if value != expected:
        raise DataError(f"{name} ({value}) differ from {reference} ({expected})")
