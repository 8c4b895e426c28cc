"""README's table and plot, out of the committed results of `zipfel bench`: `python -m benchmarks.table [--check]`.

Writes what stands between two marks in README.md, and docs/images/bench.svg: for each data set the model of ours that
was best on validation beside the best peer in each figure, and in words where we lose and by how much. `--check`
writes nothing, and fails where README says something else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zipfel.bench.plots import scatter, write_svg
from zipfel.bench.results import OK, Line, latest, read_results
from zipfel.bench.table import GOALS, Row, best_peers, chosen, data_sets, pipes, rows, standing, together

ROOT = Path(__file__).parent.parent
RESULTS, README, PLOT = "benchmarks/results/bench.jsonl", "README.md", "docs/images/bench.svg"
BEGIN, END = "<!-- bench: written by benchmarks/table.py -->", "<!-- /bench -->"


def text(lines: Sequence[Line]) -> str:
    """Return what README says about these results."""
    found = data_sets(lines)
    behind = [data for data in found if not ahead(lines, data)]
    won = f"Ahead of every peer in all four figures on {len(found) - len(behind)} of {len(found)} data sets"
    parts = [
        about(lines),
        "",
        pipes(["data", "labels", "ours", *GOALS, "train s"], [row_of(lines, data) for data in found]),
        "",
        f"{won}{'; behind somewhere on ' + ', '.join(behind) if behind else ''}. In words:",
        "",
        *(f"- {standing(lines, data)}" for data in found),
        *fewer_seeds(lines),
        *unfinished(lines),
        "",
        f"![P@1 against seconds to train, for every contestant]({PLOT})",
    ]
    return "\n".join(parts)


def most_seeds(lines: Sequence[Line]) -> int:
    """Return with how many seeds a contestant ran, where it ran with the most."""
    return max((row.seeds for data in data_sets(lines) for row in rows(lines, data)), default=0)


def about(lines: Sequence[Line]) -> str:
    """Return one sentence on how the figures came about."""
    seeds = most_seeds(lines)
    peers = len({line["contestant"] for line in lines if not line["ours"] and line["status"] == OK})
    tested = [line for line in lines if line["part"] == "test"]
    dates = sorted({line["date"] for line in tested})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = f"{together(tested, 'machine')}, threads {together(tested, 'threads')}"
    how = f"{where}, {when}; {peers} peers on the same features"
    return (
        f"Means of {seeds} seed{'s' * (seeds != 1)} on {how} ([all figures]({RESULTS}), `zipfel bench`). "
        "Ours is the model with the best P@1 on a part of train; in brackets the best peer's figure, which may be "
        "another peer's in each column."
    )


def row_of(lines: Sequence[Line], data: str) -> list[str]:
    """Return the row of a data set: our figures, bold where they are ahead, with the best peer's behind them."""
    ours, peers = chosen(lines, data), best_peers(lines, data)
    labels = f"{next(line['labels'] for line in lines if line['data'] == data):,}"
    if ours is None:
        return [data, labels, "none", *[""] * (len(GOALS) + 1)]
    return [data, labels, ours.title, *(_pair(ours, peers, goal) for goal in GOALS), ours.cell("train_seconds")]


def _pair(ours: Row, peers: dict[str, Row], goal: str) -> str:
    own = f"{ours.means[goal]:.1f}"
    if goal not in peers:
        return own
    other = peers[goal].means[goal]
    return f"{f'**{own}**' if ours.means[goal] > other else own} ({other:.1f})"


def ahead(lines: Sequence[Line], data: str) -> bool:
    """Tell whether our model is ahead of every peer in all four figures."""
    ours, peers = chosen(lines, data), best_peers(lines, data)
    if ours is None or not peers or ours.seeds < max(peer.seeds for peer in peers.values()):
        return False
    return all(ours.means[goal] > peer.means[goal] for goal, peer in peers.items())


def fewer_seeds(lines: Sequence[Line]) -> list[str]:
    """Return a line on whose figures are means of fewer seeds than others'."""
    found = [row for data in data_sets(lines) for row in rows(lines, data) if 0 < row.seeds < most_seeds(lines)]
    told = [f"{row.title} on {row.data} ({row.seeds})" for row in found]
    return [f"- Fewer seeds: {', '.join(told)}."] if told else []


def unfinished(lines: Sequence[Line]) -> list[str]:
    """Return a line on who did not get through: peers that were not installed, time-outs, crashes."""
    tested = [line for line in latest(lines) if line["part"] == "test" and line["status"] not in (OK, "not applicable")]
    told = dict.fromkeys(f"{line['title']} on {line['data']} ({line['status']})" for line in tested)
    return [f"- Did not get through: {', '.join(told)}."] if told else []


def replaced(readme: str, content: str) -> str:
    """Return README with other words between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def main(words: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only tell whether README is up to date")
    check = parser.parse_args(words).check
    lines, readme = read_results(root / RESULTS), root / README
    if not lines:
        raise SystemExit(f"{RESULTS} is missing or empty: copy results.jsonl of a run of `zipfel bench` there")
    old = readme.read_text()
    new = replaced(old, text(lines))
    if check:
        sys.stdout.write("" if new == old else "README.md is not what python -m benchmarks.table writes\n")
        return int(new != old)
    readme.write_text(new)
    found = {data: [row for row in rows(lines, data) if row.seeds] for data in data_sets(lines)}
    write_svg(root / PLOT, scatter(found, "train_seconds", "seconds to train"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
