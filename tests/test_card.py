"""Model cards: valid front matter, right figures, nothing that a name can break, and edits that stay."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from scipy.sparse import csr_array

from tests.fixtures.make import TAGS, TEXTS
from zipfel import Tagger, metrics
from zipfel.card.figures import Figures, Interval, Share, Weak, by_point, intervals
from zipfel.card.figures import figures as judged
from zipfel.card.folder import card_of
from zipfel.card.front import Stated, front_matter
from zipfel.card.text import card
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats.readme import is_edited
from zipfel.errors import ConfigError
from zipfel.label_report import LabelReport
from zipfel.persistence import verify
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")

FIXTURE = Path(__file__).parent / "fixtures" / "format-2" / "glas"
NASTY = 'a "name": [x] | # & *b* <i>\n---\n\x85\u2028é😀'
FIGURES = Figures(
    data=NASTY, part="test", points=12, labels=4, metrics={"P@1": Interval(50.0, 25.0, 75.0), "P@3": Interval(9, 8, 10),
    "P@5": Interval(7, 6, 8)}, coverage=80.0, error=4.0, threshold="0.3",
    averages={"microP": 1.0, "microR": 2.0, "microF1": 3.0, "macroF1": 4.0},
    shares=[Share(1, 2, 3, float("nan"), 50.0)], weak=[Weak("a|b\n<i>", float("nan"), 0.0, 0.0, 7, 3)],
    remarks=["some points are known"],
)  # fmt: skip


def matter_of(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


@pytest.fixture(scope="module")
def tagger():
    return Tagger("glas", settings={"dimension": 8, "epochs": 2, "min_steps": 1}, text={"min_count": 1}).fit(
        TEXTS, TAGS
    )


# --- Front matter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["glas on eurlex", "no", "3.5", NASTY, "\ud800", "'", "{}", "- a", "%", "\ufeff\x7f"])
def test_the_front_matter_of_any_name_is_yaml(name):
    stated = Stated("cc-by-4.0", ("en", "pt-BR"), ("owner/data",))
    figures = dataclasses.replace(FIGURES, data=name)
    matter = matter_of(front_matter(name, {"model": "glas"}, stated, figures))
    (result,) = matter["model-index"][0]["results"]
    assert matter["model-index"][0]["name"] == name
    assert result["dataset"] == {"name": name, "type": "owner/data", "split": "test"}
    assert result["metrics"][0] == {"type": "p_at_1", "name": "P@1", "value": 50.0}
    assert (matter["license"], matter["language"], matter["datasets"]) == ("cc-by-4.0", ["en", "pt-BR"], ["owner/data"])
    assert matter["library_name"] == "zipfel"


def test_the_hub_library_reads_the_figures(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    data = ModelCard(card_of(tmp_path / "model", Stated(), FIGURES)).data
    assert [(one.metric_name, one.metric_value) for one in data.eval_results] == [("P@1", 50), ("P@3", 9), ("P@5", 7)]
    assert data.license == "unknown"


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"license": "Apache License"}, "license must be an identifier such as apache-2.0 .*; found 'Apache License'"),
        ({"languages": ("English",)}, "language must be a code such as en"),
        ({"datasets": ("my data",)}, "dataset must be a name on the Hub"),
    ],
)
def test_wrong_identifiers_are_refused(stated, message):
    with pytest.raises(ConfigError, match=message):
        Stated(**stated)


# --- Figures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranked():
    generator = np.random.default_rng(3)
    truth = csr_array((generator.random((60, 12)) < 0.2).astype(np.float32))
    scores = csr_array(
        generator.random((60, 12)).astype(np.float32) * (generator.random((60, 12)) < 0.6) + truth.toarray() * 0.3
    )
    return Ranking.of_scores(scores, 5), truth, 1 + generator.random(12)


def test_metrics_are_ratios_of_sums_over_points(ranked):
    ranking, truth, inverse = ranked
    values = metrics.measure(ranking, truth, inverse)
    for name, (above, below) in by_point(ranking, truth, inverse).items():
        assert 100 * above.sum() / below.sum() == pytest.approx(values[name], rel=1e-9), name


def test_intervals_are_those_of_a_slow_bootstrap(ranked):
    ranking, truth, inverse = ranked
    found = intervals(ranking, truth, inverse, metrics.measure(ranking, truth, inverse), resamples=400)
    generator, drawn = np.random.default_rng(7), []
    for _ in range(400):
        rows = generator.integers(0, 60, 60)
        drawn.append(metrics.measure(Ranking(ranking.ids[rows], ranking.scores[rows]), truth[rows], inverse))
    for name in ("P@1", "nDCG@5", "R@3", "PSP@3"):
        low, high = np.percentile([values[name] for values in drawn], [2.5, 97.5])
        assert found[name].low < found[name].value < found[name].high
        assert found[name].low == pytest.approx(low, abs=2.5), name
        assert found[name].high == pytest.approx(high, abs=2.5), name


def test_weak_labels_and_shares_are_counted_by_hand():
    truth = csr_array(np.array([[1, 0, 1]] * 6 + [[0, 1, 0]] * 4))
    train = csr_array(np.array([[1, 0, 0]] * 8 + [[0, 1, 1]] * 2))
    ranking = Ranking(np.zeros((10, 1), dtype=np.int64), np.full((10, 1), 0.9, dtype=np.float32))  # always label 0
    dataset = Dataset(Part(train, csr_array(np.ones((10, 1)))), Part(truth, csr_array(np.ones((10, 1)))), name="d",
                      label_names=["a", "b", "c"])  # fmt: skip
    report = LabelReport.of(ranking, truth, ["a", "b", "c"], 0.5)
    found = judged(ranking, dataset, "test", report)
    assert found.metrics["P@1"].value == 60.0
    assert found.error == pytest.approx(30.0)  # says 0.9, right in 6 of 10
    assert [(weak.label, weak.f1, weak.support, weak.trained) for weak in found.weak] == [("c", 0.0, 6, 2)]  # b has 4
    assert found.shares[-1] == Share(8, 8, 1, 60.0, 100.0)
    assert (found.shares[0].labels, found.shares[0].recall) == (1, 0.0)


def test_weak_labels_are_called_by_their_titles():
    truth = csr_array(np.array([[1, 1, 1]] * 5))
    ranking = Ranking(np.full((5, 1), -1), np.full((5, 1), -np.inf, dtype=np.float32))
    names = ["http://t.org/1", "http://t.org/2", "c"]
    dataset = Dataset(Part(truth, csr_array(np.ones((5, 1)))), Part(truth, csr_array(np.ones((5, 1)))), name="d",
                      label_names=names)  # fmt: skip
    report = dataclasses.replace(LabelReport.of(ranking, truth, names, 0.5), titles=["cats", "", "c"])
    found = judged(ranking, dataset, "test", report)
    assert [weak.label for weak in found.weak] == ["c", "cats <http://t.org/1>", "http://t.org/2"]


# --- Text -------------------------------------------------------------------------------------------------------------


def test_the_card_shows_names_as_they_are(tagger):
    saved = tagger.saved()
    text = card({**saved.about, "source": {**saved.about["source"], "name": NASTY}}, saved.documents, Stated(), FIGURES)
    assert "| a\\|b \\<i\\> | – | 0.0 | 0.0 | 7 | 3 |" in text
    assert "| 1 to 2 | 3 | – | 50.0 |" in text
    assert "| P | 50.0 (25.0 to 75.0) |" in text
    assert "12 points are few" in text
    assert "- some points are known" in text
    assert "| training points | 120 |" in text
    assert "Unknown: nobody has stated one" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {3, 5, 7}


def test_saving_writes_a_card_that_may_be_edited(tagger, tmp_path):
    folder = tmp_path / "model"
    tagger.save(folder)
    text = (folder / "README.md").read_text()
    assert not is_edited(text)
    assert "P@1 on points held out of training: 100.0 %" in text
    assert "Not measured on test points" in text
    (folder / "README.md").write_text(text + "Trained by us.\n")
    assert verify(folder) >= 4
    assert Tagger.load(folder).predict(["paper jam"], k=1)[0]
    tagger.save(folder, replace=True)
    assert not is_edited((folder / "README.md").read_text())
    assert (folder / "README.old.md").read_text() == text + "Trained by us.\n"
    tagger.save(folder, replace=True)
    assert (folder / "README.old.md").read_text() == text + "Trained by us.\n"


def test_a_model_of_a_matrix_is_loaded_from_python_only(tmp_path):
    X = np.eye(4, dtype=np.float32)[[0, 1, 2, 3] * 30]
    Tagger("linear").fit(X, TAGS).save(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    assert "tagger.predict(X, k=5)" in text
    assert "zipfel predict" not in text
    assert "rows of 4 features" in text


# --- Command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    rows = [f"{text},{';'.join(tags)}" for text, tags in zip(TEXTS, TAGS, strict=True)]
    (tmp_path / "more.csv").write_text("\n".join(["text,labels", *rows[:8], "a new wifi text,network"]) + "\n")
    return tmp_path / "model"


def test_the_command_measures_and_writes_figures(zipfel_command, model, tmp_path):
    words = [
        "card",
        model,
        tmp_path / "more.csv",
        "--sep",
        ";",
        "--license",
        "mit",
        "--text-language",
        "en",
        "--holdout",
        "0",
    ]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    evaluated = tmp_path / "figures.json"
    assert zipfel_command("evaluate", *words[1:5], "--holdout", "0", "--json", evaluated).code == 0
    text = (model / "README.md").read_text()
    metrics_of = matter_of(text)["model-index"][0]["results"][0]["metrics"]
    figures = json.loads(evaluated.read_text())
    assert {one["name"]: one["value"] for one in metrics_of} == {
        name: round(figures[name], 2) for name in (f"{m}@{k}" for m in ("P", "nDCG", "R", "PSP") for k in (1, 3, 5))
    }
    assert "were used in training" in text
    assert matter_of(text)["license"] == "mit"
    assert not is_edited(text)


def test_an_edited_card_is_overwritten_only_where_wanted(zipfel_command, model, tmp_path):
    (model / "README.md").write_text("# mine\n")
    outcome = zipfel_command("card", model)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "README.md: was edited by hand; --replace overwrites it" in outcome.err
    assert zipfel_command("card", model, "--out", tmp_path / "card.md").code == 0
    assert (model / "README.md").read_text() == "# mine\n"
    assert zipfel_command("card", model, "--replace").code == 0
    assert (model / "README.md").read_text() == (tmp_path / "card.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--license", "Apache License 2.0"], "license must be an identifier"),
        (["missing.csv"], "missing.csv"),
    ],
)
def test_bad_input_is_one_line(zipfel_command, model, words, message):
    outcome = zipfel_command("card", model, *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err


def test_models_without_a_known_source_have_a_card():
    text = card_of(FIXTURE)
    assert "| training points | unknown |" in text
    assert matter_of(text)["tags"][-1] == "glas"
