"""Front matter of a card: the YAML that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zipfel.card.figures import Figures
from zipfel.errors import ConfigError, quoted

TASK = {"type": "text-classification", "name": "Extreme multi-label classification"}
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True)
class Stated:
    """What only people know of a model.

    license: an identifier of the Hub, such as apache-2.0; None is unknown.  languages: of its texts, such as en.
    datasets: identifiers of its data on the Hub, such as owner/name.
    """

    license: str | None = None
    languages: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the identifiers."""
        if self.license is not None:
            _check("license", self.license, r"[a-z0-9][a-z0-9.-]*", "an identifier such as apache-2.0 or cc-by-4.0")
        for code in self.languages:
            _check("language", code, r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", "a code such as en or pt-BR")
        for name in self.datasets:
            _check("dataset", name, r"[\w.-]+(/[\w.-]+)?", "a name on the Hub such as owner/name")


def _check(what: str, value: str, pattern: str, expected: str) -> None:
    if not re.fullmatch(pattern, value, re.ASCII):
        raise ConfigError(f"{what} must be {expected}; found {quoted(value)}")


def front_matter(name: str, about: Mapping[str, Any], stated: Stated, figures: Figures | None = None) -> str:
    """Return the front matter.  name: of the model.  about: content of its `model.json`."""
    matter: dict[str, Any] = {
        "library_name": "zipfel",
        "pipeline_tag": TASK["type"],
        "license": stated.license or "unknown",
        "tags": ["zipfel", "extreme-multi-label-classification", "multi-label-classification", about["model"]],
    }
    if stated.languages:
        matter["language"] = list(stated.languages)
    if stated.datasets:
        matter["datasets"] = list(stated.datasets)
    if figures is not None:
        matter["metrics"] = ["precision", "recall", "ndcg"]
        matter["model-index"] = [{"name": name, "results": [_result(figures, stated)]}]
    return "---\n" + "\n".join(_lines(matter)) + "\n---\n"


def _result(figures: Figures, stated: Stated) -> dict[str, Any]:
    data = figures.data or "data"
    kind = stated.datasets[0] if len(stated.datasets) == 1 else data
    values = [
        {"type": name.lower().replace("@", "_at_"), "name": name, "value": round(interval.value, 2)}
        for name, interval in figures.metrics.items()
    ]
    return {"task": TASK, "dataset": {"name": data, "type": kind, "split": figures.part}, "metrics": values}


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of a mapping or a list in block style; texts are quoted, so that none is read as another type."""
    for key, item in value.items() if isinstance(value, Mapping) else ((None, item) for item in value):
        head = "-" if key is None else f"{key}:"
        if isinstance(item, str | int | float):
            yield f"{head} {_scalar(item)}"
        elif key is None:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
        else:
            yield head
            yield from (f"  {line}" for line in _lines(item))


def _scalar(value: str | float) -> str:
    """Return a value as YAML and JSON write it; characters that YAML forbids are escaped.

    >>> _scalar("no"), _scalar(0.5)
    ('"no"', '0.5')
    """
    if not isinstance(value, str):
        return json.dumps(value)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def names(values: Sequence[str]) -> str:
    """Return names as a phrase; "unknown" for none."""
    return ", ".join(values) or "unknown"
