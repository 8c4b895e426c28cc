"""`zipfel train DATA` without a model: odd data trains or is one line; text features are chosen, shown and resumed."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import zipfel
from zipfel import text_choice
from zipfel.data.dataset import Dataset, Part
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["red", "green", "blue", "apple", "pear", "plum"]
SMALL = ["--set", "dimension=8", "--set", "epochs=1", "--device", "cpu"]
Rows = list[tuple[str, str]]


def table(path: Path, rows: Rows, header: tuple[str, ...] = ("text", "labels")) -> Path:
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([header, *rows])
    return path


def pairs(count: int, random: bool = False, seed: int = 0) -> Rows:
    """Return texts of two words, whose label is the first word, or a random one."""
    numbers = np.random.default_rng(seed)
    words = [[WORDS[word] for word in numbers.permutation(6)[:2]] for _ in range(count)]
    return [(" ".join(both), WORDS[numbers.integers(6)] if random else both[0]) for both in words]


# --- Odd data ---------------------------------------------------------------------------------------------------------

ODD: dict[str, tuple[Rows, str | None]] = {
    "50 points": (pairs(50), None),
    "one label": ([(text, "fruit") for text, _ in pairs(600)], None),
    "one label, 50 points": ([(text, "fruit") for text, _ in pairs(50)], None),
    "some empty texts": ([("" if number % 3 else text, tag) for number, (text, tag) in enumerate(pairs(600))], None),
    "only empty texts": (
        [("", tag) for _, tag in pairs(600)],
        "holding out needs 2 distinct points; found 600 points, 1 distinct",
    ),
    "labels that never repeat": ([(text, f"C{number}") for number, (text, _) in enumerate(pairs(600))], None),
    "words that never repeat": ([(f"w{number}", tag) for number, (_, tag) in enumerate(pairs(750))], None),
    "50 words that never repeat": (
        [(f"w{number}", f"C{tag}1") for number, (_, tag) in enumerate(pairs(50))],
        r"none of \d+ terms is in 2 of \d+ texts; lower min_count",
    ),
    "no labels": ([(text, "") for text, _ in pairs(600)], "no point has a label|column 'labels' holds no labels"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_tables_train_or_say_in_one_line_why_not(kind, zipfel_command, tmp_path):
    rows, problem = ODD[kind]
    data = table(tmp_path / "data.csv", rows)
    outcome = zipfel_command("train", data, "--out", tmp_path / "out", *SMALL)
    assert "Traceback" not in outcome.err
    if problem is None:
        assert outcome.code == 0, outcome.err
        answer = zipfel_command("predict", tmp_path / "out", "red apple", "--k", "1", "--json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["tags"][0]["label"] in {tag for _, tag in rows}
    else:
        assert outcome.code == 2
        assert re.search(problem, outcome.err)
        assert outcome.err.strip().splitlines()[-1].startswith("error: ")
        assert len(re.findall("error", outcome.err)) == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field", ["title", "body"])
def test_one_field_only(field, zipfel_command, tmp_path):
    """A title that is the only field has nothing beside it to weigh."""
    data = table(tmp_path / "data.csv", pairs(750), (field, "labels"))
    outcome = zipfel_command("train", data, "--text", field, "--out", tmp_path / "out", *SMALL)
    assert outcome.code == 0, outcome.err
    trials = json.loads((tmp_path / "out" / "model" / "model.json").read_text())["text"]["trials"]
    assert trials
    assert all("field_weights" not in trial["changes"] for trial in trials)


def test_points_without_texts_train(zipfel_command, tmp_path):
    numbers = np.random.default_rng(0)
    X = csr_array((numbers.random((600, 12)) < 0.3).astype(np.float32))
    Y = csr_array((numbers.random((600, 5)) < 0.3).astype(np.float32))
    zipfel.write(Dataset(Part(Y[:500], X=X[:500]), test=Part(Y[500:], X=X[500:])), tmp_path / "data", "repository")
    outcome = zipfel_command("train", tmp_path / "data", "--out", tmp_path / "out", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "text features" not in outcome.err
    assert json.loads((tmp_path / "out" / "model" / "model.json").read_text())["text"] == {"text": {}, "trials": []}
    assert zipfel_command("evaluate", tmp_path / "out", tmp_path / "data").code == 0


@pytest.mark.parametrize("kind", ODD)
def test_odd_data_in_python(kind):
    rows, problem = ODD[kind]
    texts, tags = [text for text, _ in rows], [[tag] if tag else [] for _, tag in rows]
    tagger = Tagger(settings={"dimension": 8, "epochs": 1}, device="cpu")
    if problem is None:
        assert tagger.fit(texts, tags).predict(texts[:2], k=1)[0][0].label in tagger.classes_
    else:
        with pytest.raises(zipfel.errors.DataError, match=problem):
            tagger.fit(texts, tags)


def test_a_matrix_in_python():
    numbers = np.random.default_rng(0)
    X = numbers.random((600, 12)).astype(np.float32)
    tags = [["high" if row[0] > 0.5 else "low"] for row in X]
    tagger = Tagger(settings={"dimension": 8, "epochs": 1}, device="cpu").fit(X, tags)
    assert tagger.text_choice_.trials == ()
    assert tagger.predict(X[:1], k=1)[0][0].label in ("high", "low")


# --- Text features that the data chooses ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Return a table in which the order of words decides; 600 of its points are for training."""
    return table(tmp_path_factory.mktemp("auto") / "pairs.csv", pairs(750))


def test_the_choice_is_printed_saved_and_in_the_report(zipfel_command, data, tmp_path):
    outcome = zipfel_command("train", data, "--out", tmp_path / "out", *SMALL)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.err.splitlines() if "text features" in line]
    assert re.fullmatch(r"note: text features: ngrams=2 \(\+\d+\.\d\); \d changes tried on held-out points", line)
    about = json.loads((tmp_path / "out" / "model" / "model.json").read_text())
    assert about["text"]["text"] == {"ngrams": 2}
    assert about["tagger"]["text"] == {}  # the user has named none
    assert {"changes", "gain", "kept"} == about["text"]["trials"][0].keys()
    loaded = Tagger.load(tmp_path / "out", device="cpu")
    assert loaded.text_choice_.text == {"ngrams": 2}
    assert f"note: {loaded.text_choice_}" == line
    assert any(" " in term for term in loaded.features_.terms)
    assert zipfel_command("report", tmp_path / "out", data, "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    kept = next(trial for trial in loaded.text_choice_.trials if trial.kept)
    assert "Tried on held-out points" in page
    assert f"{kept}</td><td>kept" in re.sub(r"<td[^>]*>", "<td>", page).replace("\n", "")
    assert "labels have" in page  # why the model was chosen


def test_the_choice_resumes_and_is_seeded(zipfel_command, data, tmp_path, monkeypatch):
    words = ["train", data, "--out", tmp_path / "out", *SMALL]
    search, asked = text_choice._search, list[int]()
    monkeypatch.setattr(text_choice, "_search", lambda *given: asked.append(1) or search(*given))
    stop = text_choice.Run.keep

    def killed(self, name, *rest):
        stop(self, name, *rest)
        if name == text_choice.STAGE:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(text_choice.Run, "keep", killed)
        assert zipfel_command(*words).code != 0
    assert len(asked) == 1
    resumed = zipfel_command(*words)
    assert resumed.code == 0, resumed.err
    assert len(asked) == 1  # the kept choice is used
    assert "text features: ngrams=2" in resumed.err
    other = zipfel_command("train", data, "--out", tmp_path / "other", *SMALL)
    assert other.code == 0
    assert len(asked) == 2
    first, again = (json.loads((tmp_path / name / "model" / "model.json").read_text()) for name in ("out", "other"))
    assert first["text"] == again["text"]
    assert Tagger.load(tmp_path / "out").predict(["red apple"]) == Tagger.load(tmp_path / "other").predict(
        ["red apple"]
    )


def test_named_settings_stay(zipfel_command, data, tmp_path):
    outcome = zipfel_command("train", data, "--out", tmp_path / "out", *SMALL, "--ngrams", "1", "--min-count", "1")
    assert outcome.code == 0, outcome.err
    about = json.loads((tmp_path / "out" / "model" / "model.json").read_text())
    assert {"ngrams": 1, "min_count": 1}.items() <= about["text"]["text"].items()
    assert not {"ngrams", "min_count"} & {name for trial in about["text"]["trials"] for name in trial["changes"]}


def test_ctrl_c_in_the_choice_leaves_nothing_behind(zipfel_command, data, tmp_path, monkeypatch):
    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(text_choice, "_search", stopped)
    outcome = zipfel_command("train", data, "--out", tmp_path / "out", *SMALL)
    assert outcome.code != 0
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", range(2))
def test_random_labels_gain_nothing(seed):
    """Neither text features nor linear classifiers find anything: on other points, chance is all that is left."""
    rows, other = pairs(600, random=True, seed=seed), pairs(1500, random=True, seed=seed + 100)
    tagger = Tagger(settings={"dimension": 8, "epochs": 2}, device="cpu")
    tagger.fit([text for text, _ in rows], [[tag] for _, tag in rows])
    assert tagger.chosen_.model == "blend"
    assert tagger.text_choice_.text == {}
    hits = [
        tags[0].label == tag
        for tags, (_, tag) in zip(tagger.predict([text for text, _ in other], k=1), other, strict=True)
    ]
    error = float(np.sqrt(1 / 6 * 5 / 6 / len(hits)))
    assert abs(float(np.mean(hits)) - 1 / 6) < 3 * error
