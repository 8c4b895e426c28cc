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

from zipfel.data.disk import counts_of, roomy, row_pieces, taken
from zipfel.errors import DataError
from zipfel.types import Sizes, matrix_problem, pieces, stored

if TYPE_CHECKING:  # which import this module
    from zipfel.data.hierarchy import Hierarchy
    from zipfel.data.text import TextFeatures

Texts = Mapping[str, Sequence[str]]  # field -> one text per row, such as {"title": [...], "content": [...]}
Rows = NDArray[np.int64]
Item = TypeVar("Item")
SAME_POINTS = (
    "test and validation hold the same points, so that choices made on validation would be made on test; "
    "remove one of them"
)


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
        labels = "" if self.labels is None else f"; labels from {self.labels}"
        split = "" if self.sep is None else f", split at {self.sep!r}"
        encoding = "" if self.encoding is None else f"; encoding {self.encoding}"
        return f"text from {', '.join(self.text)}{labels}{split}{encoding}"


@dataclass(frozen=True, eq=False)
class Part:
    """Points of one part of a data set: features or texts (or both), labels, and filtered pairs.

    Args:
        Y: [points, labels], 1 where a point has the label.
        X: [points, features].
        texts: by field, one for each point, such as {"title": [...], "content": [...]}.
        uids: names of points.
        filtered: [points, labels], stores the pairs to ignore because the document is that label; Y never has them.
        others: further columns of a table, where they are kept.
        vectors: fields of vectors beside the texts, [points, width] each.
        weights: how often training draws a point, 1 on average; None: each equally.

    Example:
        >>> part = Part(csr_array([[1, 0], [0, 1]]), texts={"text": ["red apple", "fast car"]})
        >>> len(part), part.take(np.array([1])).texts
        (2, {'text': ['fast car']})
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
        """Return some of the points.

        Args:
            rows: their numbers, in the order wanted.

        Returns:
            A part with these points only.

        Example:
            >>> part = Part(csr_array([[1, 0], [0, 1]]), uids=["a", "b"])
            >>> part.take(np.array([1])).uids
            ['b']
        """
        return Part(
            Y=taken(self.Y, rows),
            X=None if self.X is None else taken(self.X, rows),
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
        """Return the same points with some of the labels.

        Args:
            kept: ids of labels; they are renumbered 0, 1, ... in this order.

        Returns:
            A part with these labels only; points may be left without any.

        Example:
            >>> Part(csr_array([[1, 0], [0, 1]])).with_labels(np.array([1])).Y.toarray()
            array([[0.],
                   [1.]], dtype=float32)
        """
        filtered = None if self.filtered is None else self.filtered[:, kept]
        return dataclasses.replace(self, Y=self.Y[:, kept], filtered=filtered)


@dataclass(frozen=True, eq=False)
class Dataset:
    """The train part, optional test and validation parts, and names, texts and features of labels.

    Args:
        train: the points to learn from.
        test: the points to evaluate on.
        validation: the points to make choices on; `Tagger` holds out a share of train where there are none.
        name: what to call it.
        label_names: by id.
        label_texts: by field, one for each label.
        Z: [labels, features], the label texts as features.
        feature_names: by id.
        propensity: constants A and B of the propensity model.
        notes: entries merged, points held out, labels dropped.
        columns: how a table was read; None if it was none.
        trained_on: counts, where a model is judged that was trained on more than `train`.
        hierarchy: parents of labels.
        vocabulary: made X of texts, where X is all that is kept of them.

    Example:
        >>> part = Part(csr_array([[1, 0], [0, 1]]), texts={"text": ["red apple", "fast car"]})
        >>> Dataset(part, label_names=["fruit", "car"]).sizes
        Sizes(points=2, features=0, labels=2)
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
    vocabulary: TextFeatures | None = None  # that made X of texts, where X is all that is kept of them

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
            raise DataError(SAME_POINTS)

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
        return counts_of(self.train.Y)

    def label_name(self, label: int) -> str:
        """Return the name of a label, or its id if there are no names.

        Args:
            label: its id.

        Returns:
            A string in both cases.

        Example:
            >>> part = Part(csr_array([[1, 0]]))
            >>> Dataset(part).label_name(1), Dataset(part, label_names=["fruit", "car"]).label_name(1)
            ('1', 'car')
        """
        return str(label) if self.label_names is None else self.label_names[label]

    def with_labels(self, kept: Rows) -> Dataset:
        """Return the same points with some of the labels, in all parts.

        Args:
            kept: ids of labels; they are renumbered 0, 1, ... in this order.

        Returns:
            A data set with these labels, their names and texts; points may be left without any label.

        Example:
            >>> dataset = Dataset(Part(csr_array([[1, 0], [0, 1]])), label_names=["fruit", "car"])
            >>> dataset.with_labels(np.array([1])).label_names
            ['car']
        """
        texts = None if self.label_texts is None else {f: pick(t, kept) for f, t in self.label_texts.items()}
        return self.with_parts(
            lambda part: part.with_labels(kept),
            label_names=None if self.label_names is None else pick(self.label_names, kept),
            label_texts=texts,
            Z=None if self.Z is None else self.Z[kept],
        )

    def with_parts(self, change: Callable[[Part], Part], **others: Any) -> Dataset:
        """Return the data set with every part changed.

        Args:
            change: takes a part and returns another.
            others: attributes of the data set to replace too.

        Returns:
            A new data set, which is checked again.

        Example:
            >>> dataset = Dataset(Part(csr_array([[1, 0], [0, 1]])))
            >>> dataset.with_parts(lambda part: part.take(np.array([0])), name="first").sizes.points
            1
        """
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
        digest.update(fingerprints(part).data)
        digest.update(b"" if part.weights is None else part.weights.tobytes())
        matrices += [part.Y, part.filtered, *(part.vectors or {}).values()]
    for matrix in matrices:
        for numbers in () if matrix is None else (matrix.indptr, matrix.indices, matrix.data):
            digest.update(np.ascontiguousarray(numbers).data)
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
    prints = roomy(len(part), np.uint64)
    for piece, X in row_pieces(part.X):
        terms = mixed(mixed(X.indices.astype(np.uint64)) ^ X.data.view(np.uint32).astype(np.uint64))
        sums = np.cumsum(np.append(np.zeros(1, np.uint64), terms), dtype=np.uint64)  # mod 2^64: differences are exact
        prints[piece] = mixed(sums[X.indptr[1:]] - sums[X.indptr[:-1]])
    return prints


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
    row = _first(matrix, lambda values: values < 0)
    if row is not None:
        raise DataError(f"{name} has a negative value in row {row}; labels must be positive")
    if _first(matrix, lambda values: values != 1) is not None:
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
    row = _first(matrix, lambda values: ~np.isfinite(values))
    if row is not None:
        raise DataError(f"row {row} of {name} has a value that is not a finite float32 number, such as NaN")
    if not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def _first(matrix: csr_array, wrong: Callable[[NDArray[np.float32]], NDArray[np.bool_]]) -> int | None:
    """Return the first row with a stored value that is `wrong`; None if there is none."""
    for piece in pieces(len(matrix.data)):
        flags = wrong(matrix.data[piece])
        if flags.any():
            return int(np.searchsorted(matrix.indptr, piece.start + np.argmax(flags), side="right")) - 1
    return None


def first_row(matrix: csr_array, wrong: NDArray[np.bool_]) -> int:
    """Return the first row with a stored value that is `wrong`, [nnz]."""
    return int(np.searchsorted(matrix.indptr, np.argmax(wrong), side="right")) - 1


def _equal(name: str, value: object, reference: str, expected: object) -> None:
    if value != expected:
        raise DataError(f"{name} ({value}) differ from {reference} ({expected})")
