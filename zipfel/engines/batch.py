"""A callable that tags batches of a table, for engines that start processes of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zipfel.data.formats.table_files import is_frame
from zipfel.data.points import points_of
from zipfel.errors import DataError

if TYPE_CHECKING:  # torch takes seconds to import, and only processes that tag need it
    from zipfel.tagging import Loaded, Tagged

OWN = ("known", "tags", "scores")  # columns that are added

_lock = threading.Lock()  # of this process: threads share its model


@dataclass(frozen=True)
class BatchTagger:
    """Adds the columns `known`, `tags` and `scores` to batches.

    For Ray's `map_batches`, Spark's `mapInPandas` and Dask's `map_partitions`.
    It travels to other processes as its parameters; the first batch there loads the model, memory-mapped and once a
    process. A batch is a data frame of pandas, an Arrow table, or arrays by column, and comes back as such. An iterator
    of batches comes back as an iterator.

    Args:
        model: folder of a saved model, which every machine must be able to read.
        text_columns: default: as in training.
        k: maximum number of tags of a row, as in `Tagger.predict`.
        threshold: minimum score of a tag, as in `Tagger.predict`.
        device: where each process predicts.
        threads: of each process on a CPU; None leaves them as they are.

    Example:
        >>> import pandas
        >>> tagger = BatchTagger("runs/tickets", text_columns=["title"], k=3)
        >>> [*tagger.meta(pandas.DataFrame({"title": ["no wifi"]}))]  # loads no model yet
        ['title', 'known', 'tags', 'scores']
    """

    model: str | Path
    text_columns: Sequence[str] = ()
    k: int | None = None
    threshold: float | Sequence[float] | None = None
    device: str = "auto"
    threads: int | None = None

    def __call__(self, batch: Any) -> Any:
        """Return a batch, or an iterator of batches, with tags."""
        return map(self._batch, batch) if isinstance(batch, Iterator) else self._batch(batch)

    def _batch(self, batch: Any) -> Any:  # calls itself: Ray overrides __call__ by one that must not
        if isinstance(batch, Mapping):  # of Ray: arrays by column
            import pandas

            frame = self._batch(pandas.DataFrame({name: list(column) for name, column in batch.items()}))
            return {**batch, **{name: frame[name].to_numpy() for name in OWN}}
        if not is_frame(batch):
            raise DataError(f"expected a data frame, an Arrow table or arrays by column; found {type(batch).__name__}")
        names = list(map(str, batch.column_names if hasattr(type(batch), "column_names") else batch.columns))
        taken = next((name for name in OWN if name in names), None)
        if taken is not None:
            raise DataError(f"the batch has a column {taken!r} already; rename or drop it")
        return _with_tags(batch, self._tagged(batch) if len(batch) else None)

    def _tagged(self, batch: Any) -> Tagged:
        from zipfel.tagging import Request

        with _lock:
            tagger = loaded(str(self.model), self.device, self.threads)
            X = _documents(points_of(batch, self.text_columns, tagger.source_.fields), tagger.source_.fields)
            return tagger.tag([Request(X, self.k, self.threshold)])[0]

    def meta(self, frame: Any) -> Any:
        """Return a frame without rows that has the columns of the result: `meta` of Dask. Loads no model.

        Args:
            frame: of pandas, with the columns of the batches.

        Returns:
            A frame of pandas.

        Example:
            >>> import pandas
            >>> len(BatchTagger("runs/tickets").meta(pandas.DataFrame({"title": ["no wifi"]})))
            0
        """
        return self._batch(frame.iloc[:0])


@lru_cache(maxsize=1)
def loaded(model: str, device: str = "auto", threads: int | None = None) -> Loaded:
    """Return a saved model; the same one for all batches of this process."""
    from zipfel.tagging import Loaded
    from zipfel.training.machine import set_threads

    if threads is not None:
        set_threads(threads)
    return Loaded.load(Path(model), device)


def _documents(X: Any, fields: Sequence[str]) -> Any:
    """Return points; texts of columns that are no field of the model are joined with blanks, as `zipfel predict` does.

    A model of several fields cannot know which of them other columns are, and refuses them.
    """
    if not isinstance(X, Mapping) or len(fields) > 1 or any(name in fields for name in X):
        return X
    return list(map(" ".join, zip(*X.values(), strict=True)))


def _with_tags(batch: Any, tagged: Tagged | None) -> Any:
    """Return a frame of pandas, or an Arrow table, with tags; None: it has no rows."""
    rows = [] if tagged is None else tagged.tags()
    known = [] if tagged is None else tagged.known.tolist()
    tags, scores = [[tag.label for tag in row] for row in rows], [[tag.score for tag in row] for row in rows]
    if hasattr(type(batch), "append_column"):
        import pyarrow

        lists = (pyarrow.list_(pyarrow.string()), pyarrow.list_(pyarrow.float32()))
        for name, values, kind in zip(OWN, (known, tags, scores), (pyarrow.bool_(), *lists), strict=True):
            batch = batch.append_column(name, pyarrow.array(values, kind))
        return batch
    import numpy as np
    import pandas

    def objects(values: list[Any]) -> Any:  # a column of lists, whatever their lengths
        return pandas.Series(values, index=batch.index, dtype=object)

    floats = [np.asarray(row, dtype=np.float32) for row in scores]
    return batch.assign(known=np.array(known, dtype=bool), tags=objects(tags), scores=objects(floats))
