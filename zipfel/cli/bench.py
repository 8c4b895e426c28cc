"""`zipfel bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import TimeElapsedColumn

from zipfel.bench import contestants, results, table
from zipfel.bench.race import Job, Race, Rules
from zipfel.bench.rows import data_sets
from zipfel.bench.standing import standing
from zipfel.cli.options import with_options
from zipfel.cli.progress import bar, span
from zipfel.cli.show import say, warn
from zipfel.data.formats.files import write_bytes
from zipfel.errors import ConfigError, DataError, check_installed


@with_options
def bench(
    out: Annotated[Path, typer.Option(help="Folder for the results, the table and the plots.", show_default=False)],
    rules: Rules,
    data: Annotated[
        list[Path] | None, typer.Argument(metavar="DATA", help="Data sets to run.", show_default=False)
    ] = None,
    models: Annotated[str, typer.Option(help="Models: all, none, or names such as auto,glas,lightdxml:fast.")] = "all",
    peers: Annotated[str, typer.Option(help="Peers: all, none, or names from benchmarks/recipes/peers.")] = "all",
    environments: Annotated[Path, typer.Option(help="Folder of the peers that install.py installed.")] = Path(".peers"),
    report_only: Annotated[bool, typer.Option("--report-only", help="Only rewrite the table and the plots.")] = False,
) -> None:
    """Train, test and measure models and their peers side by side. Run the same command again to resume."""
    from zipfel.bench import plots

    check_installed("a bench", "bench", "matplotlib")
    if not report_only:
        _run(out, rules, data or [], models, peers, environments)
    lines = results.read_results(out / results.NAME)
    if not lines:
        raise ConfigError(f"{out} has no results; run the bench without --report-only first")
    write_bytes(out / "table.md", table.markdown(lines).encode())
    drawn = plots.write_plots(lines, out)
    for name in data_sets(lines):
        say(standing(lines, name).replace("**", ""))
    say(", ".join(map(str, [out / results.NAME, out / "table.md", *drawn])))


def _run(out: Path, rules: Rules, data: list[Path], models: str, peers: str, environments: Path) -> None:
    if not data:
        raise ConfigError("no data set given; name at least one")
    folder = contestants.checkout()
    selected = [*contestants.models(models, folder), *contestants.peers(peers, folder, environments)]
    if not selected:
        raise ConfigError("nothing to run: --models and --peers select no contestant")
    for path in data:  # fail now, not after an hour
        if not path.exists():
            raise DataError("no such file or folder", path)
    shown = _Shown()
    with shown.bar:
        Race(selected, out, rules, shown.started, shown.ended).run(data)


class _Shown:
    """Shows the running job, its number and elapsed time, and prints a line for each result."""

    def __init__(self) -> None:
        self.bar = bar(TimeElapsedColumn())
        self._task = self.bar.add_task("", total=None)

    def started(self, data: str, job: Job, number: int, total: int) -> None:
        """Show the job that starts."""
        self._job = f"{number} of {total}: {data}, {job.contestant.name}, {job.part}, seed {job.seed}"
        self.bar.reset(self._task, description=escape(self._job), total=total, completed=number - 1)

    def ended(self, line: results.Line) -> None:
        """Print the result."""
        ok = line["status"] == results.OK
        result = f"P@1 {line['P@1']:.2f}, trained in {span(line['train_seconds'])}" if ok else line["status"]
        warn(f"{self._job}: {result}")
