"""The contestants: zipfel's models and their peers, with the settings of their recipes for each data set.

A recipe is a TOML file: `[base]` has settings, `[data.NAME]` overrides them for a data set, `[tune]` has lists of
values, of which the best by P@1 on validation are used. `recipes/MODEL.toml` is a model of zipfel,
`recipes/peers/NAME.toml` a peer, with `adapter`, `environment`, `title`, and `label_texts` if it needs label texts.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zipfel.bench import machine
from zipfel.choice import AUTO
from zipfel.config import read_toml
from zipfel.errors import ConfigError, DataError, did_you_mean

TABLES = {"base", "data", "tune"}
ABOUT = {"adapter", "environment", "title", "label_texts"}
FAILED = "failed.txt"  # what install.py leaves instead of an environment


@dataclass(frozen=True)
class Recipe:
    """Settings, overrides per data set, values to tune, and entries on the peer."""

    base: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, data: str) -> dict[str, Any]:
        """Return the settings for a data set."""
        return {**self.base, **self.data.get(data, {})}

    def grid(self) -> list[dict[str, Any]]:
        """Return all combinations of the values to tune."""
        return [dict(zip(self.tune, values, strict=True)) for values in itertools.product(*self.tune.values())]


@dataclass(frozen=True)
class Contestant:
    """A model or peer to train, predict with and measure."""

    name: str
    title: str
    python: Path
    adapter: Path
    recipe: Recipe
    model: Mapping[str, str] = field(default_factory=dict)  # for zipfel's models: name, and preset if given

    @property
    def ours(self) -> bool:
        """Whether it is a model of zipfel."""
        return bool(self.model)

    @property
    def is_auto(self) -> bool:
        """Whether it is zipfel without a named model: a rule chooses the model, and `zipfel train` the features."""
        return self.model.get("model") == AUTO

    @property
    def needs_label_texts(self) -> bool:
        """Whether it cannot run on labels without texts."""
        return bool(self.recipe.about.get("label_texts"))

    def settings(self, data: str) -> dict[str, Any]:
        """Return the settings for a data set; a preset named on the command line is used as it is."""
        return dict(self.model) if "preset" in self.model else {**self.model, **self.recipe.settings(data)}

    def missing(self) -> str | None:
        """Return why it cannot run here, or None."""
        if self.python.exists():
            return None
        log = self.python.parent.parent / FAILED
        return (
            log.read_text().strip()[-400:]
            if log.exists()
            else f"it has no environment; run benchmarks/peers/install.py {self.name}"
        )


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; unknown entries are an error."""
    values = read_toml(path)
    for name in values:
        if name not in TABLES | ABOUT:
            raise DataError(f"unknown entry {name!r}{did_you_mean(name, sorted(TABLES | ABOUT))}", path)
    tune = values.get("tune", {})
    if not all(isinstance(tried, list) and tried for tried in tune.values()):
        raise DataError("[tune] must have non-empty lists of values to try", path)
    about = {name: values[name] for name in ABOUT if name in values}
    return Recipe(values.get("base", {}), values.get("data", {}), tune, about)


def checkout() -> Path:
    """Return the `benchmarks` folder, which exists only in a checkout, beside the package."""
    folder = machine.PACKAGE.parent / "benchmarks"
    if not (folder / "recipes").is_dir():
        raise ConfigError(f"bench needs a checkout of zipfel: {folder}, with recipes and peers, does not exist")
    return folder


def models(names: str, folder: Path) -> list[Contestant]:
    """Return models as contestants: `all`, `none`, or names such as MODEL or MODEL:PRESET, separated by commas.

    A name may be `auto`, which trains the model that zipfel chooses by itself.
    """
    from zipfel.models.base import model_names  # imports torch, which takes seconds

    return [_model(name, folder) for name in _named(names, [AUTO, *sorted(model_names())], "model")]


def peers(names: str, folder: Path, environments: Path) -> list[Contestant]:
    """Return peers: `all`, `none`, or names, separated by commas."""
    known = sorted(path.stem for path in (folder / "recipes" / "peers").glob("*.toml"))
    return [_peer(name, folder, environments) for name in _named(names, known, "peer")]


def _named(names: str, known: Sequence[str], kind: str) -> list[str]:
    if names in ("all", "none"):
        return list(known) if names == "all" else []
    words = list(dict.fromkeys(word.strip() for word in names.split(",") if word.strip()))
    for word in words:
        if word.partition(":")[0] not in known:
            raise ConfigError(f"unknown {kind} {word!r}{did_you_mean(word, known)}")
    return words


def _model(name: str, folder: Path) -> Contestant:
    model, _, preset = name.partition(":")
    about = {"model": model, **({"preset": preset} if preset else {})}
    path = folder / "recipes" / f"{model}.toml"
    recipe = read_recipe(path) if path.exists() else Recipe({"preset": "default"})  # a model of another package
    adapter = folder / "peers" / "zipfel_adapter.py"
    return Contestant(name, f"zipfel {name}", Path(sys.executable), adapter, recipe, about)


def _peer(name: str, folder: Path, environments: Path) -> Contestant:
    path = folder / "recipes" / "peers" / f"{name}.toml"
    if ":" in name:
        raise ConfigError(f"a peer has no presets; found {name!r}")
    recipe = read_recipe(path)
    for wanted in ("adapter", "environment", "title"):
        if wanted not in recipe.about:
            raise DataError(f"{wanted!r} is missing", path)
    python = environments.absolute() / recipe.about["environment"] / "bin" / "python"
    adapter = folder / "peers" / f"{recipe.about['adapter']}_adapter.py"
    return Contestant(name, recipe.about["title"], python, adapter, recipe)
