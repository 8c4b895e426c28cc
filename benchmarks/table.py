"""Tables and plot from the committed results of `zipfel bench`: `python -m benchmarks.table [--check]`.

Writes the text between two marks: a short table in README.md, a long one in docs/benchmarks.md, and
docs/images/bench.svg. For each data set it compares our model, `auto` or else the one that was best on validation, with
every peer in each metric, and says where we lose, where we are level, and by how much. `--check` writes nothing, and
fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zipfel.bench.plots import scatter
from zipfel.bench.results import OK, PLAIN, Line, latest, read_results
from zipfel.bench.rows import Row, cost_cell, data_sets, rows, titled
from zipfel.bench.standing import AHEAD, GOALS, LEVEL, Comparison, best_peers, chosen, comparisons, standing
from zipfel.bench.table import chosen_text, pipes, together
from zipfel.data.formats.files import write_bytes

ROOT = Path(__file__).parent.parent
RESULTS, PLOT = "benchmarks/results/bench.jsonl", "docs/images/bench.svg"
README, LONG = "README.md", "docs/benchmarks.md"
LIGHT = "omikuji-bonsai"  # the peer whose time and size README has beside ours: accurate for its cost
COST_HEADS = {"train_seconds": "train s", "batch_ms": "ms per text", "model_mb": "model MB"}
BEGIN, END = "<!-- bench: written by benchmarks/table.py -->", "<!-- /bench -->"


def short(lines: Sequence[Line]) -> str:
    """Return the text of README about these results: a table and two sentences."""
    names = data_sets(lines)
    tested = [line for line in lines if line["part"] == "test"]
    light = next((line["title"] for line in tested if line["contestant"] == LIGHT), None)
    of_light = f"; for time and size, {light}, a fast one" if light else ""
    heads = ["data", "labels", "P@1", "PSP@5", *COST_HEADS.values()]
    return "\n".join(
        [
            pipes(heads, [_short_row(lines, data) for data in names]),
            "",
            "P@1: how often the first tag is right, in percent. PSP@5: the same for five tags, where rare labels count "
            f"more. In brackets: the best of {peer_count(lines)}{of_light}. Bold: ahead of all peers by more than two "
            "standard errors; a smaller difference is called level. "
            f"{_seeds(lines)}; {together(tested, 'machine')}.",
            "",
            f"{summary(lines, short=True)}.{cost(lines)} [All results]({LONG}).",
        ]
    )


def _short_row(lines: Sequence[Line], data: str) -> list[str]:
    ours = chosen(lines, data)
    labels = f"{next(line['labels'] for line in lines if line['data'] == data):,}"
    if ours is None:
        return [data, labels, "none", *[""] * (len(COST_HEADS) + 1)]
    compared, peers, light = comparisons(lines, data), best_peers(lines, data), light_peer(lines, data)
    pairs = [_pair(ours.means[goal], compared.get(goal), peers.get(goal), goal) for goal in ("P@1", "PSP@5")]
    costs = [
        cost_cell(ours.means[name]) + (f" ({cost_cell(light.means[name])})" if light else "") for name in COST_HEADS
    ]
    return [data, labels, *pairs, *costs]


def light_peer(lines: Sequence[Line], data: str) -> Row | None:
    """Return the peer LIGHT with plain features, if it has results on a data set."""
    return next((row for row in rows(lines, data) if row.key == (LIGHT, PLAIN) and row.seeds), None)


def cost(lines: Sequence[Line]) -> str:
    """Return a sentence on how much faster LIGHT trains, and how much smaller its models are, over the data sets."""
    pairs = [(ours, light) for data in data_sets(lines)
             if (ours := chosen(lines, data)) and (light := light_peer(lines, data))]  # fmt: skip
    if not pairs:
        return ""
    ratios = [[ours.means[name] / light.means[name] for ours, light in pairs] for name in ("train_seconds", "model_mb")]
    faster, smaller = (f"{cost_cell(min(own))} to {cost_cell(max(own))} times" for own in ratios)
    return f" It costs more: {pairs[0][1].base} trains {faster} faster, and its models are {smaller} smaller."


def text(lines: Sequence[Line]) -> str:
    """Return the text of docs/benchmarks.md about these results."""
    names = data_sets(lines)
    parts = [
        about(lines),
        "",
        pipes(["data", "labels", "ours", *GOALS, "train s"], [row_of(lines, data) for data in names]),
        "",
        f"{summary(lines)}:",
        "",
        *(f"- {standing(lines, data)}" for data in names),
        *chosen_features(lines),
        *fewer_seeds(lines),
        *unfinished(lines),
        *notes(lines),
        "",
        f"![P@1 against seconds to train, for every contestant]({PLOT.removeprefix('docs/')})",
    ]
    return "\n".join(parts)


def summary(lines: Sequence[Line], short: bool = False) -> str:
    """Return on how many data sets we are ahead of every peer in all metrics, and on how many at least level.

    short: with numbers of data sets in place of their names.
    """
    names = data_sets(lines)
    won, unbeaten = ([data for data in names if is_unbeaten(lines, data, least)] for least in (AHEAD, LEVEL))
    others = [data for data in names if data not in won]
    level = [data for data in others if data in unbeaten]
    spoken = (lambda found: f"the other {len(found)}" if found == others else f"{len(found)} more") if short else listed
    but = f" (all but {listed(others)})" if others and not short else ""
    and_level = f"; on {spoken(level)} it is ahead or level in all four" if level else ""
    early = [data for data in others if data not in level and (found := comparisons(lines, data))
             and all(one.verdict >= LEVEL for one in found.values())]  # fmt: skip
    fewer = f"; with fewer seeds than its peers it is ahead or level in all four on {spoken(early)}" if early else ""
    metrics = f"all four metrics ({', '.join(GOALS)})" if short else "all four metrics"
    return f"zipfel beats every peer in {metrics} on {len(won)} of {len(names)} data sets{but}{and_level}{fewer}"


def most_seeds(lines: Sequence[Line]) -> int:
    """Return the largest number of seeds of a contestant on a data set."""
    return max((row.seeds for data in data_sets(lines) for row in rows(lines, data)), default=0)


def about(lines: Sequence[Line]) -> str:
    """Return how the figures were measured, and how to read the table."""
    tested = [line for line in lines if line["part"] == "test"]
    dates = sorted({line["date"] for line in tested})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = f"{together(tested, 'machine')}, threads {together(tested, 'threads')}"
    return (
        f"{_seeds(lines)}; {where}, {when}; {peer_count(lines)} on the same features "
        f"([all results](../{RESULTS}), from `zipfel bench`). Our model for each data set is {_ours(lines)}. "
        "In brackets: the best result of any peer, which may be another peer in each column. "
        "Bold: ours is better by more than two standard errors; a smaller difference is called level."
    )


def _seeds(lines: Sequence[Line]) -> str:
    seeds = most_seeds(lines)
    return f"Means of {seeds} seed{'s' * (seeds != 1)}"


def peer_count(lines: Sequence[Line]) -> str:
    """Return the number of peers with results, as `11 peers`."""
    count = len({line["contestant"] for line in lines if not line["ours"] and line["status"] == OK})
    return f"{count} peer{'s' * (count != 1)}"


def _ours(lines: Sequence[Line]) -> str:
    """Return how our models were chosen."""
    picked = [row for data in data_sets(lines) if (row := chosen(lines, data)) is not None]
    ways = [
        *(["`auto`, as `zipfel train` chooses it"] if any(row.is_auto for row in picked) else []),
        *(["the one with the best P@1 on validation"] if not all(row.is_auto for row in picked) or not picked else []),
    ]
    return ", or without it ".join(ways)


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def row_of(lines: Sequence[Line], data: str) -> list[str]:
    """Return the row of a data set: our figures, bold where we are ahead, and the best peer's in brackets."""
    ours = chosen(lines, data)
    labels = f"{next(line['labels'] for line in lines if line['data'] == data):,}"
    if ours is None:
        return [data, labels, "none", *[""] * (len(GOALS) + 1)]
    compared, peers = comparisons(lines, data), best_peers(lines, data)
    pairs = [_pair(ours.means[goal], compared.get(goal), peers.get(goal), goal) for goal in GOALS]
    return [data, labels, ours.name, *pairs, ours.cell("train_seconds")]


def _pair(value: float, compared: Comparison | None, best: Row | None, goal: str) -> str:
    own = f"{value:.1f}"
    if compared is None or best is None:
        return own
    return f"{f'**{own}**' if compared.verdict == AHEAD else own} ({best.means[goal]:.1f})"


def is_unbeaten(lines: Sequence[Line], data: str, least: int) -> bool:
    """Return whether our model is at least AHEAD, or LEVEL, against every peer in all four metrics."""
    ours, peers = chosen(lines, data), best_peers(lines, data)
    if ours is None or not peers or ours.seeds < max(peer.seeds for peer in peers.values()):
        return False
    return all(one.verdict >= least for one in comparisons(lines, data).values())


def chosen_features(lines: Sequence[Line]) -> list[str]:
    """Return a line that names data sets with chosen features, and their text settings."""
    named = [f"{data}: {text}" for data in data_sets(lines) if (text := chosen_text(lines, data))]
    peers = "offered to every peer, beside plain ones; the choice counts as training of `auto`"
    return [f"- Chosen features ({peers}): {'; '.join(named)}."] if named else []


def fewer_seeds(lines: Sequence[Line]) -> list[str]:
    """Return a line that names contestants with fewer seeds than others."""
    most = most_seeds(lines)
    fewer = [row for data in data_sets(lines) for row in rows(lines, data) if 0 < row.seeds < most]
    names = [f"{row.title} on {row.data} ({row.seeds})" for row in fewer]
    return [f"- With fewer seeds: {', '.join(names)}."] if names else []


def unfinished(lines: Sequence[Line]) -> list[str]:
    """Return a line that names contestants without results: not installed, timed out, or crashed."""
    tested = [line for line in latest(lines) if line["part"] == "test" and line["status"] not in (OK, "not applicable")]
    names = dict.fromkeys(f"{titled(line)} on {line['data']} ({line['status']})" for line in tested)
    return [f"- Did not finish: {', '.join(names)}."] if names else []


def notes(lines: Sequence[Line]) -> list[str]:
    """Return what lines of results note about themselves."""
    tested = [line for line in latest(lines) if line["part"] == "test" and "note" in line]
    return [*dict.fromkeys(f"- {titled(line)} on {line['data']}: {line['note']}." for line in tested)]


def replaced(page: str, content: str, name: str) -> str:
    """Return a page with this content between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{name} must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def main(words: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="check that the pages are up to date, and write nothing")
    check = parser.parse_args(words).check
    lines = read_results(root / RESULTS)
    if not lines:
        raise SystemExit(f"{RESULTS} is missing or empty: copy results.jsonl from a run of `zipfel bench` there")
    old = {name: (root / name).read_text() for name in (README, LONG)}
    new = {name: replaced(old[name], made(lines), name) for name, made in ((README, short), (LONG, text))}
    late = [name for name in old if new[name] != old[name]]
    if check:
        sys.stdout.writelines(f"{name} is out of date; run python -m benchmarks.table\n" for name in late)
        return int(bool(late))
    for name in late:
        (root / name).write_text(new[name])
    finished = {data: [row for row in rows(lines, data) if row.seeds] for data in data_sets(lines)}
    write_bytes(root / PLOT, scatter(finished, "train_seconds", "seconds to train").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
