"""The contract of a model, which `Tagger`, `plan`, `explain`, `persistence`, `bench` and `server` rely on.

They use only the methods declared here, and know no model by name, class or attribute. To add a model, write one class
that derives from `Model` and declare it in the entry-point group `zipfel.models` (CONTRIBUTING.md, examples/own_model).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Self

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel import config
from zipfel.data.dataset import Part, Propensity
from zipfel.errors import ConfigError, did_you_mean
from zipfel.models.learner import Ensemble, HeldOut, rank_held_out
from zipfel.models.learner import Learner as Learner  # part of the contract, for those who may import only this file
from zipfel.models.learner import Predictor as Predictor
from zipfel.models.learner import evenly_spaced as evenly_spaced
from zipfel.models.learner import labelled as labelled
from zipfel.models.saving import PROBE, assign, check_tensors, own_tensors
from zipfel.models.saving import Tensors as Tensors
from zipfel.training.ranks import World
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, split_of
from zipfel.types import Ranking, Share

GROUP = "zipfel.models"  # entry points of models from other packages
BUILT_IN = {
    "glas": "zipfel.models.glas:Glas",
    "mnn": "zipfel.models.mnn:Mnn",
    "dxml": "zipfel.models.dxml:Dxml",
    "lightdxml": "zipfel.models.lightdxml:LightDxml",
    "decaf": "zipfel.models.decaf:Decaf",
    "astec": "zipfel.models.astec:Astec",
    "linear": "zipfel.models.linear:Linear",
    "blend": "zipfel.models.blend:Blend",
}


@dataclass(frozen=True)
class Lesson:
    """The data that a model learns from.

    validation: held-out points that choose the epoch, the beam and the like.  whole: train and validation together, if
    validation was split off train.  label_names: for files that name labels.  Z: [labels, features], label texts as
    features.  terms: names of the features, where they are words.
    """

    train: Part
    validation: Part | None = None
    whole: Part | None = None
    label_names: Sequence[str] | None = None
    Z: csr_array | None = None
    terms: Sequence[str] | None = None
    propensity: Propensity = Propensity()


@dataclass(frozen=True)
class Abilities:
    """Abilities beyond learning and ranking. Each flag promises a method or a setting of `Model`."""

    reads_label_texts: bool = False  # `fit` uses `lesson.Z`
    scores_label_texts: bool = False  # `text_scores`: labels that exist only for one request
    places_labels_by_text: bool = False  # `fit` uses `lesson.Z` for labels without training points only
    takes_labels_by_text: bool = False  # `add_label_texts`: new labels without training points
    remembers_points: bool = False  # `add_points`: new training points without learning
    takes_new_words: bool = False  # `add_features`: the vocabulary grows with a warm fit
    weights_points: bool = False  # `fit` draws points by `lesson.train.draws`: those with more weight more often
    splits_labels: bool = False  # the constructor takes `own`, and several processes train a range of labels each
    takes_shortlist: bool = False  # a setting limits training and search to a shortlist of candidates
    reads_mapped_data: bool = False  # `fit` reads points of mapped data from their files, and keeps no copy in memory

    def __str__(self) -> str:
        """Return the abilities in words."""
        return ", ".join(name.replace("_", " ") for name, able in dataclasses.asdict(self).items() if able)


@dataclass(frozen=True)
class Cost:
    """The cost of training beyond the steps that a rehearsal times (zipfel/plan.py)."""

    rounds: tuple[int, ...]  # points of each round of training; two where held-out points are learned from in the end
    fewest_points: int = 1  # that a rehearsal must learn from, so that its batches are as large as in training
    bytes_a_point: int = 0  # held in memory for each training point
    seconds: float = 0.0  # work that does not shrink with the points, in full: stages "counted by the model"
    lost_seconds: float = 0.0  # spent on finding that out


class Model(nn.Module):
    """A model: settings, learning, learners that rank, and what saving, plans and new labels need.

    A subclass is built with (features, labels, settings, generator). Its parameters and buffers are its weights; they
    are trained through `zipfel.training.trainer.train` and saved without further code.
    """

    presets: ClassVar[Mapping[str, config.Settings]]  # "default" at least; "paper" and "fast" where they make sense
    held_out: ClassVar[float] = 0.05  # share of train that validates, where the user gives no validation points
    most_held_out: ClassVar[int | None] = None  # points: above this the share shrinks
    own: Share | None = None  # the labels of this process, where several train the model; None: all
    by_label: tuple[str, ...] = ()  # names of parameters and buffers of which it then has these labels' rows only
    world: World = World()  # the processes that train it, while they do
    train_only: ClassVar[tuple[str, ...]] = ()  # patterns of names of tensors that prediction does not need
    settings: Any

    def __init__(self, features: int, labels: int, settings: Any, generator: torch.Generator) -> None:
        super().__init__()
        self.features, self.label_count, self.settings = features, labels, settings

    @classmethod
    def abilities(cls, settings: Any) -> Abilities:
        """Return the abilities of the model with these settings."""
        return Abilities()

    @classmethod
    def resolved(cls, settings: Any, features: int) -> Any:
        """Return the settings with values that the number of features decides."""
        return settings

    @classmethod
    def shared(cls, world: World, points: Sequence[int]) -> Share:
        """Return the labels of this process, where several train the model.  points: training points of each label."""
        return world.share(len(points))

    @classmethod
    def has(cls, method: str) -> bool:
        """Whether the model has a method that this class only declares."""
        return getattr(cls, method) is not getattr(Model, method)

    # --- Learning and ranking ----------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn, in stages of the run. A second call continues from the current weights."""
        raise NotImplementedError

    def learners(self) -> Sequence[Learner]:
        """Return the learners that rank labels, with an index each; they share memory with the model."""
        raise NotImplementedError

    def predictor(self) -> Predictor:
        """Return the predictor, which ranks points and explains scores: the only learner, or an average of several."""
        learners = self.learners()
        return learners[0] if len(learners) == 1 else Ensemble(learners)

    def ranked_deep(self, predictor: Predictor, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank k labels, [points, k], so that the right ones are among them; it may take longer than `predictor.rank`.

        A shorter ranking need not be the beginning of a longer one.
        """
        return predictor.rank(X, k, filtered)

    def ranked_held_out(self, predictor: Predictor, validation: Part) -> HeldOut | None:
        """Return a ranking of points that the model has not learned from, to calibrate scores on; None without any."""
        return rank_held_out(predictor, validation)

    # --- Several processes: with `splits_labels` ----------------------------------------------------------------------

    def check_split(self) -> None:
        """Raise ConfigError if several processes cannot train it with these settings."""

    def join(self) -> None:
        """Take the labels of all ranks, on the first rank, once training has ended; on others nothing is usable."""
        for name, own in split_of(self).items():
            part, _, attribute = name.rpartition(".")
            owner = self.get_submodule(part)
            owner.own = None  # type: ignore[assignment]
            whole = self.world.collected(getattr(owner, attribute), own)
            if isinstance(owner._parameters.get(attribute), nn.Parameter):
                setattr(owner, attribute, nn.Parameter(whole, requires_grad=False))
            else:
                setattr(owner, attribute, whole)
        self.own, self.world = None, World()
        self.to("cpu")

    # --- New labels and points: as `abilities` promises ---------------------------------------------------------------

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels without any training point yet."""
        raise NotImplementedError

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append features that a warm fit will learn; settings that the number of features decided stay decided."""
        raise NotImplementedError

    def add_label_texts(self, Z: csr_array) -> None:
        """Append labels known by their texts [n, features] only; they are ranked at once."""
        raise NotImplementedError

    def text_scores(self, predictor: Predictor, X: csr_array, Z: csr_array) -> Tensor:
        """Return scores [B, n] of points X for labels known by their texts Z [n, features] only."""
        raise NotImplementedError

    def add_points(self, part: Part) -> float:
        """Remember points without learning; return their distance from the known ones as a multiple of the usual."""
        raise NotImplementedError

    # --- Saving -------------------------------------------------------------------------------------------------------

    def tensors(self) -> Tensors:
        """Return the tensors to save: `serve` for prediction, `train` for warm starts besides."""
        tensors = Tensors({}, {})
        for name, value in (own_tensors(self) | self.more_tensors()).items():
            train = any(fnmatch(name, pattern) for pattern in self.train_only)
            (tensors.train if train else tensors.serve)[name] = value
        return tensors

    def more_tensors(self) -> State:
        """Return state that is neither parameter nor buffer, or that is saved in another form than it is held in."""
        return {}

    def take_tensors(self, more: State) -> None:
        """Restore the state that `more_tensors` returned; parameters and buffers are restored already."""

    @classmethod
    def empty(cls, settings: Any, state: State, features: int = 0, labels: int = 0) -> Self:
        """Return a new model with the parts of the saved one, and these numbers of features and labels."""
        return cls(features, labels, settings, torch.Generator())

    @classmethod
    def restored(cls, features: int, labels: int, settings: Any, tensors: Tensors) -> Self:
        """Return a saved model. Tensors are taken as they are, mapped and not copied, unless they are float16.

        Raise DataError if one is missing, or has a type or shape that does not fit.
        """
        state = {name: value.float() if value.dtype == torch.float16 else value for name, value in tensors.all.items()}
        resolved = cls.resolved(settings, features)
        model, probe = cls.empty(resolved, state), cls.empty(resolved, state, PROBE.features, PROBE.labels)
        check_tensors(state, model, probe, features, labels)
        model.features, model.label_count, model.settings = features, labels, settings
        model.take_tensors(assign(model, state))
        return model.eval()

    # --- Plans --------------------------------------------------------------------------------------------------------

    def cost(self, lesson: Lesson) -> Cost:
        """Return the cost of training on this lesson beyond its steps."""
        batch_size = getattr(self.settings, "batch_size", 1)
        return Cost((len(labelled(lesson.train)),), fewest_points=10 * batch_size)

    def rehearse(self, share: float) -> None:
        """Prepare for a rehearsal on a share of the points: epochs and batches must come out as those of training."""
        if hasattr(self.settings, "min_steps"):
            self.settings = dataclasses.replace(self.settings, min_steps=max(1, round(self.settings.min_steps * share)))

    def complete(self, lesson: Lesson, rehearsed: Part) -> float:
        """Grow to the size that training will leave, after a rehearsal; return the seconds that this takes in training.

        For models whose prediction gets slower with the number of training points.
        """
        return 0.0


# --- Models by name ---------------------------------------------------------------------------------------------------


def model_names() -> list[str]:
    """Return the names of all models: built-in ones, then those of other packages."""
    return [*BUILT_IN, *sorted(_plugins())]


def model_class(name: str) -> type[Model]:
    """Return the model of that name."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        kind: type[Model] = getattr(import_module(module), attribute)
        return kind
    plugin = _plugins().get(name)
    if plugin is None:
        raise ConfigError(f"unknown model {name!r}{did_you_mean(name, [*model_names(), 'auto'])}")
    package = plugin.dist.name if plugin.dist else "unknown"
    try:
        loaded = plugin.load()
    except Exception as error:  # whatever the package does on import
        raise ConfigError(f"model {name!r} of package {package} cannot be imported: {error!r}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Model)):
        raise ConfigError(f"model {name!r} of package {package} must derive from zipfel.models.base.Model")
    return loaded


def _plugins() -> dict[str, EntryPoint]:
    plugins = {plugin.name: plugin for plugin in entry_points(group=GROUP)}
    for name in set(plugins) & set(BUILT_IN):
        warnings.warn(
            f"the model {name!r} of {plugins.pop(name).value} is ignored: zipfel has one of this name", stacklevel=3
        )
    return plugins


def settings_of(model: str, preset: str = "default", changes: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a model: those of a preset, with some changes."""
    kind = model_class(model)
    presets = kind.presets
    if preset not in presets:
        raise ConfigError(f"unknown preset {preset!r}{did_you_mean(preset, presets)}")
    if not isinstance(changes or {}, Mapping):
        raise ConfigError(f"settings must be given by name; found {changes!r}")
    base = presets[preset]
    asked = next((name for name in changes or {} if str(name).startswith("shortlist")), None)
    if asked is not None and not kind.abilities(base).takes_shortlist:
        raise ConfigError(
            f"{model} has no setting {asked!r}: it takes no shortlist; `zipfel models` lists the models that do"
        )
    return config.from_mapping(type(base), {**dataclasses.asdict(base), **(changes or {})})
