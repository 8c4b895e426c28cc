"""How good the automatic choice of a model is: `python -m benchmarks.default_rule DATA [DATA ...] [key=value ...]`.

Trains the model that `auto` chooses and each of the others on a part of train, and evaluates them on the rest; with
test=true, then trains on all of train and evaluates on test. One JSON line each: P@1 of all models, and how far auto is
behind the best. DATA is a folder, or a data set that was not used to make the rule: `synthetic` (labels without texts),
`synthetic-texts` (labels with texts), or `docstrings` (docstrings of installed packages, tagged with the parts of their
modules' names). Keys: seeds=0,1,2, validation=0.1 (share of train), models=glas,mnn, preset=fast, test=true.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.given import dataset_of
from zipfel.data.splits import hold_out
from zipfel.data.synthetic import Synthetic, make
from zipfel.evaluate import evaluate
from zipfel.models.base import model_names
from zipfel.tagger import Tagger

PACKAGES = ("numpy", "scipy", "sklearn", "gensim", "rich", "torch")
SYNTHETIC = Synthetic(points=20_000, labels=2000, noise=0.2, seed=7)


def loaded(name: str) -> Dataset:
    """Return a data set with a test part."""
    if name == "docstrings":
        return docstrings()
    if name == "synthetic":
        return dataclasses.replace(make(SYNTHETIC), Z=None)
    return make(dataclasses.replace(SYNTHETIC, texts=True)) if name == "synthetic-texts" else read(name)


def docstrings() -> Dataset:
    """Return the docstrings of public functions and classes, tagged with the parts of their modules' names."""
    tags = {doc: names for package in PACKAGES for doc, names in _documented(package)}
    dataset = dataset_of(list(tags), list(tags.values()))
    kept = np.flatnonzero(dataset.label_counts >= 3)
    return dataclasses.replace(hold_out(dataset.with_labels(kept), 0.2), name="docstrings")


def _documented(package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield docstrings of public functions and classes, with tags; files are parsed, not imported."""
    root = Path(str(find_spec(package).origin)).parent  # type: ignore[union-attr]
    for path in sorted(root.rglob("*.py")):
        parts = (package, *path.relative_to(root).with_suffix("").parts)
        if "tests" in parts or "test" in path.stem:
            continue
        tags = [part for part in parts if not part.startswith("_")]
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:  # needs a later Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                doc = ast.get_docstring(node) or ""
                if len(doc.split()) >= 5:
                    yield doc, tags


def precision(dataset: Dataset, part: str, model: str, preset: str, seed: int) -> tuple[float, str]:
    """Train once, and return P@1 on a part, and the model and preset."""
    tagger = Tagger(model, preset, seed=seed).fit_dataset(dataclasses.replace(dataset, validation=None))
    points = dataset.parts[part]
    ranking = tagger.rank(points.X if tagger.features_ is None else points.texts, 1, points.filtered)
    return evaluate(ranking, dataset, part, [1]).values["P@1"], f"{tagger.chosen_.model}, {tagger.chosen_.preset}"


def compared(dataset: Dataset, part: str, models: list[str], preset: str, seeds: list[int]) -> dict[str, object]:
    """Return P@1 of auto and of each model, means over seeds, and how far auto is behind the best."""
    runs = {model: [precision(dataset, part, model, preset, seed) for seed in seeds] for model in ("auto", *models)}
    means = {model: round(float(np.mean([value for value, _ in found])), 2) for model, found in runs.items()}
    behind = round(max(means.values()) - means["auto"], 2)
    return {"part": part, "chosen": runs["auto"][0][1], "P@1": means, "behind": behind}


def main(words: list[str]) -> None:
    names = [word for word in words if "=" not in word]
    options = words_of(word for word in words if "=" in word)
    seeds = [int(seed) for seed in options.get("seeds", "0").split(",")]
    models, preset = options.get("models", ",".join(model_names())).split(","), options.get("preset", "default")
    for name in names:
        dataset = loaded(name)
        held = hold_out(
            dataclasses.replace(dataset, validation=None), float(options.get("validation", "0.1")), into="validation"
        )
        about = {"data": dataset.name or name, "sizes": dataset.sizes._asdict(), "preset": preset, "seeds": seeds}
        record("default_rule", {**about, **compared(held, "validation", models, preset, seeds)}, seeds[0], ("torch",))
        sys.stdout.flush()
        if options.get("test") == "true":
            record("default_rule", {**about, **compared(dataset, "test", models, preset, seeds)}, seeds[0], ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
