"""The choice of text features (zipfel/text_choice.py): it finds what is planted, and nothing in random labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from zipfel import metrics, text_choice
from zipfel.data.dataset import Dataset, Part
from zipfel.data.text import TextSettings
from zipfel.errors import ConfigError
from zipfel.models.linear import Linear
from zipfel.tagger import Tagger
from zipfel.text_choice import Judge, TextChoice, Trial, chosen_text, proposals, quality_of_points, seconds_of_choice
from zipfel.training.progress import Moment, Observer, Progress
from zipfel.training.run import Run
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ["red", "green", "blue", "apple", "pear", "plum"]
CPU = torch.device("cpu")


def pairs(count: int = 700, random: bool = False, seed: int = 0) -> Dataset:
    """Return texts of two words, whose label is the first word, or a random one."""
    numbers = np.random.default_rng(seed)
    words = np.array([numbers.permutation(6)[:2] for _ in range(count)])
    labels = numbers.integers(0, 6, count) if random else words[:, 0]
    Y = csr_array((np.ones(count), (np.arange(count), labels)), shape=(count, 6))
    return Dataset(Part(Y, texts={"text": [f"{WORDS[a]} {WORDS[b]}" for a, b in words]}))


def test_pairs_of_words_are_chosen_where_their_order_decides():
    choice = chosen_text(pairs(), None, Run(), CPU)
    assert choice.text == {"ngrams": 2}
    (kept,) = [trial for trial in choice.trials if trial.kept]
    assert kept.gain > 10
    assert "ngrams=2 (+" in str(choice)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_gained_on_random_labels(seed):
    choice = chosen_text(pairs(random=True, seed=seed), None, Run(), CPU)
    assert choice.text == {}
    assert choice.trials
    assert not any(trial.kept for trial in choice.trials)


def test_without_its_guards_the_choice_finds_something_in_random_labels(monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(text_choice, "SURE", 0.0)
    monkeypatch.setattr(text_choice, "LEAST_GAIN", 0.0)
    assert any(chosen_text(pairs(random=True, seed=seed), None, Run(), CPU).text for seed in range(3))


def planted(monkeypatch, gains: list[float], spread: float, points: int = 100) -> TextChoice:
    """Return the choice where each trial gains so much on every held-out point, give or take the spread."""
    noise = spread * np.where(np.arange(points) % 2, 1.0, -1.0)
    qualities = iter([np.zeros(points), *(np.full(points, gain) + noise for gain in gains)])
    monkeypatch.setattr(Judge, "quality", lambda judge, text: next(qualities))
    monkeypatch.setattr(text_choice, "proposals", lambda judge, given: iter([{"min_count": 1}]))
    return chosen_text(pairs(), None, Run(), CPU)


@pytest.mark.parametrize(
    ("gain", "spread", "kept"),
    [
        (0.0031, 0.0, True),
        (0.0029, 0.0, False),  # sure, but too little
        (0.021, 0.1, True),  # the standard error is 0.01
        (0.019, 0.1, False),
        (-0.1, 0.0, False),
    ],
)
def test_a_gain_must_be_sure_and_worth_it(monkeypatch, gain, spread, kept):
    choice = planted(monkeypatch, [gain], spread)
    assert choice.text == ({"min_count": 1} if kept else {})
    (trial,) = choice.trials
    assert trial.kept == kept
    assert trial.gain == pytest.approx(100 * gain)


def test_named_settings_are_not_touched():
    choice = chosen_text(pairs(), {"ngrams": 1}, Run(), CPU)
    assert choice.text["ngrams"] == 1
    assert all("ngrams" not in trial.changes for trial in choice.trials)


def test_few_points_decide_nothing():
    assert chosen_text(pairs(400), {"min_count": 3}, Run(), CPU).text == {"min_count": 3}


def test_a_run_keeps_the_choice(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.open({})
    first = chosen_text(pairs(), None, run, CPU)
    assert first.text == {"ngrams": 2}
    monkeypatch.setattr(text_choice, "_search", None)  # is not asked again
    again = Run(tmp_path)
    again.open({})
    assert chosen_text(pairs(), None, again, CPU) == first
    assert again.notes == {str(first)}  # which is said again


def test_the_choice_is_seeded(monkeypatch):
    split = text_choice.split_rows
    seeds = list[int]()
    monkeypatch.setattr(
        text_choice, "split_rows", lambda part, share, seed: seeds.append(seed) or split(part, share, seed)
    )
    first, again, other = (chosen_text(pairs(), None, Run(seed=seed), CPU) for seed in (1, 1, 2))
    assert seeds == [1, 1, 2]
    assert first == again
    assert first.trials != other.trials  # other points are held out
    assert first.text == other.text


def test_a_plan_counts_a_trial_for_each_proposal(monkeypatch):
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(text_choice.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(Judge, "quality", lambda judge, text: np.zeros(1))
    monkeypatch.setattr(text_choice, "proposals", lambda judge, given: iter([{"ngrams": 2}, {"ngrams": 3}]))
    assert seconds_of_choice(pairs(), None, 0, CPU) == 2 * (1 + 2)
    assert seconds_of_choice(pairs(400), None, 0, CPU) == 0


class Seen(Progress):
    """Notes what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = list[Moment]()

    def update(self, moment: Moment) -> None:
        self.moments.append(moment)


class Timed(Observer):
    """Notes which stages were timed."""

    def __init__(self) -> None:
        self.stages = list[str]()

    def made(self, stage, seconds, grows_with) -> None:
        self.stages.append(stage)


def test_progress_is_shown_and_the_judges_models_are_not_logged(caplog):
    seen, timed = Seen(), Timed()
    with caplog.at_level("INFO", logger="zipfel"):
        choice = chosen_text(pairs(), None, Run(progress=seen, observer=timed), CPU)
    assert [record.message for record in caplog.records] == [f"note: {choice}"]
    assert {moment.stage for moment in seen.moments} == {"text features"}
    assert seen.moments[-1].seconds_left == 0
    assert timed.stages == ["text"]


def test_ctrl_c_is_not_taken_for_a_judgement(monkeypatch):
    """The linear model keeps what it has after Ctrl-C; a choice must not rest on it."""
    plain, calls = Linear.solved, list[int]()

    def stopped(self, part, negatives, run, number):
        calls.append(number)
        if len(calls) == 4:  # second round of the second trial
            raise KeyboardInterrupt
        return plain(self, part, negatives, run, number)

    monkeypatch.setattr(Linear, "solved", stopped)
    with pytest.raises(KeyboardInterrupt):
        chosen_text(pairs(), None, Run(), CPU)
    assert calls == [0, 1, 0, 1]


# --- What is tried ----------------------------------------------------------------------------------------------------


def judge_of(texts: dict[str, list[str]], held_out: dict[str, list[str]] | None = None) -> Judge:
    """Return a judge whose points have one label."""
    train, other = (
        Part(csr_array(np.ones((len(next(iter(part.values()))), 1))), texts=part) for part in (texts, held_out or texts)
    )
    return Judge(train, other, np.ones(1), CPU)


def test_proposals_suit_the_texts():
    short = judge_of({"title": ["a b", "c"], "body": ["+ - * /", "x ≤ y"]})
    tried = list(proposals(short, {}))
    assert {"symbols": True} in tried
    assert {"characters": 5} in tried
    assert {"field_weights": {"title": 1.0, "body": 1.0}} in tried
    long = judge_of({"text": ["word " * 100]})
    assert all("characters" not in changes and "symbols" not in changes for changes in proposals(long, {}))


def test_the_other_kind_of_count_is_tried():
    assert TextSettings().sublinear
    changes = [change for change in proposals(judge_of({"text": ["a b"] * 2}), {}) if "sublinear" in change]
    assert changes == [{"sublinear": False}]


@pytest.mark.parametrize("known", [98, 99, 100])
def test_words_that_occur_once_are_tried_if_points_have_no_known_word(known):
    """One point of 100 is not yet more than 1 %."""
    judge = judge_of({"text": ["red apple"] * 3}, {"text": ["red"] * known + ["unheard"] * (100 - known)})
    assert judge.unknown({}) == pytest.approx(1 - known / 100)
    assert ({"min_count": 1} in proposals(judge, {})) == (known == 98)


def test_a_named_least_count_is_what_makes_words_unknown():
    judge = judge_of({"text": ["red apple", "red pear"]}, {"text": ["apple"]})
    assert judge.unknown({}) == 1
    assert judge.unknown({"min_count": 1}) == 0
    assert all("min_count" not in changes for changes in proposals(judge, {"min_count": 1}))


@pytest.mark.parametrize(
    ("fields", "tried"),
    [
        (["text"], []),
        (["title", "body"], [{"title": 1.0, "body": 1.0}]),  # as they are, titles count three times
        (["name", "body"], [{"name": 3.0}, {"body": 3.0}]),
        (["a", "b", "c", "d"], [{"a": 3.0}, {"b": 3.0}, {"c": 3.0}]),
    ],
)
def test_weights_of_fields_are_tried_where_there_are_several(fields, tried):
    judge = judge_of({name: ["red apple", "red pear"] for name in fields})
    weights = [changes["field_weights"] for changes in proposals(judge, {}) if "field_weights" in changes]
    assert weights == tried
    assert all("field_weights" not in changes for changes in proposals(judge, {"field_weights": {fields[0]: 2.0}}))


@pytest.mark.parametrize("telling", ["first", "second"])
def test_the_field_that_tells_the_label_is_weighed_up(telling):
    """A word in one field is the label, and the same words in the other are noise."""
    numbers = np.random.default_rng(0)
    words = numbers.integers(0, 6, (700, 2))
    Y = csr_array((np.ones(700), (np.arange(700), words[:, int(telling == "second")])), shape=(700, 6))
    texts = {name: [WORDS[word] for word in words[:, column]] for column, name in enumerate(("first", "second"))}
    choice = chosen_text(Dataset(Part(Y, texts=texts)), None, Run(), CPU)
    assert choice.text["field_weights"] == {telling: 3.0}
    assert len([trial for trial in choice.trials if trial.kept and "field_weights" in trial.changes]) == 1


def test_three_words_are_only_tried_where_pairs_gain():
    gain = chosen_text(pairs(), None, Run(), CPU)
    nothing = chosen_text(pairs(random=True), None, Run(), CPU)
    assert [trial.changes["ngrams"] for trial in gain.trials if "ngrams" in trial.changes] == [2, 3]
    assert [trial.changes["ngrams"] for trial in nothing.trials if "ngrams" in trial.changes] == [2]


# --- What cannot be judged --------------------------------------------------------------------------------------------


def test_texts_without_a_frequent_word_can_still_gain():
    """No word occurs twice, but their beginnings do; without a choice there would be no features at all."""
    numbers = np.random.default_rng(0)
    labels = numbers.integers(0, 3, 600)
    texts = [f"{('red', 'blue', 'green')[label]}{number:05}" for number, label in enumerate(labels)]
    Y = csr_array((np.ones(600), (np.arange(600), labels)), shape=(600, 3))
    choice = chosen_text(Dataset(Part(Y, texts={"text": texts})), None, Run(), CPU)
    assert choice.text["characters"] == 5


def test_a_weight_of_a_field_that_only_labels_have_is_no_error():
    data = pairs()
    labels = Dataset(data.train, label_texts={"about": WORDS})
    assert chosen_text(labels, {"field_weights": {"about": 2.0}}, Run(), CPU).text["field_weights"] == {"about": 2.0}
    with pytest.raises(ConfigError, match="field_weights names 'abuot'; the text fields are text, about"):
        chosen_text(labels, {"field_weights": {"abuot": 2.0}}, Run(), CPU)


@pytest.mark.parametrize("options", [{"model": "linear"}, {"preset": "paper"}])
def test_only_auto_chooses_and_papers_have_their_own_features(options):
    tagger = Tagger(**{"device": "cpu", **options}, text={"ngrams": 1})
    assert tagger.text_choice(pairs(), Run(), CPU) == TextChoice({"ngrams": 1})
    assert tagger.text_choice_seconds(pairs()) == 0


# --- Words and figures ------------------------------------------------------------------------------------------------


def test_the_quality_of_points_adds_up_to_the_metrics():
    numbers = np.random.default_rng(1)
    Y = csr_array((numbers.random((40, 12)) < 0.3).astype(np.float32))
    Y = csr_array(Y[np.diff(Y.indptr) > 0])
    ids = np.array([numbers.permutation(12)[:5] for _ in range(Y.shape[0])])
    ranking = Ranking(ids, np.tile(np.arange(5, 0, -1), (len(ids), 1)).astype(np.float32))
    inverse = metrics.inverse_propensities(np.bincount(Y.indices, minlength=12), Y.shape[0])
    wanted = metrics.measure(ranking, Y, inverse, ks=[5])
    assert 100 * quality_of_points(ranking, Y, inverse).mean() == pytest.approx(wanted["nDCG@5"] + wanted["PSnDCG@5"])


def test_a_trial_in_words():
    assert str(Trial({"field_weights": {"title": 1.0}}, 1.25, True)) == "field_weights=title:1 (+1.2)"
