"""A model of another package works with every command: `examples/own_model`, installed as its users would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import zipfel
from zipfel.bench.results import read_results
from zipfel.errors import ConfigError
from zipfel.models.base import model_class, model_names

REPOSITORY = Path(zipfel.__file__).parent.parent
SETTINGS = ["--set", "dimension=32", "--set", "epochs=4", "--set", "batch_size=32", "--set", "learning_rate=0.02"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder of its own, offline and without its dependencies."""
    source, target = tmp_path_factory.mktemp("source") / "own_model", tmp_path_factory.mktemp("installed")
    subprocess.run(
        ["cp", "-r", REPOSITORY / "examples" / "own_model", source], check=True
    )  # a build writes into its folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", target, source], check=True)
    return target


@pytest.fixture(autouse=True)
def importable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the package importable here and in subprocesses, during a test."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    sys.modules.pop("zipfel_wordaverage", None)


@pytest.fixture(scope="module")
def trained(installed: Path, planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was trained at the command line, in its own process."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    words = ["train", planted, "--model", "wordaverage", "--out", folder, *SETTINGS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(REPOSITORY)])}
    subprocess.run([sys.executable, "-m", "zipfel", *map(str, words)], check=True, env=environment)
    return folder


def test_it_is_listed_with_its_settings(zipfel_command):
    assert model_names()[-1] == "wordaverage"
    listed = zipfel_command("models").out
    assert "wordaverage: Settings of word averages." in listed
    assert "dimension (default 256, fast 64): width of the vectors of words and labels" in " ".join(listed.split())


def test_train_and_evaluate(zipfel_command, trained, planted, tmp_path):
    outcome = zipfel_command("evaluate", trained, planted, "--json", tmp_path / "figures.json")
    assert outcome.code == 0, outcome.err
    assert json.loads((tmp_path / "figures.json").read_text())["P@1"] > 80


def test_predict_and_explain(zipfel_command, trained, planted):
    text = next(iter(zipfel.read(planted).train.texts.values()))[1]
    tags = json.loads(zipfel_command("predict", trained, text, "--json").out)["tags"]
    assert len(tags) == 5
    reasons = json.loads(zipfel_command("explain", trained, text, "--json").out)
    assert reasons["label"] == tags[0]["label"]
    assert sum(reason["weight"] for reason in reasons["reasons"]) > 0


def test_tune_searches_what_it_declares(zipfel_command, planted, tmp_path):
    words = ["--model", "wordaverage", "--trials", "2", "--set", "epochs=1", "--set", "dimension=16"]
    outcome = zipfel_command("tune", planted, "--out", tmp_path / "study", *words)
    assert outcome.code == 0, outcome.err
    table = (tmp_path / "study" / "trials.csv").read_text().splitlines()
    assert ",batch_size,learning_rate,text.ngrams," in table[0]
    assert len(table) == 3


def test_plan_and_report(zipfel_command, trained, planted, tmp_path):
    plan = zipfel_command("plan", planted, "--model", "wordaverage", *SETTINGS, "--json", tmp_path / "plan.json")
    assert plan.code == 0, plan.err
    figures = json.loads((tmp_path / "plan.json").read_text())
    assert figures["training_seconds"] > 0
    size = sum(path.stat().st_size for path in (trained / "model").rglob("*") if path.is_file())
    assert figures["disk_bytes"] == pytest.approx(size, rel=0.1)
    assert zipfel_command("report", trained, planted, "--out", tmp_path / "report.html").code == 0
    assert "wordaverage" in (tmp_path / "report.html").read_text()


def test_serve(trained):
    command = [sys.executable, "-m", "zipfel", "serve", str(trained), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{REPOSITORY}"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as run:
        try:
            assert run.stderr is not None
            events = (json.loads(line) for line in run.stderr)
            address = f"http://127.0.0.1:{next(event['port'] for event in events if event['event'] == 'serving')}"
            body = json.dumps({"texts": ["w1 w2"], "k": 2}).encode()
            request = urllib.request.Request(f"{address}/tag", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as response:
                assert len(json.load(response)["tags"][0]) == 2
            with urllib.request.urlopen(f"{address}/models", timeout=30) as response:
                assert json.load(response)["models"][0]["kind"] == "wordaverage"
        finally:
            run.terminate()


def test_bench(zipfel_command, planted, tmp_path):
    words = ["bench", planted, "--models", "wordaverage:fast", "--peers", "none", "--seeds", 1, "--threads", 1]
    outcome = zipfel_command(*words, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    (line,) = (line for line in read_results(tmp_path / "out" / "results.jsonl") if line["part"] == "test")
    assert line["status"] == "ok", line
    assert line["P@1"] > 80


def test_it_passes_the_contract(installed):
    environment = {
        **os.environ,
        "ZIPFEL_CONTRACT_MODEL": "wordaverage",
        "ZIPFEL_CONTRACT_SETTINGS": json.dumps({"dimension": 32, "epochs": 8, "batch_size": 64, "learning_rate": 0.02}),
    }
    words = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "tests/contract/test_models.py"]
    run = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "skipped" not in run.stdout
    models = re.findall(r"^tests/contract/test_models\.py::test_\w+\[([^\]-]+).* PASSED", run.stdout, re.MULTILINE)
    assert set(models) == {"wordaverage"}
    assert len(models) > 25


def plugin(folder: Path, name: str, value: str, code: str = "") -> None:
    """Write the files of an installed package that declares a model."""
    about = folder / f"{name}_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[zipfel.models]\n{name} = {value}\n")
    (folder / f"{name}_plugin.py").write_text(code)


def test_a_package_that_cannot_be_imported_is_named_in_the_error(tmp_path, monkeypatch):
    plugin(tmp_path, "broken", "broken_plugin:Model", "import nowhere_to_be_found")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="model 'broken' of package broken-plugin cannot be imported"):
        model_class("broken")


def test_a_class_that_is_no_model_is_refused(tmp_path, monkeypatch):
    plugin(tmp_path, "other", "other_plugin:Model", "class Model: pass")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="model 'other' of package other-plugin must derive from"):
        model_class("other")


def test_a_plugin_with_the_name_of_a_built_in_model_is_ignored_with_a_warning(tmp_path, monkeypatch):
    plugin(tmp_path, "glas", "glas_plugin:Model")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="zipfel has one of this name"):
        names = model_names()
    assert names.count("glas") == 1


def test_an_unknown_model_is_refused(zipfel_command, planted, tmp_path):
    outcome = zipfel_command("train", planted, "--model", "wordaverag", "--out", tmp_path / "run")
    assert outcome.code != 0
    assert "did you mean 'wordaverage'?" in outcome.err
