"""`zipfel bench`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from zipfel.bench import contestants, results, table
from zipfel.bench.race import Job, Race, Rules, cleared
from zipfel.cli.options import with_options
from zipfel.cli.progress import span
from zipfel.cli.show import console, warnings
from zipfel.data.formats.files import new_file
from zipfel.errors import ConfigError, DataError


@with_options
def bench(
    out: Annotated[Path, typer.Option(help="Folder for results, table and plots.", show_default=False)],
    rules: Rules,
    data: Annotated[
        list[Path] | None, typer.Argument(metavar="DATA ...", help="Data sets.", show_default=False)
    ] = None,
    models: Annotated[str, typer.Option(help="all, none, or names such as glas,lightdxml:fast.")] = "all",
    peers: Annotated[str, typer.Option(help="all, none, or names of benchmarks/recipes/peers.")] = "all",
    environments: Annotated[Path, typer.Option(help="Where install.py put the peers.")] = Path(".peers"),
    report_only: Annotated[bool, typer.Option("--report-only", help="Only write table and plots anew.")] = False,
) -> None:
    """Train, test and measure models and their peers side by side; the same command again goes on where it stopped."""
    from zipfel.bench import plots

    plots.check_matplotlib()
    if not report_only:
        _run(out, rules, data or [], models, peers, environments)
    lines = results.read_results(out / results.NAME)
    if not lines:
        raise ConfigError(f"{out} holds no results")
    with new_file(out / "table.md") as file:
        file.write(table.markdown(lines).encode())
    drawn = plots.write_plots(lines, out)
    for name in table.data_sets(lines):
        console.print(escape(table.standing(lines, name).replace("**", "")), soft_wrap=True)
    console.print(escape(", ".join(map(str, [out / results.NAME, out / "table.md", *drawn]))), soft_wrap=True)


def _run(out: Path, rules: Rules, data: list[Path], models: str, peers: str, environments: Path) -> None:
    if not data:
        raise ConfigError("name at least one data set")
    folder = contestants.checkout()
    taking_part = [*contestants.models(models, folder), *contestants.peers(peers, folder, environments)]
    if not taking_part:
        raise ConfigError("nobody takes part: --models none --peers none")
    for path in data:  # an hour later would be late
        if not path.exists():
            raise DataError("is not there", path)
    cleared(out)
    with Watched() as watched:
        try:
            Race(taking_part, out, rules, watched.started, watched.ended).run(data)
        finally:
            cleared(out)


class Watched:
    """Shows which contestant runs, which of how many it is and how long it has taken; and a line for each result."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        self._bar = Progress(*columns, console=warnings, transient=True, disable=not warnings.is_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Watched:
        """Start to show."""
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Take the bar away."""
        self._bar.stop()

    def started(self, data: str, job: Job, number: int, total: int) -> None:
        """Name the contestant that runs now."""
        self._place = f"{number} of {total}"
        what = f"{self._place}: {data}, {job.contestant.name}, {job.part}, seed {job.seed}"
        self._bar.reset(self._task, description=escape(what), total=total, completed=number - 1)

    def ended(self, line: results.Line) -> None:
        """Print what came of it."""
        good = line["status"] == results.OK
        told = f"P@1 {line['P@1']:.2f}, trained in {span(line['train_seconds'])}" if good else line["status"]
        what = f"{self._place}: {line['data']}, {line['contestant']}, {line['part']}, seed {line['seed']}: {told}"
        warnings.print(escape(what), soft_wrap=True)
