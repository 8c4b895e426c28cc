"""The course of a job: plan it or resume it, run the parts that are missing, finish the manifest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import typer

from zipfel.cli.inputs import Chosen, check_names
from zipfel.cli.job.engines import Engine, local, ray_engine
from zipfel.cli.job.files import File, Slice, found, is_remote, local_copy, opened_file, slices_of
from zipfel.cli.job.folder import BAD_ROWS, Plan, check_same, opened_folder, read_plan, write_bad_rows, write_plan
from zipfel.cli.job.worker import KINDS, Answer, Job, KindFinder, Order, PartTagger, written
from zipfel.cli.parquet import kind_of
from zipfel.cli.progress import counted
from zipfel.cli.show import say, warn
from zipfel.config import Settings, setting
from zipfel.data.formats.files import unpacked_name
from zipfel.data.formats.table_files import Table, open_parquet, open_table
from zipfel.engines.batch import OWN
from zipfel.errors import INTERRUPTED, ConfigError, DataError, check_installed

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.cli.machine import Machine
    from zipfel.cli.predict import Reading, Work

SHOWN = 10  # bad rows printed; the list has all


@dataclass(frozen=True)
class Running(Settings):
    """Tagging many files into a folder."""

    engine: Literal["local", "ray"] | None = setting(
        None, "tag --input, a folder or a pattern such as 'in/*.parquet', part by part into the folder --out: "
        "in this process (local), or in several (ray)")  # fmt: skip
    address: str | None = setting(None, "Ray to connect to, such as HOST:6379 or auto; default: started here")
    workers: int | None = setting(None, "processes of Ray; default: one for each CPU, or GPU", at_least=1)
    strict: bool = setting(False, "with --engine: end at the first bad row, instead of listing bad rows")

    def check(self) -> None:
        """Check that options of Ray come with Ray."""
        if self.engine != "ray" and (self.address is not None or self.workers is not None):
            raise ConfigError("--address and --workers need --engine ray")
        if self.engine is None and self.strict:
            raise ConfigError("--strict needs --engine; without, a bad row always ends the command")

    def started(self, machine: Machine) -> AbstractContextManager[Engine]:
        """Start the engine, or connect to it."""
        if self.engine == "ray":
            return ray_engine(self.address, self.workers, machine.device, machine.threads)
        return nullcontext(local)


def tag_files(model: Path, work: Work, source: str, reading: Reading, running: Running, machine: Machine, out: Path,
              fresh: bool) -> None:  # fmt: skip
    """Tag files into a folder, or the parts that an interrupted job has left."""
    check_installed("--engine", "tables", "pyarrow")
    encoding = reading.encoding or work.tagger.source_.columns.encoding or "utf-8"
    files = found(source)
    chosen, kinds = _chosen(files, work, reading, encoding)
    check_names(["text"] if chosen is None else chosen.kept, OWN)
    threads = machine.threads or (1 if running.engine == "ray" else None)
    job = Job(str(model.resolve()), work.seal, work.wanted.k, work.wanted.threshold, chosen, encoding,
              str(out.resolve()), strict=running.strict, device=machine.device, threads=threads)  # fmt: skip
    inputs = {"model": work.seal, "k": work.wanted.depth, "threshold": str(work.wanted.threshold), "text": reading.text,
              "keep": reading.keep, "encoding": encoding, "files": [list(file) for file in files]}  # fmt: skip
    with opened_folder(out, fresh):
        plan = read_plan(out)
        if plan is not None:
            check_same(out, plan, inputs)
            _run(running.started(machine), job, plan, out)
            return
        with running.started(machine) as engine:
            plan = _planned(engine, job, files, inputs, kinds)
            write_plan(out, plan)
            _run(nullcontext(engine), job, plan, out)


def _chosen(files: Sequence[File], work: Work, reading: Reading, encoding: str) -> tuple[Chosen | None, bool]:
    """Return the columns of the first file to read (None: lines of text), and whether the file states their types."""
    name = files[0].path.lower()
    if unpacked_name(Path(name)).endswith(".txt"):
        return None, True
    with TemporaryDirectory(prefix="zipfel-") as folder:
        table = _opened(Slice(files[0].path), encoding, Path(folder))
        chosen = Chosen.of(table, work.tagger.source_, reading.text, reading.keep)
    warn(f"note: {chosen.about}")
    return chosen, table.kinds is not None


def _opened(part: Slice, encoding: str, folder: Path) -> Table:
    if not part.file.lower().endswith(".parquet"):
        return open_table(local_copy(part, folder), encoding, lambda _: None)
    with opened_file(part.file) as content:
        return open_parquet(part.file, content=content if is_remote(part.file) else None)


def _planned(engine: Engine, job: Job, files: list[File], inputs: dict[str, Any], stated: bool) -> Plan:
    """Return a new plan: slices of all files, and types of the columns that are the same in all parts."""
    parts = slices_of(files, job.encoding)
    if not stated or any(file.path.lower().endswith((".jsonl", ".json", ".jsonl.gz", ".xlsx")) for file in files):
        orders = list(enumerate(parts))
        seen = _seen(engine(partial(KindFinder, job), orders), job.columns)
    else:
        seen = {name: set() for name in job.columns}
        for file in files:
            for name in job.columns:
                seen[name].add(_stated(file.path, job.encoding)[name])
    return Plan(inputs, parts, {name: kind_of(kinds).__name__ for name, kinds in seen.items()})


def _stated(path: str, encoding: str) -> Mapping[str, type]:
    """Return the types of columns that a file states: those of Parquet; all else is text."""
    if not path.lower().endswith(".parquet"):
        return defaultdict(lambda: str)
    kinds = _opened(Slice(path), encoding, Path()).kinds or {}
    return defaultdict(lambda: str, kinds)


def _seen(answers: Iterator[Answer], columns: Sequence[str]) -> dict[str, set[type]]:
    """Return the types of all parts; a file that cannot be read is reported when it is tagged."""
    seen: dict[str, set[type]] = {name: set() for name in columns}
    for answer in answers:
        if answer.get("fatal"):
            raise ConfigError(answer["error"])
        for name, kinds in answer.get("kinds", {}).items():
            seen[name] |= {KINDS.get(kind, str) for kind in kinds}
    return seen


def _run(started: AbstractContextManager[Engine], job: Job, plan: Plan, out: Path) -> None:
    """Tag the parts that are missing, and finish the manifest."""
    job = replace(job, kinds=plan.kinds, digest=plan.digest)
    done = {number: answer for number in range(len(plan.parts)) if (answer := written(job, number)) is not None}
    missing = [(number, part) for number, part in enumerate(plan.parts) if number not in done]
    if not missing and plan.finished:
        say(f"{out}: complete already, {_rows(done):,} texts in {len(done)} parts")
        return
    if plan.finished:
        warn(f"note: {job.path(missing[0][0]).name} is missing or damaged ({len(missing)} parts); tagging again")
    elif done:
        warn(f"resuming after {_rows(done):,} texts: {len(done)} of {len(plan.parts)} parts are finished")
    failed = _tag(started, job, missing, done)
    if failed:
        others = f" (and {len(failed) - 1} parts more)" if len(failed) > 1 else ""
        raise DataError(
            f"{failed[0]}{others}; all other parts are tagged: repair the input, and run the same command again"
        )
    bad = [row for number in sorted(done) for row in done[number]["bad"]]
    write_bad_rows(out, bad)
    write_plan(
        out, plan, {"rows": _rows(done), "bad_rows": len(bad), "part_rows": [done[n]["rows"] for n in sorted(done)]}
    )
    if bad:
        warn(f"note: {len(bad):,} bad rows are left out; {out / BAD_ROWS} lists them")
    say(f"{out}: {_rows(done):,} texts tagged in {len(done)} parts")


def _tag(
    started: AbstractContextManager[Engine], job: Job, missing: Sequence[Order], done: dict[int, Answer]
) -> list[str]:
    """Tag parts and add their answers to `done`; return errors of files."""
    failed, first, shown = list[str](), _rows(done), 0
    if not missing:
        return failed
    try:
        with started as engine, counted(first) as show:
            for answer in engine(partial(PartTagger, job), missing):
                if "error" in answer and (answer["fatal"] or job.strict):
                    raise ConfigError(answer["error"])
                if "error" in answer:
                    warn(f"error: {answer['error']}")
                    failed.append(answer["error"])
                    continue
                done[answer["part"]] = answer
                for file, row, problem in answer["bad"][: max(SHOWN - shown, 0)]:
                    warn(f"bad row: {file}:{row}: {problem}")
                shown += len(answer["bad"])
                show(_rows(done))
    except KeyboardInterrupt:
        warn(f"stopped after {_rows(done):,} texts; run the same command to resume")
        raise typer.Exit(INTERRUPTED) from None
    return failed


def _rows(done: Mapping[int, Answer]) -> int:
    return sum(answer["rows"] for answer in done.values())
