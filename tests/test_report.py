"""The report: its figures against hand-made values and slow loops, and a page that no text or name can break."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from zipfel import Tagger
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import Synthetic, make
from zipfel.errors import DataError
from zipfel.evaluate import evaluate
from zipfel.explain import Reason
from zipfel.index.beam import BeamIndex
from zipfel.models.base import settings_of
from zipfel.models.learner import Learner
from zipfel.models.neighbours import Vote
from zipfel.report.documents import Tagged, confusions
from zipfel.report.findings import covered, findings, reliability, shortlist
from zipfel.report.page import marked, page
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, dict[str, Any]] = {
    "glas": {"dimension": 16, "epochs": 6, "min_steps": 1, "learning_rate": 0.03},
    "lightdxml": {"dimension": 16, "epochs": 6, "min_steps": 1, "learning_rate": 0.03, "shortlist_size": 7},
    "mnn": {"dimension": 16, "epochs": 4, "learning_rate": 0.01},
    "decaf": {
        "dimension": 16, "epochs": 2, "module1_epochs": 1, "min_steps": 1, "learners": 2, "shortlist": "beam",
        "clusters": 8, "beam": 3,
    },
}  # fmt: skip
ABOUT: dict[str, Any] = {
    "model": "glas",
    "zipfel": "0",
    "chosen": {"model": "glas", "preset": "default", "why": "named"},
    "tagger": {"model": "glas", "preset": "default", "seed": 3, "text": {"ngrams": 1}},
    "settings": {"dimension": 16, "scale": None, "layers": 1},
    "sizes": {"features": 10, "labels": 4},
    "training": {"best_epoch": 1, "interrupted": False},
    "versions": {"torch": "2"},
    "sha256": "0123456789abcdef0123",
}
VOID = {"meta", "br", "img", "use"}


class Tags(HTMLParser):
    """Collects tags with their attributes, and checks that each opened tag is closed."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(content: str) -> Tags:
    """Parse a page and check that it loads nothing, has no scripts, and uses each id once."""
    tags = Tags(content)
    ids = [attributes["id"] for _, attributes in tags.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not {tag for tag, _ in tags.seen} & {"script", "img", "link", "iframe", "object", "embed", "foreignobject"}
    for _, attributes in tags.seen:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        for name, value in attributes.items():
            assert not name.endswith("href") or str(value).startswith("#")
    assert not re.search(r"@import|url\((?!#)", content)
    return tags


def dataset(texts: bool = True) -> Dataset:
    return make(Synthetic(points=400, labels=20, texts=texts, noise=0.2, test_share=0.2, seed=1))


def fitted(model: str, data: Dataset) -> Tagger:
    return Tagger(model, settings=SETTINGS[model], device="cpu").fit_dataset(data)


@pytest.fixture(params=sorted(SETTINGS), scope="module")
def tagger(request: pytest.FixtureRequest) -> Tagger:
    return fitted(request.param, dataset())


def test_the_page_has_the_figures_of_evaluate(tagger):
    data = dataset()
    result = findings(tagger, data)
    report = evaluate(tagger.rank(data.test.texts, 5), data)
    assert result.report == report
    content = page(result, data, ABOUT)
    checked(content)
    for values in (report.values, report.macro, report.only_tail):
        for name, value in values.items():
            assert f"<td>{value:.2f}</td>" in content, name
    assert sum(piece.contribution for piece in report.bins) == pytest.approx(report.values["P@5"])
    assert result.curves["P"][4] == pytest.approx(report.values["P@5"])
    assert result.curves["coverage"][2] == pytest.approx(report.values["coverage@3"])
    for title in ("Metrics", "Rare and frequent", "Calibration", "Worst", "Best", "Most confused", "Settings"):
        assert f"<h2>{title}" in content
    assert content.count("<svg") == 5
    assert '<p class="lead">preset default with dimension 16 · 80 test points, 20 labels</p>' in content


def test_the_page_has_the_figures_of_each_label(tagger):
    data = dataset()
    result = findings(tagger, data)
    content = page(result, data, ABOUT)
    expected = tagger.per_label(data.test.texts, data.test.Y)
    assert result.labels.thresholds.tolist() == expected.thresholds.tolist()
    assert result.labels.support.tolist() == expected.support.tolist()
    assert "<h2>Labels at a threshold</h2>" in content
    for row in result.labels.rows(2):
        assert "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" in content


def test_the_page_names_the_chosen_preset_and_the_changed_settings():
    """With an automatic choice, the tagger's own preset is not the one that was trained."""
    data = dataset()
    settings = {**dataclasses.asdict(settings_of("glas", "fast")), "dimension": 16}
    about = ABOUT | {"chosen": {"model": "glas", "preset": "fast", "why": "few labels"}, "settings": settings}
    content = page(findings(fitted("glas", data), data), data, about)
    checked(content)
    assert '<p class="lead">preset fast with dimension 16 · 80 test points' in content
    assert "<tr><td>preset</td><td>fast</td></tr>" in content


def test_the_page_is_reproducible(tagger):
    data = dataset()
    assert page(findings(tagger, data), data, ABOUT) == page(findings(tagger, data), data, ABOUT)


@pytest.mark.parametrize("method", ["platt", "none"])
def test_scores_are_those_of_predict(method):
    """They are probabilities where the model is calibrated, else the model's own scores."""
    data = dataset()
    tagger = Tagger("glas", settings=SETTINGS["glas"], validation=0.3, device="cpu", calibration=method)
    predicted = tagger.fit_dataset(data).predict(data.test.texts, k=5)
    assert (tagger.calibration_.curve is None) == (method == "none")
    result, scores = findings(tagger, data), np.array([[tag.score for tag in tags] for tags in predicted])
    assert result.reliability.counts.tolist() == np.histogram(scores, np.linspace(0, 1, 11))[0].tolist()
    for document in [*result.best, *result.worst]:
        tags = predicted[document.row]
        assert [(guess.label.name, guess.score) for guess in document.guesses] == [tuple(tag) for tag in tags]


def test_filtered_pairs_are_not_predicted():
    data = dataset()
    tagger = fitted("glas", data)
    best = tagger.rank(data.test.texts, 1).ids[:, 0]
    filtered = csr_array((np.ones(80, dtype=np.float32), (np.arange(80), best)), shape=(80, 20))
    test = Part(data.test.Y, texts=data.test.texts, filtered=filtered)
    data = dataclasses.replace(data, test=test)
    result = findings(tagger, data)
    assert result.report == evaluate(tagger.rank(test.texts, 5, test.filtered), data)
    for document in [*result.best, *result.worst]:
        assert data.label_name(best[document.row]) not in {guess.label.name for guess in document.guesses}


def test_worst_and_best_documents(tagger):
    data = dataset()
    result = findings(tagger, data)
    assert [d.quality for d in result.best] == sorted((d.quality for d in result.best), reverse=True)
    assert [d.quality for d in result.worst] == sorted(d.quality for d in result.worst)
    assert result.best[0].quality > result.worst[0].quality
    for document in [*result.best, *result.worst]:
        true = {data.label_name(label) for label in data.test.Y[[document.row]].indices}
        predicted = {guess.label.name for guess in document.guesses}
        assert {guess.label.name for guess in document.guesses if guess.right} == predicted & true
        assert {miss.label.name for miss in document.missed} == true - predicted
        assert document.text == "\n".join(column[document.row] for column in data.test.texts.values())
    firsts = [document.guesses[0].label.name for document in result.worst]
    assert len(set(firsts)) == len(firsts)


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr("zipfel.report.findings.BATCH", 100)
    data, calls = dataset(), []
    findings(fitted("glas", data), data, "train", calls.append)
    assert calls == [100, 200, 300, 320]


def test_reliability_by_hand():
    scores = np.array([[0.95, 0.15], [0.97, -np.inf], [1.0, 0.11]], dtype=np.float32)
    right = np.array([[True, False], [False, False], [True, True]])
    bins = reliability(scores, right)
    assert bins.counts.tolist() == [0, 2, 0, 0, 0, 0, 0, 0, 0, 3]
    assert bins.said[[1, 9]] == pytest.approx([0.13, 2.92 / 3])
    assert bins.right[[1, 9]] == pytest.approx([0.5, 2 / 3])
    assert bins.error == pytest.approx(100 * (2 * 0.37 + (2.92 - 2)) / 5)


def test_recall_of_the_shortlist_equals_a_slow_loop(tagger):
    data = dataset()
    X, truth, learner = tagger.features_.transform(data.test.texts), data.test.Y, tagger.predictor_.first
    measured, candidates = shortlist(learner, X, truth), [slow_candidates(learner, x) for x in learner.encode(X)]
    of_points = isinstance(learner.classifier, Vote)
    for width in (1, 3, measured.width or 10, len(measured.recall)):
        listed = [row[:width] for row in candidates]
        labels = [learner.classifier.point_labels[row].indices for row in listed] if of_points else listed
        hits = sum(len(set(row) & set(truth[[i]].indices)) for i, row in enumerate(labels))
        assert measured.recall[width - 1] == pytest.approx(hits / truth.nnz, abs=0.01)  # ties apart
    assert measured.of_points == of_points == (tagger.model == "mnn")
    assert (measured.width is None) == (tagger.model == "glas")
    if tagger.model == "lightdxml":
        assert measured.width == 7
    if tagger.model == "mnn":
        assert measured.width == learner.classifier.neighbours  # without the spare points of the search


def slow_candidates(learner: Learner, query: torch.Tensor) -> list[int]:
    """Return the candidates of a query, nearest first: labels, points, or the labels of the opened clusters."""
    if not isinstance(learner.index, BeamIndex):
        return np.argsort(-(learner.classifier.vectors @ query).numpy(), kind="stable").tolist()
    scores, clusters = (learner.index.heads @ query).numpy(), learner.index.clusters.tolist()
    opened = np.argsort(-scores, kind="stable")[: learner.index.beam].tolist()
    return [label for cluster in opened for label in range(len(clusters)) if clusters[label] == cluster]


def test_coverage_of_bins_by_hand():
    """Training counts 1, 1, 2, 4 make bins of about 1.6 occurrences each: labels are in bins 0, 1, 2 and 4."""
    truth = csr_array(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]))
    shares = covered(np.array([0, 3, 3]), truth, np.array([1, 1, 2, 4]))
    assert shares.tolist() == [100, 0, 0, 0, 100]


def test_confusions_by_hand():
    """Two points with label 0 get 1 instead; one with 1 and 2 gets 2 and 0; the first label of a fourth is right."""
    truth = csr_array(np.array([[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]], dtype=np.float32))
    data = Dataset(Part(truth, X=csr_array(np.eye(4))), label_names=["a", "b", "c"])
    ids = np.array([[1, 0], [1, 2], [2, 0], [2, 1]])
    ranking = Ranking(ids, np.zeros(ids.shape, dtype=np.float32))
    tagged = Tagged(data, data.train, ranking)
    assert tagged.right.tolist() == [[False, True], [False, False], [True, False], [True, False]]
    pairs = [(c.predicted.name, c.right.name, c.times, c.of) for c in confusions(tagged)]
    assert pairs == [("b", "a", 2, 2), ("a", "b", 1, 1)]


def test_marks_are_on_their_words():
    reasons = [Reason("b", 2.0, [(2, 3), (8, 9)]), Reason("<", -1.0, [(4, 5)]), Reason("a b", 0.1, [(0, 3)])]
    assert marked("a b < & b", reasons) == (
        'a <mark class="for" style="--w:1.0">b</mark> <mark class="against" style="--w:0.5">&lt;</mark> &amp; '
        '<mark class="for" style="--w:1.0">b</mark>'
    )
    assert marked("x" * 2000, [Reason("x", 1.0, [(1500, 1600)])]) == "x" * 699 + "…"


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></svg><script>", "&lt;b&gt; ' \" \0"]


def test_the_page_lists_the_text_features_that_were_tried():
    data = dataset()
    trials = [
        {"changes": {"ngrams": 2}, "gain": 1.25, "kept": True},
        {"changes": {"field_weights": {"<title>": 1.0}}, "gain": -0.5, "kept": False},
    ]
    found = findings(fitted("glas", data), data)
    content = page(found, data, ABOUT | {"text": {"text": {"ngrams": 2}, "trials": trials}})
    assert "Tried on held-out points" in content
    rows = re.sub(r"<td[^>]*>", "<td>", content)
    assert "<td>ngrams=2 (+1.2)</td><td>kept</td>" in rows
    assert "<td>field_weights=&lt;title&gt;:1 (-0.5)</td><td></td>" in rows
    nothing = page(found, data, ABOUT | {"text": {"text": {}, "trials": []}})
    assert "Tried on held-out points" not in nothing
    older = re.sub(r"<td[^>]*>", "<td>", page(found, data, ABOUT))  # a model without such an entry
    assert "<td>ngrams</td><td>1</td>" in older


def test_hostile_texts_and_names_are_escaped():
    texts = [f"{bad} {word}" for bad in HOSTILE for word in ("apple", "pear", "plum")]
    names = sorted(HOSTILE)
    Y = csr_array(np.array([[bad == name for name in names] for bad in HOSTILE for _ in range(3)], dtype=np.float32))
    part = Part(Y, texts={"<i>": texts})
    data = Dataset(
        part, test=part.take(np.arange(8)), name="<script>x</script>", label_names=names, label_texts={"<u>": HOSTILE}
    )
    tagger = Tagger("glas", settings=SETTINGS["glas"], text={"min_count": 1}, device="cpu").fit_dataset(data)
    content = page(findings(tagger, data), data, ABOUT)
    checked(content)
    assert "<title>glas on &lt;script&gt;x&lt;/script&gt;</title>" in content
    assert "&lt;<mark" in content or "&lt;script&gt;" in content
    assert "&quot;&gt;&lt;img src=x onerror=alert(1)&gt;" in content


@pytest.mark.parametrize("names", [True, False])
def test_points_without_text_show_their_features(names):
    data = dataset(texts=False)
    if not names:
        data = Dataset(data.train, data.test)
    content = page(findings(fitted("glas", data), data), data, ABOUT | {"tagger": {**ABOUT["tagger"], "text": None}})
    checked(content)
    assert content.count("No text; features with the largest weights:") == 10
    assert "<blockquote>" not in content
    assert ("token00" in content) == names


def test_one_label_and_a_point_without_features():
    X, Y = csr_array(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])), csr_array(np.array([[1.0], [1.0], [1.0]]))
    data = Dataset(Part(Y, X=X), test=Part(Y, X=X))
    result = findings(fitted("glas", data), data)
    checked(page(result, data, ABOUT))
    assert result.confusions == []
    assert result.report.values["P@1"] == 100


def test_a_part_must_have_points():
    data = dataset()
    tagger = fitted("glas", data)
    with pytest.raises(DataError, match="no points in validation"):
        findings(tagger, data, "validation")
