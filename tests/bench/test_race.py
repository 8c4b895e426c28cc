"""Contestants in their own processes: measurements, failures, and repeated runs."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from arena import Arena, environment, is_gone

import benchmarks
import zipfel
from zipfel.bench import launch, race, results
from zipfel.bench.features import featured, loaded, stage
from zipfel.bench.origin import Origin, origin_of
from zipfel.choice import Choice
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import ConfigError, DataError
from zipfel.evaluate import evaluate
from zipfel.text_choice import TextChoice
from zipfel.types import Ranking


@pytest.fixture
def arena(tmp_path, monkeypatch):
    """Return fake peers and a small data set."""
    made = Arena(tmp_path)
    monkeypatch.setenv("FAKE_DIARY", str(made.diary))
    return made


def test_a_result_has_measurements_and_metrics(arena):
    arena.race(arena.peer("plain", act="good", first=2), threads=3)
    (line,) = results.read_results(arena.out / results.NAME)
    assert arena.heard == [line]
    assert line["status"] == "ok"
    assert (line["train_seconds"], line["train_cpu_seconds"], line["alone_p99_ms"]) == (1.5, 2.5, 2.0)
    assert line["model_mb"] == 2.0
    assert line["train_peak_mb"] > 5
    assert line["settings"] == {"act": "good", "first": 2}
    assert {"commit", "machine", "date", "seed", "threads"} < set(line)
    dataset = featured(loaded(arena.data))
    ids = np.tile(np.arange(2, 7), (len(dataset.test), 1))
    expected = evaluate(Ranking(ids, -ids.astype(np.float32)), dataset).values
    assert {name: line[name] for name in race.FIGURES} == pytest.approx({n: expected[n] for n in race.FIGURES})
    assert sum(part["contribution"] for part in line["bins"]) == pytest.approx(line["P@5"])
    assert [page.split()[:3] for page in arena.pages] == [["train", "0", "3"], ["predict", "0", "3"]]
    assert not (arena.out / race.WORK).exists()


def test_all_contestants_of_a_seed_run_before_the_next_seed(arena):
    arena.race(arena.peer("b", act="good"), arena.peer("a", act="good"), seeds=2)
    assert arena.started == [("test", "b", 0), ("test", "a", 0), ("test", "b", 1), ("test", "a", 1)]


def test_a_time_out_is_a_result_and_leaves_no_process_behind(arena):
    arena.race(arena.peer("slow", act="sleep"), arena.peer("plain", act="good"), limit=1.5)
    slow, plain = arena.heard
    assert (slow["status"], plain["status"]) == ("time-out", "ok")
    assert 1.5 <= slow["process_seconds"] < 15
    assert "P@1" not in slow
    assert is_gone(int(Path(f"{arena.diary}.pid").read_text()))


def test_a_time_out_is_not_waited_for_again_with_every_seed(arena):
    slow = arena.peer("slow", act="sleep")
    arena.race(slow, seeds=3, limit=0.5)
    assert [line["status"] for line in arena.heard] == ["time-out"] * 3
    assert arena.heard[2]["why"] == "not run: seed 0 exceeded the time limit"
    assert len(arena.pages) == 1
    arena.race(slow, seeds=4, limit=0.6)  # which may be enough
    assert len(arena.pages) == 2


def test_a_crash_is_a_result_with_its_last_words(arena):
    arena.race(arena.peer("broken", act="crash"), arena.peer("plain", act="good"))
    broken, plain = arena.heard
    assert (broken["status"], plain["status"]) == ("crash", "ok")
    assert broken["why"].splitlines() == ["train: exit code 1", "first line", "boom"]


def test_a_ranking_that_makes_no_sense_is_a_crash(arena):
    arena.race(arena.peer("wild", act="good", first=9))  # labels 9 to 13 of 12
    assert arena.heard[0]["status"] == "crash"
    assert "ranking row 0" in arena.heard[0]["why"]


def test_what_cannot_be_started_is_a_crash(arena):
    python = arena.folder / "environments" / "odd" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("not a program")
    arena.race(arena.peer("odd", environment="odd", act="good"))
    assert arena.heard[0]["status"] == "crash"
    assert "denied" in arena.heard[0]["why"]


def test_a_peer_that_is_not_installed_is_reported_and_retried(arena):
    peer = arena.peer("absent", environment="nowhere", act="good")
    arena.race(peer)
    assert arena.heard[0]["status"] == "not installed"
    folder = arena.folder / "environments" / "nowhere"
    folder.mkdir()
    (folder / "failed.txt").write_text("no wheel for this machine\n")
    arena.race(peer)
    assert arena.heard[1]["why"] == "no wheel for this machine"
    (folder / "failed.txt").unlink()
    folder.rmdir()
    environment(arena.folder / "environments", "nowhere")
    arena.race(peer)
    assert [line["status"] for line in arena.heard] == ["not installed", "not installed", "ok"]
    assert [line["status"] for line in results.latest(arena.heard)] == ["ok"]


def test_a_finished_job_is_not_run_again_unless_its_settings_changed(arena):
    arena.race(arena.peer("plain", act="good"), arena.peer("broken", act="crash"))
    arena.race(arena.peer("plain", act="good"), arena.peer("broken", act="crash"), seeds=2)
    assert arena.started[2:] == [("test", "plain", 1), ("test", "broken", 1)]
    arena.race(arena.peer("plain", act="good", first=1))
    assert arena.started[4:] == [("test", "plain", 0)]
    assert arena.heard[-1]["settings"]["first"] == 1


def test_a_run_that_was_interrupted_goes_on(arena):
    def stop(line):
        raise KeyboardInterrupt

    contestants = [arena.peer("a", act="good"), arena.peer("b", act="good")]
    with pytest.raises(KeyboardInterrupt):
        arena.race(*contestants, heard=stop)
    with (arena.out / results.NAME).open("ab") as file:
        file.write(b'{"part": "te')  # as a machine that went down may leave it
    arena.race(*contestants)
    assert [line["contestant"] for line in results.read_results(arena.out / results.NAME)] == ["a", "b"]
    assert [line["contestant"] for line in arena.heard] == ["b"]


def test_control_c_ends_the_contestant_and_keeps_the_results(arena):
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from zipfel.bench.contestants import peers; from zipfel.bench.race import Race, Rules\n"
        "at = Path(sys.argv[1]); found = peers('plain,slow', at / 'benchmarks', at / 'environments')\n"
        "Race(found, at / 'out', Rules(seeds=1), lambda *_: None, lambda _: None).run([at / 'tiny'])"
    )
    arena.peer("plain", act="good")
    arena.peer("slow", act="sleep")
    home = str(Path(zipfel.__file__).parent.parent)
    running = subprocess.Popen([sys.executable, "-c", code, str(arena.folder), home], stderr=subprocess.PIPE)
    sleeper = Path(f"{arena.diary}.pid")
    patience = time.monotonic() + 30
    while not (sleeper.exists() and sleeper.read_text()) and time.monotonic() < patience:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in running.communicate(timeout=20)[1].decode()
    assert is_gone(int(sleeper.read_text()))
    assert [line["contestant"] for line in results.read_results(arena.out / results.NAME)] == ["plain"]


def test_the_best_on_validation_is_tested_and_only_that(arena):
    tuned = arena.peer("tuned", "[tune]\nfirst = [0, 3, 6]", act="good")
    arena.race(tuned, arena.peer("plain", act="good"), seeds=2)
    tried = {line["settings"]["first"]: line["P@1"] for line in arena.heard if line["part"] == "validation"}
    assert sorted(tried) == [0, 3, 6]
    best = max(tried, key=tried.__getitem__)
    tested = [line["settings"] for line in arena.heard if (line["part"], line["contestant"]) == ("test", "tuned")]
    assert tested == [{"act": "good", "first": best}] * 2
    assert len(arena.started) == 3 + 2 * 2


def test_who_needs_texts_of_labels_does_not_run_without(arena):
    dataset = dataclasses.replace(zipfel.read(arena.data), Z=None)
    arena.data = arena.folder / "bare"
    zipfel.write(dataset, arena.data, "npz")
    arena.race(arena.peer("texts", "label_texts = true", act="good"))
    assert (arena.heard[0]["status"], arena.pages) == ("not applicable", [])


def test_contestants_never_see_the_labels_that_they_are_judged_by(arena):
    arena.race(arena.peer("plain", act="good"))
    folder = arena.out / "features" / "synthetic-12"
    assert {path.name for path in (folder / "test").iterdir()} == {
        "X.trn.npz", "Y.trn.npz", "X.tst.npz", "Z.npz", "about.json",
    }  # fmt: skip
    about = orjson.loads((folder / "validation" / "about.json").read_bytes())
    assert 80 <= about["points"] < 96  # of 96, a tenth is held out


def test_counts_become_tf_idf_and_given_weights_stay(tmp_path):
    counts, weights = np.array([[2, 0], [1, 1], [0, 3]]), np.array([[0.5, 0], [0.25, 1], [0, 2]])
    for name, X in (("counts", counts), ("weights", weights)):
        part = Part(np.eye(3), X)
        zipfel.write(Dataset(part, Part(np.eye(3), X + 1), name=name), tmp_path / name, "npz")
    lengths = np.sqrt(featured(loaded(tmp_path / "counts")).train.X.power(2).sum(axis=1))
    assert lengths == pytest.approx([1, 1, 1])
    assert (featured(loaded(tmp_path / "weights")).train.X.toarray() == weights).all()


def test_k_is_deep_enough_for_filtered_pairs(tmp_path):
    filtered = np.zeros((3, 9))
    filtered[1, :2] = 1
    test = Part(np.eye(3, 9), np.eye(3) + 1, filtered=filtered)
    made = stage(Dataset(Part(np.eye(3, 9), np.eye(3)), test, name="x"), "test", tmp_path)
    assert made.k == 7
    other = Dataset(Part(np.eye(3, 9), np.eye(3)), dataclasses.replace(test, X=np.eye(3) + 2), name="x")
    with pytest.raises(ConfigError, match="another data set named 'x'"):
        stage(other, "test", tmp_path)


def test_pairs_of_train_that_are_no_evidence_reach_our_models(tmp_path, monkeypatch):
    """A document that is itself a label: without the pair, its own label counts as wrong."""
    filtered = np.zeros((3, 9))
    filtered[1, 4] = filtered[2, 0] = 1
    train = Part(np.eye(3, 9), np.eye(3), filtered=filtered)
    made = stage(Dataset(train, Part(np.eye(3, 9), np.eye(3)), name="x"), "test", tmp_path / "x")
    monkeypatch.syspath_prepend(str(Path(benchmarks.__file__).parent / "peers"))
    adapter, protocol = import_module("zipfel_adapter"), import_module("protocol")
    heard = []

    def tagger(*words, **__):
        choice = Choice("blend", words[1], "a rule", {"main": "glas"})
        return SimpleNamespace(fit_dataset=heard.append, save=lambda *_, **__: None, chosen_=choice)

    monkeypatch.setattr(adapter, "Tagger", tagger)
    task = protocol.Task(made.folder, tmp_path, 0, 1, {"model": "auto", "preset": "fast"})
    adapter.train(task)
    assert task.measured["chosen"] == {"model": "blend", "main": "glas", "preset": "fast", "why": "a rule"}
    assert (heard[0].train.filtered.toarray() == filtered).all()
    plain = stage(Dataset(Part(np.eye(3, 9), np.eye(3)), made.dataset.test, name="y"), "test", tmp_path / "y")
    adapter.train(protocol.Task(plain.folder, tmp_path, 0, 1, {"model": "glas", "preset": "default"}))
    assert heard[1].train.filtered is None


def test_memory_of_whoever_starts_a_contestant_is_not_the_contestants(tmp_path):
    held = np.ones(40_000_000)  # 320 MB
    usage = tmp_path / "used.json"
    command = [sys.executable, "-I", "-S", launch.__file__, "30", str(usage), str(tmp_path / "log")]
    race._waited_for([*command, sys.executable, "-S", "-c", "x = bytearray(30_000_000)"], dict(os.environ))
    used = orjson.loads(usage.read_bytes())
    assert held.sum() == 40_000_000
    assert 30 < used["peak_mb"] < 150
    assert (used["code"], used["timed_out"]) == (0, False)


def test_a_broken_line_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / results.NAME
    path.write_bytes(b'{"part": \n{}\n')
    with pytest.raises(DataError, match=r"results.jsonl:1: not a line of results"):
        results.read_results(path)


@pytest.mark.parametrize("rules", [{"seeds": 0}, {"limit": 0}, {"threads": 0}])
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(ConfigError, match=f"{next(iter(rules))} must be at least"):
        race.Rules(**rules)


# --- Features that train chooses, and `auto` --------------------------------------------------------------------------


@pytest.fixture
def choices(monkeypatch):
    """Return the data sets that were asked for a choice of text settings, which is pairs of words and takes a while."""
    asked = []

    def chosen(dataset, named, run, device):
        asked.append(dataset)
        assert (named, run.seed) == ({}, 0)
        time.sleep(0.2)
        return TextChoice({"ngrams": 2})

    monkeypatch.setattr("zipfel.text_choice.chosen_text", chosen)
    monkeypatch.setattr("zipfel.training.machine.set_threads", lambda count: asked.append(count))
    return asked


def shape(folder):
    return tuple(np.load(folder / "X.trn.npz")["shape"])


def test_features_are_chosen_on_train_once_and_are_the_same_for_all(arena, choices):
    arena.take_texts()
    contestants = [arena.peer("a", act="good"), arena.peer("b", act="good"), arena.auto(act="good")]
    arena.race(*contestants, seeds=2, threads=3, features="chosen")
    assert choices[0] == 3
    (dataset,) = choices[1:]  # once for all contestants and seeds
    assert dataset.test is None
    assert dataset.validation is None
    folder = arena.out / "features" / "synthetic-12" / "chosen"
    abouts = [orjson.loads((folder / part / "about.json").read_bytes()) for part in ("validation", "test")]
    for about in (*abouts, *arena.heard):
        assert (about["features_from"], about["text"]) == ("chosen", {"ngrams": 2})
        assert 0.2 <= about["text_choice_seconds"] < 5
    assert len({about["text_choice_seconds"] for about in (*abouts, *arena.heard)}) == 1
    raw = loaded(arena.data)
    assert shape(folder / "test") == featured(raw, Origin("chosen", {"ngrams": 2})).train.X.shape
    assert shape(folder / "test")[1] > featured(raw).train.X.shape[1]
    arena.race(*contestants, seeds=2, threads=3, features="chosen")
    assert len(choices) == 2  # read from the folder
    assert len(arena.heard) == 6  # and nothing is run again


def test_plain_and_chosen_features_have_lines_and_folders_of_their_own(arena, choices):
    arena.take_texts()
    peer = arena.peer("plain", act="good")
    arena.race(peer)
    assert arena.heard[0]["features_from"] == "plain"
    assert "text" not in arena.heard[0]
    assert choices == []
    arena.race(peer, features="chosen")
    arena.race(peer)
    arena.race(peer, features="chosen")
    lines = results.read_results(arena.out / results.NAME)
    assert [line["features_from"] for line in lines] == ["plain", "chosen"]
    assert lines[1]["features"] > lines[0]["features"]
    assert len(results.latest(lines)) == 2
    folder = arena.out / "features" / "synthetic-12"
    assert shape(folder / "chosen" / "test")[1] > shape(folder / "test")[1]


def test_results_from_before_there_was_a_choice_are_resumed(arena, choices):
    peer = arena.peer("plain", act="good")
    arena.race(peer)
    path, about = arena.out / results.NAME, arena.out / "features" / "synthetic-12" / "test" / "about.json"
    old = [{name: value for name, value in line.items() if name != "features_from"} for line in arena.heard]
    path.write_bytes(orjson.dumps(old[0]) + b"\n")
    kept = orjson.loads(about.read_bytes())
    assert kept.pop("features_from") == "plain"
    about.write_bytes(orjson.dumps(kept))
    arena.race(peer)
    assert results.read_results(path) == old
    arena.race(peer, features="chosen")  # points are no texts, so there is nothing to choose
    assert results.read_results(path) == old
    assert choices == []


def test_the_time_of_the_choice_is_training_time_of_auto_alone(arena, choices):
    arena.take_texts()
    contestants = [arena.auto(act="good", main="decaf"), arena.auto("auto-other", act="good", main="glas"),
                   arena.peer("plain", act="good")]  # fmt: skip
    arena.race(*contestants, features="chosen")
    auto, other, peer = arena.heard
    assert auto["train_seconds"] == pytest.approx(1.5 + auto["text_choice_seconds"])
    assert auto["train_cpu_seconds"] == pytest.approx(2.5 + auto["text_choice_cpu_seconds"])
    assert (peer["train_seconds"], peer["train_cpu_seconds"]) == (1.5, 2.5)
    assert "note" not in auto
    assert other["note"] == "on these texts `zipfel train` takes decaf, not glas"
    arena.race(contestants[0], contestants[2])
    assert [line["train_seconds"] for line in arena.heard[3:]] == [1.5, 1.5]  # plain features cost no choice


def test_auto_is_not_validated_and_others_are_tuned_on_the_same_features(arena, choices):
    arena.take_texts()
    tuned = arena.peer("tuned", "[tune]\nfirst = [0, 3]", act="good")
    arena.race(tuned, arena.auto(act="good"), features="chosen")
    assert arena.started == [("validation", "tuned", 0)] * 2 + [("test", "tuned", 0), ("test", "auto", 0)]
    path = arena.out / results.NAME
    tested = next(line for line in arena.heard if line["part"] == "test")["settings"]["first"]
    others = [{**line, "features_from": "plain", "P@1": 100.0 * (line["settings"]["first"] != tested)}
              for line in arena.heard if line["part"] == "validation"]  # fmt: skip
    for line in others:
        line.pop("text")
        results.append(path, line)
    arena.race(tuned, seeds=2, features="chosen")  # validation on plain features prefers the other value
    assert arena.heard[-1]["settings"]["first"] == tested
    arena.race(tuned)
    assert arena.heard[-1]["settings"]["first"] != tested


def test_a_choice_for_other_data_is_refused(arena, choices, tmp_path):
    arena.take_texts()
    dataset = loaded(arena.data)
    first = origin_of(dataset, "chosen", tmp_path / "kept", 1)
    assert origin_of(dataset, "chosen", tmp_path / "kept", 1) == first
    other = dataclasses.replace(dataset, train=dataset.train.take(np.arange(50)))
    with pytest.raises(ConfigError, match=r"text\.json is the choice for another data set"):
        origin_of(other, "chosen", tmp_path / "kept", 1)
    assert origin_of(dataset, "plain", tmp_path / "kept", 1) == Origin()


def test_names_of_labels_are_read_as_zipfel_train_reads_them():
    texts = ["paper jam in tray", "paper jam again", "screen is dark", "dark screen here"]
    part = Part(np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), texts={"text": texts})
    dataset = Dataset(part, part, label_names=["paper jam", "dark screen"], name="x")
    assert featured(dataset).Z is None  # plain features are as they were
    made = featured(dataset, Origin("chosen", {"ngrams": 2}))
    assert np.diff(made.Z.indptr).tolist() == [3, 3]  # two words and their pair
    codes = dataclasses.replace(dataset, label_names=["R07", "R08"])
    assert featured(codes, Origin("chosen")).Z is None
