"""Results as Markdown: for each data set a table of all contestants, the failures, and our standing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zipfel.bench.results import CHOSEN, Line, features_from
from zipfel.bench.rows import ACCURACIES, COSTS, Row, cost_cell, data_sets, rows, tested_lines, titled
from zipfel.bench.standing import chosen, standing


def markdown(lines: Sequence[Line]) -> str:
    """Return a Markdown page: for each data set a table of all contestants, the failures, and our standing."""
    return "\n".join(_section(lines, data) for data in data_sets(lines))


def _section(lines: Sequence[Line], data: str) -> str:
    contestants = rows(lines, data)
    if not contestants:
        return f"## {data}\n\nNo tests yet.\n"
    picked = chosen(lines, data)
    tested = [line for own in tested_lines(lines, data).values() for line in own]
    about = "; ".join([together(tested, "machine"), f"threads {together(tested, 'threads')}",
                       f"limit {together(tested, 'limit')} s", f"commit {together(tested, 'commit')}"])  # fmt: skip
    seeds = max(row.seeds for row in contestants)
    heads = ["contestant", *ACCURACIES, *COSTS.values()]
    names = (*ACCURACIES, *COSTS)
    body = [[_name(row, picked), *(_best(row, name, contestants) for name in names)] for row in contestants]
    notes = dict.fromkeys(f"- {titled(line)}: {line['note']}" for line in tested if "note" in line)
    text = chosen_text(lines, data)
    failed = [f"- {row.title}: {why}" for row in contestants for why in dict.fromkeys(map(_failure, row.failures))]
    parts = [
        f"## {data}\n",
        f"Mean ± standard deviation of {seeds} seed{'s' * (seeds != 1)}. {about}.\n",
        pipes(heads, body),
        *(["", *failed, *notes] if failed or notes else []),
        *(["", f"Chosen features: {text}."] if text else []),
        "",
        standing(lines, data),
        "",
    ]
    return "\n".join(parts)


def chosen_text(lines: Sequence[Line], data: str) -> str:
    """Return the text settings of a data set's chosen features, and the seconds of the choice; "" without such."""
    tests = [line for own in tested_lines(lines, data).values() for line in own if features_from(line) == CHOSEN]
    changes = [[f"{name}={_spoken(value)}" for name, value in line["text"].items()] for line in tests]
    settings = dict.fromkeys(", ".join(changed) or "the usual ones" for changed in changes)
    seconds = max((line["text_choice_seconds"] for line in tests), default=0.0)
    return f"{'; or '.join(settings)} (chosen in {cost_cell(seconds)} s)" if tests else ""


def _spoken(value: object) -> str:
    """Return a text setting as the command line has it.

    >>> _spoken({"title": 3.0}), _spoken(True)
    ('title:3', 'true')
    """
    if isinstance(value, dict):
        return ",".join(f"{name}:{item:g}" for name, item in value.items())
    return str(value).lower()


def together(lines: Iterable[Line], name: str) -> str:
    """Return all values of an entry, so that lines of different runs cannot pass for one run."""
    values = dict.fromkeys(line[name] for line in lines)
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _name(row: Row, picked: Row | None) -> str:
    why = "ours" if row.is_auto else "chosen on validation"
    marked = f"**{row.name}** ({why})" if row == picked else row.name
    statuses = dict.fromkeys(line["status"] for line in row.failures)
    return f"{marked}: {', '.join(statuses)}" if statuses else marked


def _best(row: Row, name: str, contestants: Sequence[Row]) -> str:
    """Return a cell, bold if its accuracy is the best of all."""
    cell = row.cell(name)
    most = max(other.means.get(name, -1.0) for other in contestants)
    return f"**{cell}**" if cell and name in ACCURACIES and row.means[name] == most else cell


def _failure(line: Line) -> str:
    last = next((text for text in reversed(str(line.get("why", "")).splitlines()) if text.strip()), "")
    return f"{line['status']}: {last.strip()[:200]}"


def pipes(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    table = [heads, ["---"] + ["--:"] * (len(heads) - 1), *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table)
