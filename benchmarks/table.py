"""README's table and plot from the committed results of `zipfel bench`: `python -m benchmarks.table [--check]`.

Writes the text between two marks in README.md, and docs/images/bench.svg. For each data set it compares our model, the
one that was best on validation, with the best peer in each metric, and says where we lose and by how much. `--check`
writes nothing, and fails if README is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zipfel.bench.plots import scatter
from zipfel.bench.results import OK, Line, latest, read_results
from zipfel.bench.table import GOALS, Row, best_peers, chosen, data_sets, pipes, rows, standing, together
from zipfel.data.formats.files import write_bytes

ROOT = Path(__file__).parent.parent
RESULTS, README, PLOT = "benchmarks/results/bench.jsonl", "README.md", "docs/images/bench.svg"
BEGIN, END = "<!-- bench: written by benchmarks/table.py -->", "<!-- /bench -->"


def text(lines: Sequence[Line]) -> str:
    """Return the text of README about these results."""
    names = data_sets(lines)
    behind = [data for data in names if not ahead(lines, data)]
    won = f"zipfel beats every peer in all four metrics on {len(names) - len(behind)} of {len(names)} data sets"
    but = f" (all but {listed(behind)})" if behind else ""
    parts = [
        about(lines),
        "",
        pipes(["data", "labels", "ours", *GOALS, "train s"], [row_of(lines, data) for data in names]),
        "",
        f"{won}{but}:",
        "",
        *(f"- {standing(lines, data)}" for data in names),
        *fewer_seeds(lines),
        *unfinished(lines),
        "",
        f"![P@1 against seconds to train, for every contestant]({PLOT})",
    ]
    return "\n".join(parts)


def most_seeds(lines: Sequence[Line]) -> int:
    """Return the largest number of seeds of a contestant on a data set."""
    return max((row.seeds for data in data_sets(lines) for row in rows(lines, data)), default=0)


def about(lines: Sequence[Line]) -> str:
    """Return how the figures were measured, and how to read the table."""
    seeds = most_seeds(lines)
    peers = len({line["contestant"] for line in lines if not line["ours"] and line["status"] == OK})
    tested = [line for line in lines if line["part"] == "test"]
    dates = sorted({line["date"] for line in tested})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = f"{together(tested, 'machine')}, threads {together(tested, 'threads')}"
    return (
        f"Means of {seeds} seed{'s' * (seeds != 1)}; {where}, {when}; {peers} peers on the same features "
        f"([all results]({RESULTS}), from `zipfel bench`). Our model for each data set is the one with the best P@1 on "
        "validation. In brackets: the best result of any peer, which may be another peer in each column. "
        "Bold: ours is better."
    )


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def row_of(lines: Sequence[Line], data: str) -> list[str]:
    """Return the row of a data set: our figures, bold where they are better, and the best peer's in brackets."""
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
    """Return whether our model is ahead of every peer in all four metrics."""
    ours, peers = chosen(lines, data), best_peers(lines, data)
    if ours is None or not peers or ours.seeds < max(peer.seeds for peer in peers.values()):
        return False
    return all(ours.means[goal] > peer.means[goal] for goal, peer in peers.items())


def fewer_seeds(lines: Sequence[Line]) -> list[str]:
    """Return a line that names contestants with fewer seeds than others."""
    fewer = [row for data in data_sets(lines) for row in rows(lines, data) if 0 < row.seeds < most_seeds(lines)]
    names = [f"{row.title} on {row.data} ({row.seeds})" for row in fewer]
    return [f"- With fewer seeds: {', '.join(names)}."] if names else []


def unfinished(lines: Sequence[Line]) -> list[str]:
    """Return a line that names contestants without results: not installed, timed out, or crashed."""
    tested = [line for line in latest(lines) if line["part"] == "test" and line["status"] not in (OK, "not applicable")]
    names = dict.fromkeys(f"{line['title']} on {line['data']} ({line['status']})" for line in tested)
    return [f"- Did not finish: {', '.join(names)}."] if names else []


def replaced(readme: str, content: str) -> str:
    """Return README with this content between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def main(words: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="check that README is up to date, and write nothing")
    check = parser.parse_args(words).check
    lines, readme = read_results(root / RESULTS), root / README
    if not lines:
        raise SystemExit(f"{RESULTS} is missing or empty: copy results.jsonl from a run of `zipfel bench` there")
    old = readme.read_text()
    new = replaced(old, text(lines))
    if check:
        sys.stdout.write("" if new == old else "README.md is out of date; run python -m benchmarks.table\n")
        return int(new != old)
    readme.write_text(new)
    finished = {data: [row for row in rows(lines, data) if row.seeds] for data in data_sets(lines)}
    write_bytes(root / PLOT, scatter(finished, "train_seconds", "seconds to train").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
