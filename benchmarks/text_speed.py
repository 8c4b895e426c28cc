"""Time from text to tf-idf, compared with scikit-learn: `python -m benchmarks.text_speed [DATA]`, one JSON line.

Both fit and transform the train texts of a data set, with words alone and with word pairs. Runs alternate, so that
noise affects both alike; the ratio of the medians counts. Without DATA, synthetic texts are used.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.record import record
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import TextFeatures, TextSettings

REPEATS, SEED = 3, 0


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def joined(dataset: Dataset) -> list[str]:
    """Return one text per train point, as scikit-learn expects."""
    if dataset.train.texts is None:
        raise SystemExit(f"{dataset.name} has no texts")
    return [" ".join(row) for row in zip(*dataset.train.texts.values(), strict=True)]


def compared(texts: list[str], ngrams: int) -> dict[str, float]:
    """Return the median seconds of both, and their ratio."""
    ours = TextFeatures.fit(texts, settings=TextSettings(ngrams=ngrams))
    theirs = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, ngrams)).fit(texts)
    works: dict[str, Callable[[], object]] = {
        "zipfel_fit": lambda: TextFeatures.fit(texts, settings=ours.settings),
        "sklearn_fit": lambda: theirs.fit(texts),
        "zipfel_transform": lambda: ours.transform(texts),
        "sklearn_transform": lambda: theirs.transform(texts),
    }
    runs = [{name: seconds(work) for name, work in works.items()} for _ in range(REPEATS)]
    medians = {name: statistics.median(run[name] for run in runs) for name in works}
    return {
        **{f"{name}_seconds": round(median, 3) for name, median in medians.items()},
        "fit_times_as_fast": round(medians["sklearn_fit"] / medians["zipfel_fit"], 2),
        "transform_times_as_fast": round(medians["sklearn_transform"] / medians["zipfel_transform"], 2),
    }


def main(words: list[str]) -> None:
    synthetic = Synthetic(points=20_000, labels=2_000, tokens_per_point=200, test_share=0, texts=True, seed=SEED)
    dataset = read(words[0]) if words else make(synthetic)
    texts = joined(dataset)
    figures = {
        "data": dataset.name,
        "texts": len(texts),
        "megabytes": round(sum(len(text.encode()) for text in texts) / 1e6, 1),
        "words": compared(texts, ngrams=1),
        "pairs": compared(texts, ngrams=2),
    }
    record("text_speed", figures, SEED, ("scikit-learn",))


if __name__ == "__main__":
    main(sys.argv[1:])
