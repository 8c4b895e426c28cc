"""One way to tag: Python, `zipfel predict` and `POST /tag` give the same answers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from scipy.sparse import csr_array

from zipfel import calibration, tagging
from zipfel.data.dataset import Dataset
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import TextFeatures
from zipfel.errors import ConfigError, DataError
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings, Sources
from zipfel.tagger import Tagger
from zipfel.tagging import Request, Tag, Tagged
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"dimension": 16, "epochs": 4, "min_steps": 1, "learning_rate": 0.01}
MODELS = {
    "glas": ("glas", SMALL),
    "lightdxml": ("lightdxml", SMALL),
    "decaf": ("decaf", {**SMALL, "batch_size": 32}),
    "ensemble": ("decaf", {**SMALL, "batch_size": 32, "learners": 2}),
    "mnn": ("mnn", {"dimension": 16, "epochs": 2}),
    "dxml": ("dxml", {"dimension": 16, "hidden_size": 16, "epochs": 2}),
}
REMOVED = "label 3"  # from every model


@pytest.fixture(scope="module")
def planted() -> Dataset:
    dataset = make(Synthetic(points=700, labels=60, texts=True, noise=0.2, seed=1))
    names = [f"label {number}" for number in range(60)]
    return Dataset(dataset.train, test=dataset.test, label_names=names, label_texts=dataset.label_texts)


@pytest.fixture(scope="module")
def texts(planted: Dataset) -> list[str]:
    return [*next(iter(planted.test.texts.values()))[:12], "", "zyzzyva"]


@pytest.fixture(scope="module")
def extra(planted: Dataset) -> dict[str, str]:
    """Labels of one request: one of known words, one of unknown words, and one whose name was removed."""
    described = next(iter(planted.label_texts.values()))
    return {"mine": described[5], "odd": "zyzzyva", REMOVED: described[3]}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, planted: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / request.param
    model, settings = MODELS[request.param]
    tagger = Tagger(model, settings=settings, device="cpu", validation=0.3).fit_dataset(planted)
    assert tagger.calibration_ is not None
    tagger.remove_labels([REMOVED]).save(path)
    return path


@pytest.fixture(scope="module")
def tagger(folder: Path) -> Tagger:
    return Tagger.load(folder, device="cpu")


def posted(folder: Path, *bodies: dict[str, Any], **limits: Any) -> list[httpx.Response]:
    """Return the responses of a service to requests that arrive together."""

    async def responses() -> list[httpx.Response]:
        measures = Measures()
        service = Service(Catalog(Sources({"m": [folder]})), ServeSettings(**limits), measures)
        service.start()
        transport = httpx.ASGITransport(Gate(built(service), measures, None))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = await asyncio.gather(*(client.post("/tag", json=body) for body in bodies))
        await service.stop()
        return answers

    return asyncio.run(responses())


def tags_of(rows: Sequence[Sequence[dict[str, Any]]]) -> list[list[Tag]]:
    return [[Tag(**tag) for tag in row] for row in rows]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 1},
    {"k": 7},
    {"k": 1000},
    {"threshold": 0.0},
    {"threshold": 0.2},
    {"threshold": 0.2, "k": 2},
    {"threshold": 1.0},
]


def test_python_the_command_line_and_the_service_agree(folder, tagger, texts, extra, zipfel_command, tmp_path):
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    expected = [tagger.predict(texts, **options) for options in OPTIONS]
    sizes = [max(map(len, rows)) for rows in expected]
    assert sizes[:5] == [calibration.SHOWN, 1, 7, 59, calibration.DEPTH]
    assert 0 < sizes[6] <= 2 < sizes[5] < calibration.DEPTH  # the threshold decides, or k
    for options, rows in zip(OPTIONS, expected, strict=True):
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        outcome = zipfel_command("predict", folder, "--input", source, "--json", *words)
        assert outcome.code == 0, outcome.err
        assert tags_of([json.loads(line)["tags"] for line in outcome.out.splitlines()]) == rows
    answers = posted(folder, *({"texts": texts, **options} for options in OPTIONS))
    assert [answer.status_code for answer in answers] == [200] * len(OPTIONS)
    assert [tags_of(answer.json()["tags"]) for answer in answers] == expected
    if tagger.fitted_.blueprint.abilities.scores_label_texts:  # the command line offers no extra labels
        more = [tagger.predict(texts, extra=extra, **options) for options in OPTIONS]
        assert more != expected
        answers = posted(folder, *({"texts": texts, "extra": extra, **options} for options in OPTIONS))
        assert [tags_of(answer.json()["tags"]) for answer in answers] == more


@pytest.mark.parametrize("folder", ["glas", "ensemble"], indirect=True)
def test_requests_answered_together_get_the_same_answers_as_alone(tagger, texts, extra):
    filtered = csr_array(np.eye(len(texts), 60, dtype=np.float32))
    options: list[dict[str, Any]] = [*OPTIONS, {"extra": extra}, {"filtered": filtered}, {"filtered": filtered, "k": 7}]
    requests = [Request(texts[number:], **more) for number, more in enumerate(options) if "filtered" not in more]
    requests += [Request(texts, **more) for more in options if "filtered" in more]
    together, alone = tagger.tag(requests), [tagger.tag([request])[0] for request in requests]
    for one, other in zip(together, alone, strict=True):
        assert one.tags() == other.tags()
        assert np.array_equal(one.ranking.ids, other.ranking.ids)
        assert list(one.names) == list(other.names)
    assert tagger.tag([]) == []


@pytest.mark.parametrize("folder", ["glas"], indirect=True)
def test_filtered_pairs_are_not_tagged(tagger, texts):
    best = [row[0].label for row in tagger.predict(texts, 1)]
    filtered = csr_array([[float(name == label) for name in tagger.classes_] for label in best])
    rows = tagger.tag([Request(texts, 60, filtered=filtered)])[0].tags()
    assert [len(row) for row in rows] == [58] * len(texts)  # of 60, one is removed and one is filtered
    assert all(label not in [tag.label for tag in row] for label, row in zip(best, rows, strict=True))
    with pytest.raises(DataError, match=r"filtered pairs must be 2 × 60; found shape \(14, 60\)"):
        tagger.tag([Request(texts[:2], filtered=filtered)])


@pytest.mark.parametrize("folder", ["glas", "lightdxml", "decaf"], indirect=True)
def test_extra_labels_compete_with_those_of_the_model(tagger, texts, extra):
    plain, rows = tagger.predict(texts, 100), tagger.predict(texts, 100, extra=extra)
    names = {*tagger.labels_.live, *extra}
    for one, other in zip(plain, rows, strict=True):
        assert {tag.label for tag in other} == names
        assert [tag.label for tag in other if tag.label not in extra] == [tag.label for tag in one]
        scores = [tag.score for tag in other]
        assert scores == sorted(scores, reverse=True)
    assert tagger.predict(texts, 2, extra=extra) == [row[:2] for row in rows]
    assert {row[-1].label for row in rows[:12]} == {"odd"}  # none of its words is known; the last two texts have none
    own, other = (dict(row) for row in tagger.predict([extra["mine"], extra[REMOVED]], 100, extra=extra))
    assert own["mine"] > other["mine"]  # a label scores more for a text that equals its own
    assert own[REMOVED] < other[REMOVED]


@pytest.mark.parametrize("folder", ["decaf"], indirect=True)
def test_a_request_with_extra_labels_is_tagged_once(folder, extra, monkeypatch):
    transformed, ranked = [], []
    transform, rank = TextFeatures.transform, tagging.rank

    def counted(features: TextFeatures, given: Any) -> csr_array:
        rows = transform(features, given)
        transformed.append(rows.shape[0])
        return rows

    monkeypatch.setattr(TextFeatures, "transform", counted)
    monkeypatch.setattr(tagging, "rank", lambda fitted, X, *more: ranked.append(X.shape[0]) or rank(fitted, X, *more))
    Catalog(Sources({"m": [folder]}))
    warming = len(transformed)  # texts that are tagged to warm up a model
    transformed.clear()
    ranked.clear()
    (answer,) = posted(folder, {"texts": ["one text", "another"], "extra": extra})
    assert answer.status_code == 200
    assert ranked[warming:] == [2]
    assert transformed[warming:] == [2, len(extra)]


@pytest.mark.parametrize("folder", ["decaf"], indirect=True)
def test_an_extra_label_counts_once_against_the_limit(folder, extra):
    bodies = [{"texts": ["a text"] * count, "extra": extra} for count in (2, 3)]
    fits, exceeds = posted(folder, *bodies, max_texts=5)
    assert fits.status_code == 200
    assert exceeds.status_code == 413
    assert exceeds.json() == {"error": "a request may have at most 5 texts and extra labels; found 6"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1; found 0"),
        ({"k": 2.5}, "k must be a whole number of at least 1; found 2.5"),
        ({"threshold": 1.5}, "threshold must be at least 0 and at most 1; found 1.5"),
        ({"extra": {" label 5": "a text"}}, "extra: the model already has a label 'label 5'"),
        ({"threshold": [0.1, 0.2]}, "threshold must be a number, or 3 of them"),
        ({"extra": {"label 5": "a text"}}, "extra: the model already has a label 'label 5'"),
    ],
)
@pytest.mark.parametrize("folder", ["decaf"], indirect=True)
def test_requests_that_are_refused(folder, tagger, texts, options, message):
    for act in (lambda: tagger.predict(texts, **options), lambda: tagger.tag([Request(texts, **options)])):
        with pytest.raises(ConfigError, match=message):
            act()
    (answer,) = posted(folder, {"texts": texts, **options})
    assert answer.status_code == 400


@pytest.mark.parametrize("folder", ["decaf"], indirect=True)
def test_extra_labels_are_named_as_labels_are(folder, tagger, texts, extra):
    spaced = {f" {name}\n": text for name, text in extra.items()}
    wanted = tagger.predict(texts, 63, extra=extra)
    assert tagger.tag([Request(texts, 63, extra=spaced)])[0].tags() == wanted
    bodies = [{"texts": texts, "k": 63, "extra": names} for names in (extra, spaced, {" ": "text"})]
    own, named, empty = posted(folder, *bodies)
    assert tags_of(named.json()["tags"]) == tags_of(own.json()["tags"]) == wanted
    assert empty.status_code == 400
    assert "the name of a label must not be empty" in empty.json()["error"]


def test_a_threshold_of_numpy_is_checked_too(tagger, texts):
    with pytest.raises(ConfigError, match="threshold must be at least 0 and at most 1"):
        tagger.predict(texts, threshold=np.float32(1.5))


@pytest.mark.parametrize("folder", ["glas"], indirect=True)
def test_the_nearest_labels_of_a_name_with_blanks(tagger):
    assert tagger.nearest_labels(" label 5 ", 2) == tagger.nearest_labels("label 5", 2)
    with pytest.raises(ConfigError, match="unknown label 'label'"):
        tagger.nearest_labels("label")


@pytest.mark.parametrize("folder", ["mnn", "glas"], indirect=True)
def test_check_says_whether_a_model_can_answer(tagger, texts, extra):
    tagger.check(Request(texts, 3, 0.5))
    if tagger.chosen_.model == "glas":
        tagger.check(Request(texts, extra=extra))
        matrix = Tagger("glas", settings=SMALL, device="cpu").fit(csr_array(np.eye(4)), [["a"], ["b"]] * 2)
        with pytest.raises(ConfigError, match="a model that was fitted on a matrix cannot score a label by its text"):
            matrix.check(Request(np.eye(4), extra=extra))
    else:
        for act in (tagger.check, lambda request: tagger.tag([request])):
            with pytest.raises(ConfigError, match="mnn cannot score a label by its text"):
                act(Request(texts, extra=extra))


# --- Texts of which no word is known ----------------------------------------------------------------------------------

UNKNOWN = ["", "  \n", "zyzzyva", "!?"]


def by_frequency(tagger: Tagger, points: int) -> list[Tag]:
    """Return all labels that the tagger predicts, by their share of the training points."""
    labels = tagger.labels_
    shares = [(np.float32(count / points), name) for name, count in zip(labels.names, labels.counts, strict=True)]
    tags = [Tag(name, float(share)) for share, name in shares if name in labels.live]
    return sorted(tags, key=lambda tag: -tag.score)  # stable: ties go to the lower id


def test_a_text_without_a_known_word_gets_the_most_frequent_labels(tagger, planted, texts):
    expected = by_frequency(tagger, len(planted.train))
    assert 0 < expected[-1].score < expected[0].score < 0.7
    for k in (1, 5, 1000):
        assert tagger.predict(UNKNOWN, k) == [expected[:k]] * len(UNKNOWN)
        mixed = tagger.predict([texts[0], *UNKNOWN, texts[1]], k)
        assert mixed == [*tagger.predict(texts[:1], k), *[expected[:k]] * len(UNKNOWN), *tagger.predict(texts[1:2], k)]
    least = expected[2].score
    assert tagger.predict(UNKNOWN, threshold=least) == [[tag for tag in expected if tag.score >= least]] * len(UNKNOWN)
    assert tagger.predict([""], threshold=[np.inf, np.inf, 0.0])[0][0] == expected[0]  # one for each bin of frequency
    ranking = tagger.rank([texts[0], ""], 5)
    assert [tagger.classes_[label] for label in ranking.ids[1]] == [tag.label for tag in expected[:5]]
    assert ranking.scores[1].tolist() == [tag.score for tag in expected[:5]]
    alone = tagger.predictor_.rank(tagger.features_.transform(texts[:1]), 6)  # REMOVED may be one of them
    kept = [label for label in alone.ids[0] if tagger.classes_[label] != REMOVED][:5]
    assert ranking.ids[0].tolist() == kept


def test_a_text_without_a_known_word_is_marked(folder, tagger, texts, zipfel_command):
    known = [*[True] * 12, False, False]
    assert tagger.known(texts).tolist() == known
    assert tagger.tag([Request(texts, 2)])[0].known.tolist() == known
    lines = zipfel_command("predict", folder, *texts, "--json").out.splitlines()
    assert [json.loads(line)["known"] for line in lines] == known
    (answer,) = posted(folder, {"texts": texts})
    assert answer.json()["known"] == known
    note = "no known word; the most frequent labels are:"
    assert note in zipfel_command("predict", folder, "zyzzyva").out
    assert note not in zipfel_command("predict", folder, texts[0]).out


@pytest.mark.parametrize("folder", ["glas"], indirect=True)
def test_filtered_pairs_and_extra_labels_of_a_text_without_a_known_word(tagger, planted, extra):
    expected = by_frequency(tagger, len(planted.train))
    filtered = csr_array([[float(name == expected[1].label) for name in tagger.classes_], [0.0] * 60])
    rows = tagger.tag([Request(["", "zyzzyva"], 3, filtered=filtered)])[0].tags()
    assert rows == [[expected[0], *expected[2:4]], expected[:3]]
    row = tagger.predict([""], 1000, extra=extra)[0]
    assert row == [*expected, *(Tag(name, 0.0) for name in extra)]  # in training, no point had them


def test_a_row_of_zeros_gets_the_most_frequent_labels():
    X, tags = np.repeat(np.eye(3), 4, axis=0), [["a"], ["b", "c"], ["c"], ["c"]] * 3
    tagger = Tagger("glas", settings=SMALL, device="cpu").fit(X, tags)
    zeros = csr_array((np.zeros(1, dtype=np.float32), ([0], [1])), shape=(1, 3))  # one is stored
    for nothing in (np.zeros((1, 3)), zeros):
        assert tagger.predict(nothing) == [[Tag("c", 0.75), Tag("a", 0.25), Tag("b", 0.25)]]
        assert tagger.known(nothing).tolist() == [False]


@pytest.mark.parametrize("folder", ["mnn"], indirect=True)
def test_points_learned_later_count_too(folder, planted):
    tagger = Tagger.load(folder, device="cpu")
    tagger.partial_fit(["zyzzyva"] * 800, [["new"]] * 800)
    points = len(planted.train) + 800
    assert tagger.predict([""], 60)[0] == by_frequency(tagger, points)
    assert tagger.predict([""], 1)[0] == [Tag("new", float(np.float32(800 / points)))]


@pytest.mark.parametrize("folder", ["glas"], indirect=True)
def test_a_model_saved_without_its_number_of_points_uses_shares_of_all_tags(tagger):
    labels = dataclasses.replace(tagger.labels_, points=0)
    assert labels.frequent[1].sum() < 1 < tagger.labels_.frequent[1].sum()
    assert np.array_equal(labels.frequent[0], tagger.labels_.frequent[0])


def test_padding_is_no_tag():
    ranking = Ranking(np.array([[1, 0], [0, -1], [-1, -1]]), np.array([[0.5, 0.25], [0.75, -np.inf], [-np.inf] * 2]))
    tagged = Tagged(ranking, ["a", "b"], np.array([True, True, False]))
    assert tagged.tags() == [[Tag("b", 0.5), Tag("a", 0.25)], [Tag("a", 0.75)], []]
