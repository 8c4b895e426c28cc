"""The bench: runs each contestant in fresh processes, seed by seed, so that noise affects all alike; resumable."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import orjson

from zipfel.bench import launch, machine, results
from zipfel.bench.contestants import Contestant
from zipfel.bench.features import Stage, featured, loaded, stage
from zipfel.bench.origin import origin_of
from zipfel.bench.results import CHOSEN, CRASHED, NOT_APPLICABLE, NOT_INSTALLED, OK, PLAIN, TIMED_OUT, Line
from zipfel.config import Settings, setting
from zipfel.errors import DataError, ZipfelError
from zipfel.types import Ranking

FIGURES = [f"{name}@{k}" for name in ("P", "nDCG", "PSP", "coverage") for k in (1, 3, 5)]
WORK = ".zipfel-bench"  # in the results folder while a contestant runs; the name is unlikely to clash
LAST_LINES = 12  # of a crashed contestant's log
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class Rules(Settings):
    """Rules for all contestants."""

    seeds: int = setting(3, "number of seeds: 0, 1, ...", at_least=1)
    limit: float = setting(1800.0, "time limit to train and predict, in seconds", at_least=0.1)
    threads: int = setting(2, "threads per contestant", at_least=1)
    features: Literal["plain", "chosen"] = setting(
        "plain", "features of texts, the same for all: of the usual text settings, or of those that train chooses"
    )


@dataclass(frozen=True)
class Job:
    """One contestant with its settings on one part, with one seed."""

    contestant: Contestant
    part: str
    seed: int
    settings: dict[str, Any]


OnStart = Callable[[str, Job, int, int], None]  # data, job, its number, total
OnResult = Callable[[Line], None]


class Race:
    """Runs all jobs that have no line of results yet, one after the other."""

    def __init__(
        self, contestants: Sequence[Contestant], out: Path, rules: Rules, on_start: OnStart, on_result: OnResult
    ) -> None:
        self.contestants, self.out, self.rules = contestants, out, rules
        self.on_start, self.on_result = on_start, on_result
        self.path, self.work = out / results.NAME, out / WORK
        self.number = self.total = 0

    def run(self, paths: Sequence[Path]) -> None:
        """Run all data sets, one after the other."""
        self._make_folder()
        shutil.rmtree(self.work, ignore_errors=True)  # of a killed run
        self.total = len(paths) * sum(len(validated(one, "")) + self.rules.seeds for one in self.contestants)
        try:
            for path in paths:
                self._data_set(path)
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def _make_folder(self) -> None:
        """Make the folder of results, or say why it cannot be written: before the first contestant runs."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self.out):  # a folder may exist and be read-only
                pass
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror or error}", self.out) from None

    def _data_set(self, path: Path) -> None:
        dataset = loaded(path)
        folder = self.out / "features" / folder_name(dataset.name)
        origin = origin_of(dataset, self.rules.features, folder / CHOSEN, self.rules.threads)
        dataset = featured(dataset, origin)
        folder = folder if origin.features_from == PLAIN else folder / CHOSEN
        stages = {part: stage(dataset, part, folder, origin) for part in ("validation", "test")}
        for contestant in self.contestants:
            for settings in validated(contestant, dataset.name):
                self._one(Job(contestant, "validation", 0, settings), stages["validation"])
        for seed in range(self.rules.seeds):
            for contestant in self.contestants:
                lines = [line for line in results.read_results(self.path) if is_of(line, stages["test"])]
                settings = tuned(contestant, dataset.name, lines)
                self._one(Job(contestant, "test", seed, settings), stages["test"])

    def _one(self, job: Job, stage: Stage) -> None:
        """Run a job and append its result, unless it is finished already."""
        self.number += 1
        data, lines = stage.dataset.name, results.read_results(self.path)
        about = {**self._about(job, data), **stage.origin.about, **stage.dataset.sizes._asdict()}
        if results.key(about) in results.finished(lines, self.rules.limit):
            return
        self.on_start(data, job, self.number, self.total)
        line = {**about, **(_timed_out_before(about, lines) or outcome(job, stage, self.work, self.rules))}
        line = stage.origin.completed(line) if job.contestant.is_auto else line
        results.append(self.path, line)
        self.on_result(line)

    def _about(self, job: Job, data: str) -> Line:
        return {
            "benchmark": "bench",
            "part": job.part,
            "data": data,
            "contestant": job.contestant.name,
            "title": job.contestant.title,
            "ours": job.contestant.ours,
            "seed": job.seed,
            "settings": job.settings,
            "threads": self.rules.threads,
            "limit": self.rules.limit,
            "commit": machine.commit(machine.PACKAGE),
            "machine": machine.processor(),
            "date": machine.today(),
        }


def is_of(line: Line, stage: Stage) -> bool:
    """Whether a line has the features of a stage."""
    origin = stage.origin.about
    return results.features_from(line) == origin["features_from"] and line.get("text") == origin.get("text")


def _timed_out_before(about: Line, lines: Sequence[Line]) -> Line | None:
    """Return a time-out if another seed had one with at least this limit: waiting again would show nothing new."""
    seeds = [
        line["seed"]
        for line in lines
        if line["status"] == TIMED_OUT
        and results.key({**line, "seed": about["seed"]}) == results.key(about)
        and line["limit"] >= about["limit"]
    ]
    return {"status": TIMED_OUT, "why": f"not run: seed {seeds[0]} exceeded the time limit"} if seeds else None


def validated(contestant: Contestant, data: str) -> list[dict[str, Any]]:
    """Return the settings to evaluate on validation: the recipe's grid; without one, our models' own settings.

    None for `auto`, which is chosen by a rule and on held-out points of train.
    """
    if contestant.is_auto:
        return []
    base = contestant.settings(data)
    grid = contestant.recipe.grid() if contestant.recipe.tune and "preset" not in contestant.model else []
    return [{**base, **change} for change in grid] or ([base] if contestant.ours else [])


def tuned(contestant: Contestant, data: str, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the best settings on validation; the base settings if none were tried or none succeeded."""
    tried = [orjson.dumps(settings, option=orjson.OPT_SORT_KEYS) for settings in validated(contestant, data)]
    evaluated = [
        line
        for line in lines
        if (line["part"], line["data"], line["contestant"], line["status"]) == ("validation", data, contestant.name, OK)
        and orjson.dumps(line["settings"], option=orjson.OPT_SORT_KEYS) in tried
    ]
    best = max(evaluated, key=lambda line: line["P@1"], default=None)  # ties: the first
    return contestant.settings(data) if best is None else dict(best["settings"])


def outcome(job: Job, stage: Stage, work: Path, rules: Rules) -> Line:
    """Train a contestant and predict with it; return the measurements, or why there are none."""
    missing = job.contestant.missing()
    if missing is not None:
        return {"status": NOT_INSTALLED, "why": missing}
    if job.contestant.needs_label_texts and stage.dataset.Z is None:
        return {"status": NOT_APPLICABLE, "why": "labels have no texts"}
    work.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=work) as folder:
        return _measured(job, stage, Path(folder), rules)


def _measured(job: Job, stage: Stage, folder: Path, rules: Rules) -> Line:
    trained, used = _launched("train", job, stage, folder, rules.limit, rules.threads)
    line = {"train_peak_mb": used["peak_mb"], "process_seconds": used["seconds"], **trained}
    if line["status"] != OK:
        return line
    line["model_mb"] = sum(path.stat().st_size for path in (folder / "model").rglob("*") if path.is_file()) / 1e6
    predicted, used = _launched("predict", job, stage, folder, rules.limit - used["seconds"], rules.threads)
    line |= predicted
    if line["status"] != OK:
        return line
    line["predict_peak_mb"] = used["peak_mb"]
    line["process_seconds"] += used["seconds"]
    try:
        report = stage.evaluate(read_ranking(folder / "ranking.npz"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, ZipfelError) as error:
        return {**line, "status": CRASHED, "why": f"its ranking is invalid: {error}"}
    bins = [{"lowest": b.lowest, "highest": b.highest, "contribution": b.contribution} for b in report.bins]
    return {**line, **{name: report.values[name] for name in FIGURES}, "bins": bins}


def read_ranking(path: Path) -> Ranking:
    """Read the ranking that a contestant wrote."""
    with np.load(path) as arrays:
        return Ranking(arrays["ids"].astype(np.int64), arrays["scores"].astype(np.float32))


def _launched(verb: str, job: Job, stage: Stage, folder: Path, limit: float, threads: int) -> tuple[Line, Line]:
    """Run a command of an adapter, train or predict, in its own process; return status and report, and its usage."""
    report, usage, log = folder / f"{verb}.json", folder / f"{verb}.used.json", folder / f"{verb}.log"
    words = [job.contestant.python, job.contestant.adapter, verb, stage.folder, folder / "model", report,
             "--seed", job.seed, "--threads", threads, "--settings", orjson.dumps(job.settings).decode()]  # fmt: skip
    words += ["--ranking", folder / "ranking.npz", "--k", stage.k] if verb == "predict" else []
    command = [sys.executable, "-I", "-S", launch.__file__, str(max(limit, 0)), str(usage), str(log)]
    _waited_for([*command, *map(str, words)], _environment(job.contestant, threads))
    used = orjson.loads(usage.read_bytes())
    if used["timed_out"]:
        return {"status": TIMED_OUT, "why": f"{verb}: exceeded the time limit"}, used
    if used["code"] != 0 or not report.exists():
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        own = (folder, stage.folder, job.contestant.adapter.parent, job.contestant.python.parent.parent)
        for path in own:  # of this machine, which mean nothing elsewhere
            text = text.replace(f"{path}{os.sep}", "")
        last = text.splitlines()[-LAST_LINES:]
        return {"status": CRASHED, "why": "\n".join([f"{verb}: exit code {used['code']}", *last])}, used
    return {**orjson.loads(report.read_bytes()), "status": OK}, used


def _environment(contestant: Contestant, threads: int) -> dict[str, str]:
    """Return a contestant's environment: the same number of threads for all, and zipfel importable only by ours."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    if not contestant.ours:
        return variables
    paths = [str(machine.PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]  # models of other packages
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}


def _waited_for(command: list[str], environment: dict[str, str]) -> None:
    """Run a command and wait for it; an interruption also ends the command and all that it has started."""
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    if process.returncode:
        raise ZipfelError(f"a contestant could not be started (exit code {process.returncode}): {command[7:]}")


def folder_name(data: str) -> str:
    """Return a data set's name as a valid folder name."""
    return re.sub(r"[^\w.+-]", "_", data) or "data"
