"""Search for the settings of a model within a time budget: `tune` in Python, `zipfel tune` at the command line.

Needs Optuna, which only `search.py` and `folder.py` import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zipfel.errors import ConfigError, check_installed

if TYPE_CHECKING:
    from zipfel.tagger import Tagger
    from zipfel.tune.results import Tuned as Tuned
    from zipfel.tune.watching import Watcher

UNITS = {"s": 1, "m": 60, "h": 3600}
BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)")


def tune(
    tagger: Tagger,
    X: Any,
    y: Any = None,
    *,
    label_texts: Any = None,
    label_names: Any = None,
    parents: Mapping[Any, Any] | None = None,
    ancestors: bool = False,
    budget: str | float = "30m",
    trials: int | None = None,
    folder: Path | str | None = None,
    fresh: bool = False,
    watcher: Watcher | None = None,
) -> Tuned:
    """Search for settings of a tagger's model; return an unfitted tagger with the best ones, and all trials.

    tagger: its `settings` and `text` stay as they are; other settings with a declared search range are searched.  X, y,
    label_texts, label_names, parents, ancestors: as in `Tagger.fit`; X may also be a `Dataset`, without y.  budget:
    seconds, or such as "90s", "30m" or "2h", for all trials together, those of a resumed search included.  trials:
    maximum number.  folder: where the study and its results are kept; the same call resumes it, unless `fresh`.

    Each trial is judged on held-out points, by nDCG@5 + PSnDCG@5. The first trial has the tagger's own settings. Ctrl-C
    ends the search with the best so far.
    """
    check_installed("a search for settings", "tune", "optuna", "matplotlib")
    from zipfel.tune.search import Limits, searched

    seconds = seconds_of(budget)
    if trials is not None and trials < 1:
        raise ConfigError(f"trials must be at least 1; found {trials}")
    from zipfel.data.dataset import Dataset
    from zipfel.data.given import dataset_of
    from zipfel.data.points import points_of

    if isinstance(X, Dataset):
        dataset = X
    else:
        points = points_of(X, tagger.text_columns or ())
        dataset = dataset_of(points, y, label_texts, label_names, tagger.sep, parents=parents, ancestors=ancestors)
    limits = Limits(seconds, trials)
    return searched(tagger, dataset, limits, None if folder is None else Path(folder), fresh, watcher)


def seconds_of(budget: str | float) -> float:
    """Return a budget in seconds.

    >>> seconds_of("90s"), seconds_of("1h30m"), seconds_of(20)
    (90.0, 5400.0, 20.0)
    """
    problem = ConfigError(f"the budget must be a time such as 90s, 30m or 2h; found {budget!r}")
    if isinstance(budget, str):
        if not re.fullmatch(rf"(?:{BUDGET.pattern}\s*)+", budget.strip()):
            raise problem
        seconds = sum(float(number) * UNITS[unit] for number, unit in BUDGET.findall(budget))
    elif isinstance(budget, bool) or not isinstance(budget, int | float):
        raise problem
    else:
        seconds = float(budget)
    if not 0 < seconds < float("inf"):
        raise problem
    return seconds
