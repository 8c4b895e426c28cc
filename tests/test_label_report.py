"""Precision, recall and F1 of each label, against scikit-learn's; as a CSV file; from Python and the command line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import precision_recall_fscore_support

import zipfel
from zipfel.calibration import BINS, cut
from zipfel.data.synthetic import Synthetic, make
from zipfel.errors import DataError
from zipfel.label_report import COLUMNS, LabelReport
from zipfel.metrics import frequency_bins
from zipfel.tagger import Tagger
from zipfel.types import Ranking

SETTINGS = {"dimension": 16, "epochs": 4, "min_steps": 1, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def planted():
    return make(Synthetic(points=600, labels=20, texts=True, noise=0.2, seed=1))


@pytest.fixture(scope="module")
def tagger(planted):
    return Tagger("glas", settings=SETTINGS, device="cpu", validation=0.3).fit_dataset(planted)


def random_case(seed: int) -> tuple[Ranking, csr_array]:
    rng = np.random.default_rng(seed)
    truth = csr_array(rng.random((30, 8)) < 0.2, dtype=np.float32)
    scores = csr_array(rng.random((30, 8)).astype(np.float32))
    return cut(Ranking.of_scores(scores, 8), 0.6), truth


@pytest.mark.parametrize("seed", range(3))
def test_figures_equal_those_of_scikit_learn(seed):
    ranking, truth = random_case(seed)
    report = LabelReport.of(ranking, truth, [f"l{n}" for n in range(8)], 0.6)
    predicted = (ranking.as_scores(8).toarray() > 0).astype(int)
    expected = precision_recall_fscore_support(truth.toarray(), predicted, zero_division=np.nan)
    for ours, theirs in zip((report.precision, report.recall, report.f1, report.support), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)
    averages = report.averages()
    for kind in ("micro", "macro"):
        figures = precision_recall_fscore_support(truth.toarray(), predicted, average=kind, zero_division=0)[:3]
        assert [averages[kind + name] for name in ("P", "R", "F1")] == pytest.approx([100 * f for f in figures])


def test_what_is_not_defined_is_empty_and_labels_are_sorted_by_points(tmp_path):
    ranking = Ranking(np.array([[0, 1], [0, -1]]), np.array([[0.9, 0.8], [0.7, -np.inf]], dtype=np.float32))
    report = LabelReport.of(
        ranking, csr_array([[1, 0, 1, 0], [0, 0, 1, 0]]), ["a", "b", "c, d", "e"], [0.1, 0.2, 0.3, 0.4]
    )
    report.write(tmp_path / "labels.csv")
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        list(COLUMNS),
        ["c, d", "", "0.0000", "0.0000", "2", "0", "0.3"],
        ["a", "0.5000", "1.0000", "0.6667", "1", "2", "0.1"],
        ["b", "0.0000", "", "0.0000", "0", "1", "0.2"],
        ["e", "", "", "", "0", "0", "0.4"],
    ]
    assert report.averages()["macroP"] == 25.0  # a and c, d occur; c, d counts as 0
    assert len(report.rows(1)) == 1


def test_macro_averages_are_over_the_labels_that_occur():
    ids = np.array([[0, 1, 3], [0, 1, 3], [1, 3, 4], [3, -1, -1]])
    ranking = Ranking(ids, np.where(ids >= 0, 0.9, -np.inf).astype(np.float32))
    truth = csr_array([[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    averages = LabelReport.of(ranking, truth, list("abcde"), 0.5).averages()
    # a: 2 of 2 right, b: 1 of 3 for its only point, c: never predicted; d and e occur nowhere
    assert averages["macroP"] == pytest.approx(100 * (1 + 1 / 3 + 0) / 3)
    assert averages["macroR"] == pytest.approx(100 * (1 + 1 + 0) / 3)
    assert averages["macroF1"] == pytest.approx(100 * (1 + 0.5 + 0) / 3)
    assert averages["microP"] == pytest.approx(100 * 3 / 10)
    assert averages["microR"] == pytest.approx(100 * 3 / 4)
    assert averages["microF1"] == pytest.approx(100 * 6 / 14)


def test_a_report_of_nothing_has_averages_of_0():
    report = LabelReport.of(Ranking.empty(2, 3), csr_array((2, 2), dtype=np.float32), ["a", "b"], 0.5)
    assert set(report.averages().values()) == {0.0}
    assert report.support.tolist() == report.predicted.tolist() == [0, 0]


def test_sizes_must_agree():
    ranking, truth = random_case(0)
    with pytest.raises(DataError, match="expected 30 points and 8 names; found 30, 2"):
        LabelReport.of(ranking, truth, ["a", "b"], 0.5)


def test_a_tagger_reports_what_it_predicts(planted, tagger):
    texts, truth = planted.test.texts, planted.test.Y
    report = tagger.per_label(texts, truth, 0.4)
    predicted = [{tag.label for tag in tags} for tags in tagger.predict(texts, threshold=0.4)]
    assert report.predicted.tolist() == [sum(name in tags for tags in predicted) for name in tagger.classes_]
    assert set(report.thresholds) == {0.4}
    assert set(tagger.per_label(texts, truth).thresholds) == {tagger.choose_threshold()}
    several = tagger.choose_threshold(0.5, by_frequency=True)
    several = (several[0], 0.35, 0.05) if len({*several}) < 3 else several
    by_bin = tagger.per_label(texts, truth, several)
    bins = frequency_bins(np.array(tagger.labels_.counts), BINS)
    assert by_bin.thresholds.tolist() == [several[number] for number in bins]
    predicted = [{tag.label for tag in tags} for tags in tagger.predict(texts, threshold=several)]
    assert by_bin.predicted.tolist() == [sum(name in tags for tags in predicted) for name in tagger.classes_]
    names = [[tagger.classes_[label] for label in row.indices] for row in truth]
    assert tagger.per_label(texts, names, 0.4).support.tolist() == report.support.tolist()


def test_the_command_line_writes_a_file_and_prints_averages(zipfel_command, planted, tagger, tmp_path):
    zipfel.write(planted, tmp_path / "data", "lf")
    tagger.save(tmp_path / "model")
    words = ["evaluate", tmp_path / "model", tmp_path / "data"]
    assert "micro" not in zipfel_command(*words).out
    outcome = zipfel_command(*words, "--per-label", tmp_path / "labels.csv", "--json", tmp_path / "figures.json")
    assert outcome.code == 0, outcome.err
    report = tagger.per_label(planted.test.texts, planted.test.Y)
    with (tmp_path / "labels.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [list(COLUMNS), *report.rows()]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["microF1"] == pytest.approx(report.averages()["microF1"])
    assert f"Tags with a score of at least {report.thresholds[0]:.3g}" in outcome.out
    assert f"{report.averages()['macroF1']:.2f}" in outcome.out
    at_half = zipfel_command(*words, "--threshold", "0.5").out
    assert "Tags with a score of at least 0.5" in at_half
    refused = zipfel_command("evaluate", tmp_path / "data", "--predictions", "x.npz", "--per-label", tmp_path / "l.csv")
    assert (refused.code, refused.err) == (2, "error: --per-label and thresholds need a model, not --predictions\n")
