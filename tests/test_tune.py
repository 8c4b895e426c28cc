"""The search for settings: what is searched, on which points, what it keeps, and how it ends."""

from __future__ import annotations

import csv
import dataclasses
import json
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages.journal._file import get_lock_file

import zipfel
from zipfel import Tagger, TextSettings, config
from zipfel.config import Settings, Span, setting
from zipfel.data.dataset import Dataset, Part
from zipfel.data.splits import hold_out
from zipfel.data.synthetic import Synthetic, make
from zipfel.errors import ConfigError, DataError, MissingDependencyError
from zipfel.models.base import model_class, model_names, settings_of
from zipfel.tune import judging, seconds_of, tune
from zipfel.tune import search as searching
from zipfel.tune.folder import HoldsCtrlC
from zipfel.tune.judging import Judge, sizes_of
from zipfel.tune.results import Trial, best_of
from zipfel.tune.space import space_of
from zipfel.tune.watching import Watcher

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"dimension": 16, "epochs": 1, "min_steps": 10, "layers": 1}


@pytest.fixture(scope="module")
def planted() -> Dataset:
    return make(Synthetic(points=240, labels=10, texts=True, noise=0.2, seed=1))


def quick(**parameters) -> Tagger:
    return Tagger("glas", settings=QUICK, device="cpu", **parameters)


def tried(tuned) -> list[tuple[object, ...]]:
    return [(t.number, t.status, dict(t.values), t.points, t.figures) for t in tuned.trials]


# --- What is searched -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["90s", "1.5m", "1m 30s", "1m30s"])
def test_budgets_are_read(text):
    assert seconds_of(text) == 90


@pytest.mark.parametrize("budget", ["", "30", "m", "30 minutes", "-3m", "0s", "3d", 0, -1, True, float("nan"), None])
def test_unreadable_budgets_are_named(budget):
    with pytest.raises(ConfigError, match="must be a time such as 90s, 30m or 2h; found") as error:
        seconds_of(budget)
    assert repr(budget) in str(error.value)


def test_a_declared_search_must_make_sense():
    with pytest.raises(TypeError, match="from low to high"):
        setting(1.0, "rate", search=Span(2, 1))
    with pytest.raises(TypeError, match="above 0 if log"):
        setting(1.0, "rate", search=Span(0, 1, log=True))
    with pytest.raises(ConfigError, match="search must be at least 1; found 0"):
        setting(1, "size", at_least=1, search=[0, 1])
    with pytest.raises(ConfigError, match="search must be below 1; found 1"):
        setting(0.5, "share", below=1, search=Span(0, 1))
    with pytest.raises(TypeError, match="needs a list"):
        setting(None, "size", search=Span(1, 2))


@pytest.mark.parametrize("model", model_names())
def test_every_model_declares_values_that_its_settings_take(model):
    start = model_class(model).presets["default"]
    searched = {field.name: field.metadata["search"] for field in dataclasses.fields(start)}
    searched = {name: search for name, search in searched.items() if search is not None}
    assert searched, "declare with search= what zipfel tune tries"
    for name, search in searched.items():
        for value in search[:2] if isinstance(search, Span) else search:
            assert dataclasses.asdict(settings_of(model, "default", {name: value}))[name] == value
        default = dataclasses.asdict(start)[name]
        assert search[0] <= default <= search[1] if isinstance(search, Span) else default in search, name
    assert not {"model", "preset", "text"} & set(config.field_types(type(start)))  # of which --config files have one


def test_text_settings_are_searched_where_points_are_texts(planted):
    start = settings_of("glas")
    names = {p.name for p in space_of(start, {}, {}, planted).parameters}
    assert {"text.ngrams", "text.min_count", "text.sublinear", "text.symbols", "dimension"} <= names
    assert not any("field_weights" in name for name in names)  # one field: only ratios matter
    named = {p.name for p in space_of(start, {"dimension": 8}, {"ngrams": 1}, planted).parameters}
    assert named == names - {"dimension", "text.ngrams"}
    features = make(Synthetic(points=50, labels=5, seed=1))
    assert not any(p.name.startswith("text.") for p in space_of(start, {}, {}, features).parameters)


def test_weights_of_fields_start_at_their_defaults(planted):
    def with_fields(**texts: str) -> Dataset:
        part = Part(planted.train.Y, texts={name: [text] * len(planted.train) for name, text in texts.items()})
        return dataclasses.replace(planted, train=part, test=None, validation=None)

    fields = with_fields(title="a long title, longer than all others", body="the body", note="a note")
    space = space_of(settings_of("glas"), {}, {}, fields)
    weights = {p.name: p.start for p in space.parameters if "field_weights" in p.name}
    assert weights == {"text.field_weights.title": 3.0, "text.field_weights.note": 1.0}
    assert space.divided(space.start)[1]["field_weights"] == {"title": 3.0, "note": 1.0}
    named = space_of(settings_of("glas"), {}, {"field_weights": {"title": 2}}, fields)
    assert not any("field_weights" in p.name for p in named.parameters)


def test_the_start_is_always_among_what_is_searched():
    @dataclasses.dataclass(frozen=True)
    class Odd(Settings):
        rate: float = setting(5.0, "rate", search=Span(0.1, 1))
        size: int | None = setting(7, "size", search=[1, 2])
        width: int | None = setting(6, "width", search=Span(1, 5))
        fixed: int = setting(7, "not searched")

    features = make(Synthetic(points=50, labels=5, seed=1))
    rate, size, width = space_of(Odd(), {}, {}, features).parameters
    assert (rate.values, size.values) == (Span(0.1, 5), (1, 2, 7))
    assert width.whole
    assert not rate.whole
    trial = optuna.trial.FixedTrial({"rate": 0.123456, "size": 2, "width": 3})
    assert [p.suggested(trial) for p in (rate, size, width)] == [0.123, 2, 3]
    with pytest.raises(ConfigError, match="nothing to search"):
        space_of(Odd(), {"rate": 1, "size": 1, "width": 1}, {}, features)


# --- The points -------------------------------------------------------------------------------------------------------


def test_held_out_points_are_those_of_train_and_the_same_each_time(planted):
    judge, again, other = Judge.of(planted, 0), Judge.of(planted, 0), Judge.of(planted, 1)
    mine = {text for column in planted.train.texts.values() for text in column}
    held, learned = (set(part.texts["text"]) for part in (judge.held_out, judge.dataset.train))
    assert held | learned <= mine
    assert not held & learned
    assert held == set(again.held_out.texts["text"]) != set(other.held_out.texts["text"])
    assert judge.dataset.test is None
    assert judge.dataset.validation is None
    assert len(judge.held_out) == pytest.approx(0.2 * len(planted.train), abs=2)


def test_a_validation_part_judges(planted):
    dataset = hold_out(planted, 0.3, seed=2, into="validation")
    judge = Judge.of(dataset, 0)
    assert judge.held_out.texts == dataset.validation.texts
    assert judge.dataset.train is dataset.train
    assert judge.dataset.validation is None  # nothing that is learned may look at it


def test_a_smaller_size_is_a_part_of_the_larger(planted, monkeypatch):
    monkeypatch.setattr(judging, "SMALLEST", 10)
    judge = Judge.of(planted, 0)
    assert judge.sizes == sizes_of(len(judge.dataset.train))
    assert len(judge.sizes) == 3
    small, middle, whole = (judge.smaller(size).train.texts["text"] for size in judge.sizes)
    assert [len(small), len(middle), len(whole)] == list(judge.sizes)
    assert set(small) <= set(middle) <= set(whole)


def test_the_objective_is_the_sum_of_both_metrics(planted):
    judge = Judge.of(planted, 0)
    tagger = quick().fit_dataset(judge.dataset)
    figures = judge.figures(tagger)
    counts = planted.label_counts
    weights = zipfel.metrics.inverse_propensities(counts, len(planted.train), *planted.propensity)
    ranking = tagger.rank(judge.held_out.texts, 5)
    expected = zipfel.metrics.measure(ranking, judge.held_out.Y, weights, ks=[5])
    assert figures == {name: expected[name] for name in ("nDCG@5", "PSnDCG@5")}
    assert Trial(0, "complete", {}, 9, figures).objective == sum(figures.values())


def test_too_few_points_are_one_clear_error(planted):
    few = dataclasses.replace(planted, train=planted.train.take(np.arange(20)))
    with pytest.raises(DataError, match="at least 10 held-out points with labels; a share of train has 4"):
        tune(quick(), few, budget=5)
    with pytest.raises(DataError, match="holding out needs 2 distinct points; found 1 points"):
        tune(quick(), dataclasses.replace(planted, train=planted.train.take(np.arange(1))), budget=5)
    small = dataclasses.replace(planted, validation=planted.train.take(np.arange(3)))
    with pytest.raises(DataError, match="the validation part has 3"):
        tune(quick(), small, budget=5)


# --- The search -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(planted, tmp_path_factory):
    """A search of six trials with three sizes, in a folder."""
    folder = tmp_path_factory.mktemp("tune") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "SMALLEST", 10)
        patch.setattr(searching, "FEWEST", 4)
        return tune(quick(), planted, budget="5m", trials=6, folder=folder), folder


def test_the_first_trial_is_the_default_and_the_best_is_no_worse(found):
    tuned, _ = found
    assert tuned.default.status == "complete"
    assert tuned.default.values["learning_rate"] == settings_of("glas").learning_rate
    assert tuned.default.values["text.ngrams"] == TextSettings().ngrams
    assert tuned.best.points == tuned.default.points
    assert tuned.best.objective >= tuned.default.objective
    assert len(tuned.trials) == 6
    assert len({str(t.values) for t in tuned.trials}) > 3


def test_early_trials_keep_about_half_of_the_settings(found):
    tuned, _ = found
    same = [[t.values[name] == value for name, value in tuned.default.values.items()] for t in tuned.trials[1:]]
    assert 0.3 < np.mean(same) < 0.9  # choices may be drawn as they were
    assert all(map(any, same))


def test_the_same_settings_are_trained_once(planted, monkeypatch):
    monkeypatch.setattr(searching, "KEPT", 1)
    fits, fit = [], Tagger.fit_dataset
    monkeypatch.setattr(Tagger, "fit_dataset", lambda self, *rest: fits.append(1) or fit(self, *rest))
    tuned = tune(quick(), planted, budget="5m", trials=3)
    assert len(fits) == 1
    assert [t.objective for t in tuned.trials] == [tuned.default.objective] * 3
    assert tuned.importance == {}


def test_pruned_trials_have_seen_fewer_points(found):
    tuned, _ = found
    most = tuned.default.points
    assert {t.status for t in tuned.trials} == {"complete", "pruned"}
    assert all((t.points < most) == (t.status == "pruned") for t in tuned.trials)


def test_the_best_tagger_has_what_was_found_and_what_was_named(found, planted):
    tuned, _ = found
    assert not tuned.tagger.__sklearn_is_fitted__()
    assert QUICK.items() <= tuned.tagger.settings.items()
    for name, value in tuned.best.values.items():
        group = tuned.tagger.text if name.startswith("text.") else tuned.tagger.settings
        assert group[name.removeprefix("text.")] == value
    assert tuned.tagger.calibration == "auto"
    judge = Judge.of(planted, 0)  # what was measured is what the tagger does
    assert sum(judge.figures(tuned.tagger.fit_dataset(judge.dataset)).values()) == pytest.approx(tuned.best.objective)


def test_auto_searches_the_main_model_of_its_blend(planted, monkeypatch, tmp_path):
    """The best settings go back into the blend: a tuned model should not be worse than one that nobody tuned."""
    monkeypatch.setattr(judging, "SMALLEST", 10)
    fitted, fit = [], Tagger.fit_dataset
    monkeypatch.setattr(Tagger, "fit_dataset", lambda self, *rest: fitted.append(self.model) or fit(self, *rest))
    settings = {"dimension": 16, "epochs": 1, "min_steps": 10, "learners": 1, "tail": 0.5}
    given = Tagger(settings=settings, text={"ngrams": 1}, device="cpu")
    tuned = tune(given, planted, budget="5m", trials=2, folder=tmp_path / "study")
    assert set(fitted) == {"decaf"}
    assert tuned.tagger.model == "blend"
    made = tuned.tagger.choice(planted)[1]
    assert (made.main, made.tail, made.main_settings["dimension"]) == ("decaf", 0.5, "16")
    main, _ = made.parts()
    for name, value in tuned.best.values.items():
        if name.startswith("text."):
            assert tuned.tagger.text[name.removeprefix("text.")] == value
        else:
            assert getattr(main, name) == value
    assert tuned.tagger.text["ngrams"] == 1
    values = tomllib.loads((tmp_path / "study" / "best.toml").read_text())
    assert values.pop("text") == tuned.tagger.text
    assert (values.pop("model"), values.pop("preset")) == ("blend", "default")
    assert settings_of("blend", "default", values) == made


def test_auto_without_a_blend_searches_its_model(planted, monkeypatch):
    monkeypatch.setattr(judging, "SMALLEST", 10)
    weighted = dataclasses.replace(planted.train, weights=np.ones(len(planted.train)))
    given = Tagger(settings={"dimension": 16, "epochs": 1, "min_steps": 10, "learners": 1}, device="cpu")
    tuned = tune(given, dataclasses.replace(planted, train=weighted), budget="5m", trials=1)
    assert tuned.tagger.model == "decaf"
    assert tuned.tagger.settings["dimension"] == 16


def test_files_tell_what_was_tried(found):
    tuned, folder = found
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == list(range(6))
    assert float(rows[0]["nDCG@5 + PSnDCG@5"]) == pytest.approx(tuned.default.objective, abs=1e-3)
    assert rows[0]["text.ngrams"] == "1"
    assert rows[0]["nonlinear"] == "none"
    written = json.loads((folder / "trials.json").read_text())
    assert written["best"] == tuned.best.number
    assert written["trials"][3]["values"] == tuned.trials[3].values
    assert written["importance"] == tuned.importance
    assert sum(tuned.importance.values()) == pytest.approx(1)
    plot = (folder / "tune.svg").read_text()
    assert "importance" in plot
    assert "best so far" in plot
    assert "text.ngrams" in plot


def test_the_toml_file_holds_the_best_settings(found):
    tuned, folder = found
    values = tomllib.loads((folder / "best.toml").read_text())
    text = values.pop("text")
    assert (values.pop("model"), values.pop("preset")) == ("glas", "default")
    assert settings_of("glas", "default", values) == settings_of("glas", "default", tuned.tagger.settings)
    assert text == tuned.tagger.text


def test_the_same_seed_tries_the_same(found, planted, monkeypatch):
    monkeypatch.setattr(judging, "SMALLEST", 10)
    tuned, _ = found
    assert tried(tune(quick(), planted, budget="5m", trials=3)) == tried(tuned)[:3]
    other = tune(quick(seed=1), planted, budget="5m", trials=2)
    assert other.trials[1].values != tuned.trials[1].values


def test_a_resumed_search_tries_what_an_uninterrupted_one_does(found, planted, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "SMALLEST", 10)
    tuned, _ = found
    measure, calls = searching.Judge.figures, []

    def stops(self, tagger):
        calls.append(1)
        if len(calls) == 3:  # the first trial has been judged with two of three sizes
            raise KeyboardInterrupt
        return measure(self, tagger)

    monkeypatch.setattr(searching.Judge, "figures", stops)
    first = tune(quick(), planted, budget="5m", trials=6, folder=tmp_path)
    assert first.interrupted
    assert [(t.status, t.points) for t in first.trials] == [("stopped", sizes_of(tuned.default.points)[1])]
    assert (tmp_path / "best.toml").exists()
    with (tmp_path / "study.jsonl").open("ab") as journal:
        journal.write(b'{"op_code":')  # a process that was killed while it wrote
    again = tune(quick(), planted, budget="5m", trials=3, folder=tmp_path)
    assert not again.interrupted
    assert tried(again) == tried(tuned)[:3]
    assert tried(tune(quick(), planted, budget="5m", trials=6, folder=tmp_path)) == tried(tuned)
    before = len(calls)
    assert tried(tune(quick(), planted, budget="5m", trials=6, folder=tmp_path)) == tried(tuned)
    assert len(calls) == before  # nothing was left to do
    assert len(tune(quick(), planted, budget="5m", trials=1, folder=tmp_path, fresh=True).trials) == 1


def test_ctrl_c_in_training_ends_the_search(planted, tmp_path, monkeypatch):
    tuned = tune(quick(), planted, budget="5m", trials=1, folder=tmp_path)
    losses = []

    def loss(*_):
        losses.append(1)
        raise KeyboardInterrupt  # which the trainer turns into an early end

    monkeypatch.setattr(model_class("glas"), "loss", loss)
    stopped = tune(quick(), planted, budget="5m", trials=3, folder=tmp_path)
    assert len(losses) == 1
    assert stopped.interrupted
    assert stopped.best == tuned.best
    assert [t.status for t in stopped.trials] == ["complete", "stopped"]


def test_ctrl_c_before_the_first_result_leaves_nothing(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(searching.Judge, "figures", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tune(quick(), planted, budget="5m", trials=3, folder=tmp_path / "new" / "study")
    assert list(tmp_path.iterdir()) == []


def test_a_trial_ends_with_the_budget(planted, tmp_path):
    slow = Tagger("glas", settings={"dimension": 16, "epochs": 100_000, "patience": 100_000}, device="cpu")
    start = time.monotonic()
    with pytest.raises(ConfigError, match="budget of 1 s ended before the first trial was judged"):
        tune(slow, planted, budget="1s", folder=tmp_path / "study")
    assert time.monotonic() - start < 20
    assert list(tmp_path.iterdir()) == []


def test_a_failed_trial_does_not_end_the_search(planted, monkeypatch):
    measure, calls = searching.Judge.figures, []

    def fails(self, tagger):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of\nmemory")
        return measure(self, tagger)

    monkeypatch.setattr(searching.Judge, "figures", fails)
    tuned = tune(quick(), planted, budget="5m", trials=3)
    assert [t.status for t in tuned.trials] == ["complete", "failed", "complete"]
    assert tuned.trials[1].error == "RuntimeError: out of memory"
    assert "RuntimeError" in tuned.csv()


def test_settings_that_contradict_each_other_are_a_failed_trial(planted, monkeypatch):
    check = type(settings_of("glas")).check

    def refuses(self):
        check(self)
        if self.learning_rate != 0.002:
            raise ConfigError("this rate contradicts that width")

    monkeypatch.setattr(type(settings_of("glas")), "check", refuses)
    tuned = tune(quick(), planted, budget="5m", trials=4)
    failed = [t for t in tuned.trials if t.values["learning_rate"] != 0.002]
    assert {(t.status, t.error) for t in failed} == {("failed", "this rate contradicts that width")}
    assert tuned.best not in failed


def test_the_budget_counts_the_time_of_earlier_calls(planted, tmp_path):
    spent = tune(quick(), planted, budget="5m", trials=2, folder=tmp_path).seconds
    assert 0 < spent < 300
    assert len(tune(quick(), planted, budget=spent * 0.9, folder=tmp_path).trials) == 2
    assert len(tune(quick(), planted, budget=spent + 300, trials=3, folder=tmp_path).trials) == 3


def test_if_all_trials_fail_the_error_says_why(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(searching.Judge, "figures", lambda *_: (_ for _ in ()).throw(DataError("no luck")))
    with pytest.raises(DataError, match="all 5 trials failed; the last: no luck"):
        tune(quick(), planted, budget="5m", folder=tmp_path / "study")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="all 2 trials failed"):
        tune(quick(), planted, budget="5m", trials=2)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"tagger": Tagger("mnn", device="cpu")}, "model was 'glas' and is 'mnn'"),
        ({"tagger": quick(seed=1)}, "seed was 0 and is 1"),
        ({"tagger": quick(text={"ngrams": 2})}, "text.ngrams was None and is 2"),
        ({"data": make(Synthetic(points=240, labels=10, texts=True, seed=2))}, "data was"),
    ],
)
def test_the_folder_of_another_study_is_refused(found, planted, other, message):
    _, folder = found
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match=message) as error:
        tune(other.get("tagger", quick()), other.get("data", planted), budget=5, trials=1, folder=folder)
    assert "name another folder, or start over with --fresh" in str(error.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unreadable_study_is_one_clear_error(planted, tmp_path):
    tuned = tune(quick(), planted, budget="5m", trials=1, folder=tmp_path)
    lines = (tmp_path / "study.jsonl").read_text().splitlines(keepends=True)
    for broken in ("no JSON\n", "{}\n", "[]\n"):
        (tmp_path / "study.jsonl").write_text("".join([*lines[:3], broken, *lines[3:]]))
        with pytest.raises(DataError, match=r"study.jsonl: is unreadable \(.*\); start over with --fresh"):
            tune(quick(), planted, budget="5m", trials=1, folder=tmp_path)
    again = tune(quick(), planted, budget="5m", trials=1, folder=tmp_path, fresh=True)
    assert tried(again) == tried(tuned)


def test_lists_are_taken_as_fit_takes_them():
    texts = ["no paper in the printer", "paper jam", "no wifi in the office", "the wifi is slow"] * 20
    texts = [f"{text} {number}" for number, text in enumerate(texts)]
    tags = [["printer"], ["printer"], ["network"], ["network"]] * 20
    tuned = tune(quick(), texts, tags, budget="5m", trials=2)
    assert tuned.tagger.fit(texts, tags).predict(["paper jam"], k=1)[0][0].label == "printer"
    with pytest.raises(ConfigError, match="trials must be at least 1"):
        tune(quick(), texts, tags, trials=0)


def test_progress_names_trial_best_and_time_left(planted):
    seen, ended = [], []

    class Watch(Watcher):
        def update(self, standing):
            seen.append(standing)

        def ended(self, trial, best, seconds_left):
            ended.append((trial.number, best.number, seconds_left))

    tuned = tune(quick(), planted, budget="5m", trials=2, watcher=Watch())
    assert [number for number, _, _ in ended] == [0, 1]
    assert ended[-1][1] == tuned.best.number
    assert 300 > ended[0][2] > ended[1][2] > 0
    assert {standing.number for standing in seen} == {0, 1}
    assert seen[0].best is None
    assert seen[-1].best.number == 0
    assert 0 < seen[-1].seconds_left < 300


def test_the_best_is_chosen_among_those_with_the_most_points():
    trials = [
        Trial(0, "complete", {}, 900, {"nDCG@5": 1.0}),
        Trial(1, "pruned", {}, 100, {"nDCG@5": 9.0}),
        Trial(2, "complete", {}, 900, {"nDCG@5": 2.0}),
        Trial(3, "complete", {}, 900, {"nDCG@5": 2.0}),
        Trial(4, "failed", {}),
        Trial(5, "failed", {}, 900, {"nDCG@5": 3.0}),
    ]
    assert best_of(trials) == trials[2]
    assert best_of(trials[4:]) is None


# --- The command line -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_folder(planted, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "planted"
    zipfel.write(planted, folder, "lf")
    return folder


WORDS = ["--model", "glas", *(word for key, value in QUICK.items() for word in ("--set", f"{key}={value}"))]


def test_command_line_from_search_to_model(zipfel_command, data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["tune", data_folder, "--budget", "5m", "--trials", "2", "--device", "cpu", *WORDS, "--ngrams", "1"]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert "trial 0, complete: " in outcome.err
    assert " left" in outcome.err
    assert "nDCG@5  PSnDCG@5" in outcome.out
    assert "held-out points, not on test" in outcome.out
    assert "best: trial " in outcome.out
    best = tomllib.loads((tmp_path / "planted-tuned" / "best.toml").read_text())
    assert best["dimension"] == 16
    assert best["text"]["ngrams"] == 1
    assert "text.ngrams" not in (tmp_path / "planted-tuned" / "trials.csv").read_text()  # it was named
    again = zipfel_command(*words)
    assert again.code == 0
    assert "nothing was left to do" in again.err
    refused = zipfel_command(*words, "--set", "layers=2")
    assert refused.code == 2
    assert "layers was 1 and is 2" in refused.err
    config_words = ["--config", "planted-tuned/best.toml", "--device", "cpu"]
    trained = zipfel_command("train", data_folder, "--out", "model", *config_words)
    assert trained.code == 0, trained.err
    about = json.loads((tmp_path / "model" / "model" / "model.json").read_text())
    assert about["model"] == "glas"
    assert about["settings"]["learning_rate"] == best["learning_rate"]
    assert about["tagger"]["text"]["min_count"] == best["text"]["min_count"]
    other = zipfel_command("train", data_folder, "--out", "other", *config_words, "--model", "mnn")
    assert other.code == 2
    assert "has settings for model glas; found --model mnn" in other.err
    changed = ["--min-count", "4", "--set", "learning_rate=0.5"]
    overridden = zipfel_command("train", data_folder, "--out", "changed", *config_words, *changed)
    assert overridden.code == 0, overridden.err
    about = json.loads((tmp_path / "changed" / "model" / "model.json").read_text())
    assert about["tagger"]["text"]["min_count"] == 4
    assert about["settings"]["learning_rate"] == 0.5
    assert zipfel_command("plan", data_folder, *config_words).out.startswith("glas, preset default")


def test_a_budget_for_one_trial_only_is_told(zipfel_command, data_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "SMALLEST", 10)
    measure, calls = searching.Judge.figures, []

    def slow(self, tagger):
        calls.append(1)
        if len(calls) == 2:
            raise searching.BudgetSpent
        return measure(self, tagger)

    monkeypatch.setattr(searching.Judge, "figures", slow)
    outcome = zipfel_command("tune", data_folder, "--out", tmp_path / "study", "--device", "cpu", *WORDS)
    assert outcome.code == 0, outcome.err
    assert "1 stopped trials" in outcome.out
    assert outcome.err.splitlines()[-1].startswith("only one trial was judged: continue with a larger --budget")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "soon"], "the budget must be a time such as 90s, 30m or 2h; found 'soon'"),
        (["--model", "gals"], "unknown model 'gals'; did you mean 'glas'?"),
        (["--model", "glas", "--set", "dimensoin=3"], "unknown setting 'dimensoin'; did you mean 'dimension'?"),
        (["--ngrams", "0"], "ngrams must be at least 1; found 0"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(zipfel_command, data_folder, tmp_path, words, message):
    outcome = zipfel_command("tune", data_folder, "--out", tmp_path / "study", *words)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == f"error: {message}"
    assert list(tmp_path.iterdir()) == []


def test_a_config_file_of_the_wrong_kind_is_one_line(zipfel_command, data_folder, tmp_path):
    for content, message in [('text = "a"', "text must be a table of text settings; found 'a'"),
                             ("model = 3", "model must be a name; found 3"),
                             ("[text]\nngram = 2", "unknown setting 'ngram'; did you mean 'ngrams'?")]:  # fmt: skip
        (tmp_path / "bad.toml").write_text(content)
        outcome = zipfel_command("train", data_folder, "--out", tmp_path / "model", "--config", tmp_path / "bad.toml")
        assert outcome.code == 2
        assert message in outcome.err.splitlines()[-1]


def test_without_optuna_one_line_says_what_to_install(zipfel_command, data_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome = zipfel_command("tune", data_folder, "--out", tmp_path / "study")
    assert outcome.code == 2
    assert outcome.err == "error: a search for settings needs optuna: pip install 'zipfel[tune]'\n"
    with pytest.raises(MissingDependencyError):
        tune(quick(), [], [])


def test_ctrl_c_waits_until_a_line_of_the_journal_is_written():
    lock, written = HoldsCtrlC(), []

    def write() -> None:
        with get_lock_file(lock):
            signal.raise_signal(signal.SIGINT)
            written.append("line")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert written == ["line"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # at once again
    with get_lock_file(lock):  # what was pressed before does not count twice
        pass
    with get_lock_file(lock), ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: (lock.acquire(), lock.release())).result() == (True, None)


def test_ctrl_c_at_the_command_line_keeps_the_best(data_folder, tmp_path):
    command = [sys.executable, "-m", "zipfel", "tune", data_folder, "--out", tmp_path / "study", "--device", "cpu"]
    process = subprocess.Popen([*command, *WORDS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("trial 0, complete: ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped by Ctrl-C: the best settings so far are saved; run the same command to resume" in err
    assert "best: trial " in out
    assert tomllib.loads((tmp_path / "study" / "best.toml").read_text())["model"] == "glas"
