"""The bench itself: every contestant in fresh processes, seed by seed, so that noise hits all alike; resumable."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from zipfel.bench import launch, machine, results
from zipfel.bench.contestants import Contestant
from zipfel.bench.features import Stage, loaded, stage, without_texts
from zipfel.bench.results import CRASHED, NOT_APPLICABLE, NOT_INSTALLED, OK, TIMED_OUT, Line
from zipfel.config import setting
from zipfel.errors import ConfigError, ZipfelError
from zipfel.types import Ranking

FIGURES = [f"{name}@{k}" for name in ("P", "nDCG", "PSP", "coverage") for k in (1, 3, 5)]
WORK = ".zipfel-bench"  # in the folder of results, while a contestant runs: a name that nobody else has
LAST_LINES = 12  # of what a contestant that crashed has said
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class Rules:
    """What holds for all contestants alike."""

    seeds: int = setting(3, "seeds: 0, 1, ...")
    limit: float = setting(1800.0, "seconds that a contestant may take to train and to predict; more is a time-out")
    threads: int = setting(2, "threads of a contestant")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("seeds", "limit", "threads"):
            if getattr(self, name) < (1 if name != "limit" else 0.1):
                raise ConfigError(
                    f"{name} must be at least {1 if name != 'limit' else 0.1}; found {getattr(self, name)}"
                )


@dataclass(frozen=True)
class Job:
    """One contestant with its settings on one stage, with one seed."""

    contestant: Contestant
    part: str
    seed: int
    settings: dict[str, Any]

    def key(self, data: str) -> tuple[Any, ...]:
        """Return what its line of results will be known by."""
        about = {"part": self.part, "data": data, "contestant": self.contestant.name, "seed": self.seed}
        return results.key({**about, "settings": self.settings})


Told = Callable[[str, Job, int, int], None]  # data, job, its number, how many there are
Heard = Callable[[Line], None]


class Race:
    """Runs what has no line of results yet, one contestant after the other."""

    def __init__(self, contestants: Sequence[Contestant], out: Path, rules: Rules, told: Told, heard: Heard) -> None:
        self.contestants, self.out, self.rules, self.told, self.heard = contestants, out, rules, told, heard
        self.path = out / results.NAME
        self.number = self.total = 0

    def run(self, paths: Sequence[Path]) -> None:
        """Run all data sets, one after the other."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.total = len(paths) * sum(self._jobs_of(one) for one in self.contestants)
        for path in paths:
            self._data_set(path)

    def _jobs_of(self, contestant: Contestant) -> int:
        return len(validated(contestant, "")) + self.rules.seeds

    def _data_set(self, path: Path) -> None:
        dataset = without_texts(loaded(path))
        stages = {
            part: stage(dataset, part, self.out / "features" / folder_name(dataset.name))
            for part in ("validation", "test")
        }
        for job in self._validations(dataset.name):
            self._one(job, stages["validation"])
        for seed in range(self.rules.seeds):
            for contestant in self.contestants:
                settings = tuned(contestant, dataset.name, results.read_results(self.path))
                self._one(Job(contestant, "test", seed, settings), stages["test"])

    def _validations(self, data: str) -> Iterator[Job]:
        for contestant in self.contestants:
            for settings in validated(contestant, data):
                yield Job(contestant, "validation", 0, settings)

    def _one(self, job: Job, stage: Stage) -> None:
        """Run a job and write down its result, unless that is there already."""
        self.number += 1
        data, lines = stage.dataset.name, results.read_results(self.path)
        if job.key(data) in results.finished(lines, self.rules.limit):
            return
        self.told(data, job, self.number, self.total)
        about = {**self._about(job, data), **stage.dataset.sizes._asdict()}
        line = {**about, **(_hopeless(about, lines) or outcome(job, stage, self.out, self.rules))}
        results.append(self.path, line)
        self.heard(line)

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


def _hopeless(about: Line, lines: Sequence[Line]) -> Line | None:
    """Return a time-out where an earlier seed had one and as much time: half an hour each would tell nothing new."""
    seeds = [
        line["seed"]
        for line in lines
        if line["status"] == TIMED_OUT
        and results.key({**line, "seed": about["seed"]}) == results.key(about)
        and line["limit"] >= about["limit"]
    ]
    return {"status": TIMED_OUT, "why": f"not run, as seed {seeds[0]} was not done within the limit"} if seeds else None


def validated(contestant: Contestant, data: str) -> list[dict[str, Any]]:
    """Return the settings to be judged on validation: what a recipe wants to try, and any model of ours as it is."""
    base = contestant.settings(data)
    grid = contestant.recipe.grid() if contestant.recipe.tune and "preset" not in contestant.model else []
    return [{**base, **change} for change in grid] or ([base] if contestant.ours else [])


def tuned(contestant: Contestant, data: str, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the settings that were best on validation; where nothing was tried, or nothing ended, the base's."""
    tried = [orjson.dumps(settings, option=orjson.OPT_SORT_KEYS) for settings in validated(contestant, data)]
    judged = [
        line
        for line in lines
        if (line["part"], line["data"], line["contestant"], line["status"]) == ("validation", data, contestant.name, OK)
        and orjson.dumps(line["settings"], option=orjson.OPT_SORT_KEYS) in tried
    ]
    best = max(judged, key=lambda line: line["P@1"], default=None)  # of equals the first
    return contestant.settings(data) if best is None else dict(best["settings"])


def outcome(job: Job, stage: Stage, out: Path, rules: Rules) -> Line:
    """Train and ask a contestant, and return what was measured, or why nothing was."""
    missing = job.contestant.missing()
    if missing is not None:
        return {"status": NOT_INSTALLED, "why": missing}
    if job.contestant.needs_label_texts and stage.dataset.Z is None:
        return {"status": NOT_APPLICABLE, "why": "labels have no texts"}
    work = out / WORK
    work.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=work) as folder:
        return _measured(job, stage, Path(folder), rules)


def _measured(job: Job, stage: Stage, folder: Path, rules: Rules) -> Line:
    trained = _launched("train", job, stage, folder, rules.limit, rules.threads)
    line: Line = {"train_peak_mb": trained["used"]["peak_mb"], "process_seconds": trained["used"]["seconds"]}
    if trained["status"] != OK:
        return {**line, **_failure(trained)}
    line |= trained["report"]
    line["model_mb"] = sum(path.stat().st_size for path in (folder / "model").rglob("*") if path.is_file()) / 1e6
    asked = _launched("predict", job, stage, folder, rules.limit - trained["used"]["seconds"], rules.threads)
    if asked["status"] != OK:
        return {**line, **_failure(asked)}
    line |= asked["report"] | {"predict_peak_mb": asked["used"]["peak_mb"]}
    line["process_seconds"] += asked["used"]["seconds"]
    try:
        report = stage.judged(read_ranking(folder / "ranking.npz"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, ZipfelError) as error:
        return {**line, "status": CRASHED, "why": f"its ranking cannot be judged: {error}"}
    bins = [{"lowest": b.lowest, "highest": b.highest, "contribution": b.contribution} for b in report.bins]
    return {**line, **{name: report.values[name] for name in FIGURES}, "bins": bins, "status": OK}


def _failure(run: dict[str, Any]) -> Line:
    return {"status": run["status"], "why": run["why"]}


def read_ranking(path: Path) -> Ranking:
    """Read what a contestant has written."""
    with np.load(path) as arrays:
        return Ranking(arrays["ids"].astype(np.int64), arrays["scores"].astype(np.float32))


def _launched(verb: str, job: Job, stage: Stage, folder: Path, limit: float, threads: int) -> dict[str, Any]:
    """Run one verb of an adapter in a process of its own; return its status, its report, and what it used."""
    report, usage, log = folder / f"{verb}.json", folder / f"{verb}.used.json", folder / f"{verb}.log"
    words = [job.contestant.python, job.contestant.adapter, verb, stage.folder, folder / "model", report,
             "--seed", job.seed, "--threads", threads, "--settings", orjson.dumps(job.settings).decode()]  # fmt: skip
    words += ["--ranking", folder / "ranking.npz", "--k", stage.k] if verb == "predict" else []
    command = [sys.executable, "-I", "-S", launch.__file__, str(max(limit, 0)), str(usage), str(log)]
    _waited_for([*command, *map(str, words)], _environment(job.contestant, threads))
    used = orjson.loads(usage.read_bytes())
    last = _shortened(
        log, [folder, stage.folder, job.contestant.adapter.parent, job.contestant.python.parent.parent]
    ).splitlines()[-LAST_LINES:]
    if used["timed_out"]:
        return {"status": TIMED_OUT, "why": f"{verb}: not done within the limit", "used": used}
    if used["code"] != 0 or not report.exists():
        return {"status": CRASHED, "why": "\n".join([f"{verb}: exit code {used['code']}", *last]), "used": used}
    return {"status": OK, "report": orjson.loads(report.read_bytes()), "used": used}


def _shortened(log: Path, folders: Sequence[Path]) -> str:
    """Return what a contestant said, without the folders of this machine, which tell nobody anything."""
    said = log.read_text(errors="replace").strip() if log.exists() else ""
    for folder in folders:
        said = said.replace(f"{folder}{os.sep}", "")
    return said


def _environment(contestant: Contestant, threads: int) -> dict[str, str]:
    """Return the variables of a contestant: as many threads as all have, and zipfel to be found by its own only."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kept |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    return {**kept, "PYTHONPATH": str(machine.PACKAGE.parent)} if contestant.ours else kept


def _waited_for(command: list[str], environment: dict[str, str]) -> None:
    """Wait for a command; whatever interrupts the wait also ends it, with all that it has started."""
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
    """Return a data set's name as a folder can have it."""
    return re.sub(r"[^\w.+-]", "_", data) or "data"


def cleared(out: Path) -> None:
    """Take away what a run that was killed left behind."""
    shutil.rmtree(out / WORK, ignore_errors=True)
