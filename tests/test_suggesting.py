"""Which documents to label next: uncertain ones, that differ, out of a stream."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zipfel import suggesting
from zipfel.errors import ConfigError
from zipfel.suggesting import Suggester, uncertainty
from zipfel.tagger import Tagger
from zipfel.types import Ranking


def ranking(rows: list[list[tuple[int, float]]], k: int = 3) -> Ranking:
    """Return a ranking of labels with probabilities, padded to k."""
    ids, scores = np.full((len(rows), k), -1), np.full((len(rows), k), -np.inf, dtype=np.float32)
    for number, row in enumerate(rows):
        for place, (label, score) in enumerate(row):
            ids[number, place], scores[number, place] = label, score
    return Ranking(ids, scores)


def test_uncertainty_is_entropy_for_each_expected_label():
    scores = np.array([[0.5, 0, -np.inf], [1, 1, 0], [1, 0.5, 0], [0.5, 0.5, 0.5]], dtype=np.float32)
    assert uncertainty(scores) == pytest.approx([1 / 1.5, 0, 1 / 2.5, 3 / 2.5], abs=1e-3)


def test_uncertain_documents_come_first_and_alike_ones_later():
    suggester = Suggester[str](3, 5)
    suggester.add(["sure", "unsure", "twin"], ranking([[(0, 0.99)], [(1, 0.5), (2, 0.5)], [(1, 0.5), (2, 0.5)]]))
    suggester.add(["other"], ranking([[(3, 0.4)]]))
    assert [item for item, _ in suggester.chosen()] == ["unsure", "other", "sure"]
    plain = Suggester[str](3, 5, diverse=False)
    plain.add(["sure", "unsure", "twin"], ranking([[(0, 0.99)], [(1, 0.5), (2, 0.5)], [(1, 0.5), (2, 0.5)]]))
    assert [item for item, _ in plain.chosen()] == ["unsure", "twin", "sure"]


def test_memory_is_bounded_and_batches_do_not_matter(monkeypatch):
    monkeypatch.setattr(suggesting, "LEAST", 10)
    numbers = np.random.default_rng(0)
    rows = [
        [(int(label), float(score))]
        for label, score in zip(numbers.integers(0, 5, 500), numbers.random(500), strict=True)
    ]
    found = []
    for size in (1, 7, 500):
        suggester = Suggester[int](2, 5)
        for start in range(0, 500, size):
            part = rows[start : start + size]
            suggester.add(range(start, start + len(part)), ranking(part))
            assert len(suggester._items) <= max(2 * suggesting.POOL * 2, size)
        found.append(suggester.chosen())
    assert found[0] == found[1] == found[2]


def test_fewer_documents_than_wanted_and_none(capsys):
    suggester = Suggester[str](5, 3)
    assert suggester.chosen() == []
    suggester.add(["one"], ranking([[]]))
    assert [item for item, _ in suggester.chosen()] == ["one"]
    with pytest.raises(ConfigError, match="must be at least 1; found 0"):
        Suggester(0, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m"
    texts, tags = (
        ["paper jam", "no paper", "wifi slow", "no wifi"] * 8,
        [["printer"], ["printer"], ["net"], ["net"]] * 8,
    )
    Tagger("linear", text={"min_count": 1}, validation=0.25, device="cpu").fit(texts, tags).save(folder)
    return folder


def test_a_table_is_read_and_the_next_documents_are_written(model, tmp_path, zipfel_command):
    (tmp_path / "in.csv").write_text("id,text\n1,paper jam\n2,paper wifi\n3,\n4,wifi paper\n5,no wifi slow\n")
    for ending in ("csv", "jsonl"):
        out = tmp_path / f"next.{ending}"
        outcome = zipfel_command("suggest", model, "--input", tmp_path / "in.csv", "--out", out, "--n", 2)
        assert outcome.code == 0, outcome.err
        assert f"{out}: 2 of 5 texts to label next, most useful first; 1 without text left out" in outcome.out
    header, *lines = (tmp_path / "next.csv").read_text().splitlines()
    items = [json.loads(line) for line in (tmp_path / "next.jsonl").read_text().splitlines()]
    assert header == "id,text,uncertainty"
    assert [line.split(",")[0] for line in lines] == [str(item["id"]) for item in items]
    assert items[0]["text"] in ("paper wifi", "wifi paper")
    assert {item["text"] for item in items} != {"paper wifi", "wifi paper"}  # the two are alike
    assert items[0]["uncertainty"] > items[1]["uncertainty"]


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--out", "next.txt"], "--out must end in .csv or .jsonl; found 'next.txt'"),
     (["--out", "next.csv", "--n", "0"], "n must be at least 1; found 0"),
     (["--out", "next.csv", "--text", "nope"], "in.csv:1: no column 'nope'"),
     (["--out", "next.csv", "--input", "none.csv"], "none.csv: cannot be read: no such file"),
     (["--out", "in.csv"], "in.csv: already exists; name another file, or remove it"),
     (["--out", "nowhere/next.csv"], "nowhere/next.csv: cannot be written: its folder does not exist")],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(model, tmp_path, monkeypatch, zipfel_command, words, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("id,text\n1,paper jam\n")
    outcome = zipfel_command("suggest", model, *(["--input", "in.csv"] if "--input" not in words else []), *words)
    assert outcome.code == 2
    assert error in outcome.err
    assert outcome.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
    assert (tmp_path / "in.csv").read_text() == "id,text\n1,paper jam\n"
