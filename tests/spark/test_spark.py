"""`BatchTagger` in Spark's `mapInPandas`, as the guide shows it; needs Java and PySpark: `make test-spark`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from zipfel.data.synthetic import Synthetic, make
from zipfel.engines import BatchTagger
from zipfel.tagger import Tagger

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]  # Spark's own
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "scale.md"
ROWS = 120


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start Spark in a folder, with two processes of Python."""
    from pyspark.sql import SparkSession

    assert shutil.which("java"), "java is missing: Spark needs Java 17 or later"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_the_example_of_the_guide_tags_as_zipfel_does(spark: Any, tmp_path: Path):
    dataset = make(Synthetic(points=400, labels=20, texts=True, noise=0.2, seed=1))
    tagger = Tagger("linear", device="cpu", validation=0.3).fit_dataset(dataset)
    tagger.save(tmp_path / "model")
    texts = next(iter(dataset.train.texts.values()))[:ROWS]
    (tmp_path / "in").mkdir()
    for part in range(3):
        rows = range(part, ROWS, 3)
        frame = pd.DataFrame({"id": rows, "text": [texts[row] for row in rows]})
        frame.to_parquet(tmp_path / "in" / f"{part}.parquet")

    block = re.search(r"^Spark .*?```py\n(.*?)```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    code = block[1].replace("/shared/model", str(tmp_path / "model"))
    exec(code, {"spark": spark, "BatchTagger": BatchTagger})

    tagged = pq.read_table(tmp_path / "tags").to_pandas().sort_values("id")
    assert tagged["id"].tolist() == list(range(ROWS))
    assert tagged["text"].tolist() == texts
    found = [list(zip(row.tags, map(float, row.scores), strict=True)) for row in tagged.itertuples()]
    assert found == [
        [(tag.label, tag.score) for tag in row] for row in Tagger.load(tmp_path / "model", "cpu").predict(texts, 3)
    ]
