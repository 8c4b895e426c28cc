"""Where features come from: the usual text settings, or those that the train part of a data set chooses.

The choice is made once for a data set, on train, by the code of `zipfel train`, and kept in a file: all contestants and
all seeds have the same features.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from zipfel.bench.results import CHOSEN, PLAIN
from zipfel.choice import AUTO, chosen, has_label_text
from zipfel.data.dataset import Dataset, fingerprint
from zipfel.data.formats.files import write_bytes
from zipfel.data.labels import names_as_texts
from zipfel.errors import ConfigError

KEPT = "text.json"


@dataclass(frozen=True)
class Origin:
    """Text settings of the features, and what their choice has cost."""

    features_from: str = PLAIN
    text: Mapping[str, Any] = field(default_factory=dict)
    text_choice_seconds: float = 0.0
    text_choice_cpu_seconds: float = 0.0
    train_model: str | None = None  # main model that `zipfel train` takes for the texts

    @property
    def about(self) -> dict[str, Any]:
        """Entries of a stage and of a line of results."""
        return dataclasses.asdict(self) if self.features_from == CHOSEN else {"features_from": self.features_from}

    def completed(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return a line of `auto` with the cost of the choice in its training time, as `zipfel train` pays it too.

        With a note if `zipfel train` would take another model: it sees texts, and not how many features they have.
        """
        costs = {"train_seconds": self.text_choice_seconds, "train_cpu_seconds": self.text_choice_cpu_seconds}
        paid = {name: line[name] + cost for name, cost in costs.items() if name in line}
        main = line.get("chosen", {}).get("main")
        differs = None not in (main, self.train_model) and main != self.train_model
        note = {"note": f"on these texts `zipfel train` takes {self.train_model}, not {main}"} if differs else {}
        return {**line, **paid, **note}


def origin_of(dataset: Dataset, features: str, folder: Path, threads: int) -> Origin:
    """Return the origin of a data set's features; points that are no texts leave nothing to choose.

    folder: where the choice is kept, and read from if it was made before.
    """
    if features == PLAIN or dataset.train.X is not None or dataset.train.texts is None:
        return Origin()
    path, data = folder / KEPT, fingerprint(dataset, (dataset.train,))
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = {"data": data, **dataclasses.asdict(_made(dataset, threads))}
        write_bytes(path, orjson.dumps(made, option=orjson.OPT_INDENT_2))
    kept = orjson.loads(path.read_bytes())
    if kept.pop("data") != data:
        raise ConfigError(f"{path} is the choice for another data set named {dataset.name!r}; use another --out")
    return Origin(**kept)


def _made(dataset: Dataset, threads: int) -> Origin:
    """Choose the text settings on train, with as many threads as a contestant has."""
    from joblib.externals.loky import get_reusable_executor

    from zipfel.fitting import chosen_device
    from zipfel.text_choice import chosen_text
    from zipfel.training.machine import set_threads
    from zipfel.training.run import Run

    set_threads(threads)
    device = chosen_device("auto")
    wall, cpu = time.perf_counter(), _cpu_seconds()
    choice = chosen_text(dataclasses.replace(dataset, validation=None, test=None), {}, Run(seed=0), device)
    seconds = time.perf_counter() - wall
    get_reusable_executor(reuse=True).shutdown(wait=True)  # ended worker processes count as CPU seconds
    model = chosen(dataset, AUTO, "default", device.type).main.model
    return Origin(CHOSEN, choice.text, seconds, _cpu_seconds() - cpu, model)


def with_names_as_texts(dataset: Dataset) -> Dataset:
    """Return a data set of texts with names for missing label texts, where `zipfel train` reads them."""
    if not dataset.label_names or not has_label_text(dataset):
        return dataset
    return dataclasses.replace(dataset, label_texts=names_as_texts(dataset.label_names, dataset.label_texts))


def _cpu_seconds() -> float:
    """Return the CPU seconds of all threads, and of child processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
