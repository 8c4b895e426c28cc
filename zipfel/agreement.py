"""Agreement of people with a model: how many of the labels that it showed were accepted, by rank, label and week."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from zipfel.data.corrections import Corrections, Decision

RANKS = 10  # ranks that are counted apart
SURE = 1.96  # standard deviations of a 95 % interval


class Share(NamedTuple):
    """How many of some labels were accepted."""

    accepted: int
    decided: int

    @property
    def value(self) -> float:
        """The accepted share; NaN if there are no labels."""
        return self.accepted / self.decided if self.decided else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share.

        >>> [round(end, 3) for end in Share(8, 10).interval]
        [0.49, 0.943]
        """
        if not self.decided:
            return 0.0, 1.0
        spread = SURE**2 / self.decided
        middle = (self.value + spread / 2) / (1 + spread)
        half = SURE / (1 + spread) * math.sqrt(self.value * (1 - self.value) / self.decided + spread / 4 / self.decided)
        return max(0.0, middle - half), min(1.0, middle + half)

    def as_json(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return {"accepted": self.accepted, "decided": self.decided, "agreement": self.value, "interval": self.interval}


@dataclass(frozen=True)
class Agreement:
    """What people decided. Labels that the model did not show are under `added`, and count nowhere else.

    ranks: by the rank at which a label was shown, where it is known; more than RANKS as "11+".  weeks: by Monday.
    rejected: (label, times rejected, times decided), most often first.  added: (label, times).
    """

    texts: int
    all: Share
    ranks: dict[str, Share]
    weeks: dict[str, Share]
    models: dict[str, Share]
    rejected: Sequence[tuple[str, int, int]]
    added: Sequence[tuple[str, int]]
    overruled: int

    @classmethod
    def of(cls, corrections: Corrections) -> Agreement:
        """Count the last decision on each label of each text."""
        settled, overruled = corrections.settled()
        shown = [each for each in settled if each.rank != 0]
        decided, refused = _counted(shown), _counted(each for each in shown if not each.accepted)
        rejected = sorted(((label, count, decided[label]) for label, count in refused.items()), key=_by_count)
        added = _counted(each for each in settled if each.rank == 0 and each.accepted)
        return cls(
            len({each.document for each in settled}), _share(shown),
            dict(sorted(_shares(shown, _rank).items(), key=lambda item: int(item[0].rstrip("+")))),
            dict(sorted(_shares(shown, _week).items())), dict(sorted(_shares(shown, lambda one: one.model).items())),
            rejected, sorted(added.items(), key=_by_count), overruled,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return all of it for a JSON file."""
        shares = {name: {key: share.as_json() for key, share in getattr(self, name).items()}
                  for name in ("ranks", "weeks", "models")}  # fmt: skip
        return {
            "texts": self.texts, "all": self.all.as_json(), **shares,
            "rejected": [dict(zip(("label", "rejected", "decided"), row, strict=True)) for row in self.rejected],
            "added": [dict(zip(("label", "added"), row, strict=True)) for row in self.added],
            "overruled": self.overruled,
        }  # fmt: skip


def _by_count(row: tuple[Any, ...]) -> tuple[int, str]:
    return -row[1], row[0]


def _counted(decisions: Iterable[Decision]) -> Counter[str]:
    return Counter(each.label for each in decisions)


def _share(decisions: Sequence[Decision]) -> Share:
    return Share(sum(bool(each.accepted) for each in decisions), len(decisions))


def _shares(decisions: Iterable[Decision], key: Callable[[Decision], str]) -> dict[str, Share]:
    """Return the share of accepted labels by a key; decisions whose key is empty are left out."""
    groups: dict[str, list[Decision]] = {}
    for each in decisions:
        groups.setdefault(key(each), []).append(each)
    return {name: _share(group) for name, group in groups.items() if name}


def _rank(one: Decision) -> str:
    if one.rank is None:
        return ""
    return str(one.rank) if one.rank <= RANKS else f"{RANKS + 1}+"


def _week(one: Decision) -> str:
    """Return the Monday of the week (UTC) of a decision."""
    if not one.time:
        return ""
    day = datetime.fromisoformat(one.time).date()
    return (day - timedelta(days=day.weekday())).isoformat()
