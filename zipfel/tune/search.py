"""The search itself: Optuna suggests settings (TPE), and prunes trials by successive halving.

A trial is trained on a ninth of the points, on a third and on all; if others did better with as many points, it ends
early. The validation of training would not do for that: stages of models measure different things, and some nothing.

The draws of a trial derive from (seed, number of the trial), so a resumed search draws what an uninterrupted one does.
A stopped trial resumes with the first number of points that it was not judged with.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from zipfel import config
from zipfel.choice import Choice
from zipfel.data.dataset import Dataset, fingerprint
from zipfel.data.formats.files import write_bytes
from zipfel.data.text import TextSettings
from zipfel.errors import ConfigError, DataError, ZipfelError
from zipfel.models.base import settings_of
from zipfel.tagger import Tagger
from zipfel.training.progress import span
from zipfel.training.run import Run
from zipfel.tune.clock import BudgetSpent, Clock
from zipfel.tune.folder import StudyFolder
from zipfel.tune.judging import REDUCTION, Judge
from zipfel.tune.plots import plot
from zipfel.tune.results import PLOT, Status, Trial, Tuned, best_of
from zipfel.tune.space import Space, space_of
from zipfel.tune.watching import Standing, Watcher

NAME = "zipfel tune"  # of the study
MOST_FAILURES = 5  # trials, after which a search ends if none has succeeded
DRAWN = 10  # trials before Optuna suggests settings by what it has learned
KEPT = 0.5  # of the settings that a search starts from, in each of these
FEWEST = 10  # trials from which the importance of settings is computed
STATUS: dict[TrialState, Status] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "stopped",  # if no process runs it
}


class Limits(NamedTuple):
    """Where a search ends: seconds and number of trials, those of the resumed study included."""

    seconds: float
    trials: int | None = None


def searched(
    tagger: Tagger, dataset: Dataset, limits: Limits, folder: Path | None = None, fresh: bool = False,
    watcher: Watcher | None = None,
) -> Tuned:  # fmt: skip
    """Search for settings on a data set; see `zipfel.tune.tune`."""
    choice, settings = tagger.choice(dataset)
    own, handed = choice.divided(tagger.settings)
    if choice.settings:  # a blend was chosen, and the settings of its main model are searched
        parameters = {"model": choice.main.model, "preset": choice.preset, "settings": handed}
        tagger = Tagger(**{**tagger.get_params(deep=False), **parameters})
        settings = tagger.choice(dataset)[1]
    space = space_of(settings, tagger.settings or {}, tagger.text or {}, dataset)
    judge = Judge.of(dataset, tagger.seed)
    parts = [part for name, part in dataset.parts.items() if name != "test"]
    named, text = dataclasses.asdict(settings), dataclasses.asdict(config.from_mapping(TextSettings, tagger.text or {}))
    inputs = {
        "model": choice.main.model,
        "preset": choice.preset,
        "settings": {name: named[name] for name in tagger.settings or {}},
        "text": {f"text.{name}": text[name] for name in tagger.text or {}},
        "data": fingerprint(dataset, parts),
        "what is searched": space.digest,
    }
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with StudyFolder(folder, tagger.seed).kept(inputs, fresh) as storage:
            pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)
            study = optuna.create_study(
                storage=storage, study_name=NAME, direction="maximize", pruner=pruner, load_if_exists=True
            )
            return Search(tagger, choice, own, space, judge, study, folder, watcher or Watcher()).run(limits)
    finally:
        optuna.logging.set_verbosity(verbosity)


@dataclasses.dataclass
class Search:
    """A study, and everything that its trials need.

    tagger: of the searched model: the chosen or named one, or the main model of a chosen blend.  own: settings of such
    a blend beside those of its main model.
    """

    tagger: Tagger
    choice: Choice
    own: Mapping[str, Any]
    space: Space
    judge: Judge
    study: Study
    folder: Path | None
    watcher: Watcher
    ends: float = 0.0

    def run(self, limits: Limits) -> Tuned:
        """Try settings until a limit is reached, or until Ctrl-C; return the best."""
        self.ends = time.monotonic() + limits.seconds - sum(trial.seconds for trial in self.trials())
        interrupted = False
        try:
            while not self.is_over(limits):
                self.attempt(self.next_trial())
                if best_of(self.trials()) is not None:
                    self.write(self.tuned())
        except BudgetSpent:
            pass
        except KeyboardInterrupt:
            interrupted = True
        self.check_judged(limits, interrupted)
        tuned = dataclasses.replace(self.tuned(), importance=self.importance(), interrupted=interrupted)
        self.write(tuned)
        if self.folder is not None:
            write_bytes(self.folder / PLOT, plot(tuned).encode())
        return tuned

    def is_over(self, limits: Limits) -> bool:
        """Whether a limit is reached, or only failures were seen."""
        trials = self.trials()
        ended = [trial for trial in trials if trial.status != "stopped"]
        failing = len(ended) >= MOST_FAILURES and best_of(trials) is None
        full = limits.trials is not None and len(ended) >= limits.trials
        return failing or full or time.monotonic() >= self.ends

    def check_judged(self, limits: Limits, interrupted: bool) -> None:
        """Raise an error if no trial was judged."""
        trials = self.trials()
        if best_of(trials) is not None:
            return
        if interrupted:
            raise KeyboardInterrupt
        failed = [trial for trial in trials if trial.status == "failed"]
        if failed:
            raise DataError(f"all {len(failed)} trials failed; the last: {failed[-1].error}")
        points = f"{self.judge.sizes[0]:,} points"
        raise ConfigError(f"the budget of {span(limits.seconds)} ended before the first trial was judged, which is "
                          f"trained on {points}; give it more time")  # fmt: skip

    # --- Trials -------------------------------------------------------------------------------------------------------

    def next_trial(self) -> optuna.Trial:
        """Return the trial that was stopped, or a new one; the first has the settings that the search starts from.

        Trials before Optuna has learned from enough of them keep about half of these settings, and draw the others.
        """
        known = self.study.get_trials(deepcopy=False)
        pending = [trial for trial in known if trial.state in (TrialState.RUNNING, TrialState.WAITING)]
        number = pending[0].number if pending else len(known)
        draws = np.random.default_rng([self.tagger.seed, number])
        seed, kept = int(draws.integers(2**32)), draws.random(len(self.space.parameters)) < KEPT
        self.study.sampler = TPESampler(n_startup_trials=DRAWN, seed=seed, constant_liar=False)
        if pending and pending[0].state == TrialState.RUNNING:
            return optuna.Trial(self.study, pending[0]._trial_id)
        if not pending and number < DRAWN:
            start = self.space.start.items()
            self.study.enqueue_trial({name: value for (name, value), keep in zip(start, kept, strict=True)
                                      if keep or number == 0})  # fmt: skip
        return self.study.ask()

    def attempt(self, trial: optuna.Trial) -> None:
        """Judge a trial, and tell Optuna."""
        start, before = time.monotonic(), trial.user_attrs.get("seconds", 0.0)
        try:
            state, value = self.judged(trial)
        finally:
            trial.set_user_attr("seconds", round(before + time.monotonic() - start, 3))
        self.study.tell(trial, value, state)
        trials = self.trials()
        self.watcher.ended(trials[-1], best_of(trials), max(0.0, self.ends - time.monotonic()))

    def judged(self, trial: optuna.Trial) -> tuple[TrialState, float | None]:
        """Train and judge with more and more points; return how the trial ended, and the objective."""
        values = self.space.suggested(trial)
        reported = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        value = 0.0
        for power, size in enumerate(self.judge.sizes):
            figures: dict[str, dict[str, float]] = trial.user_attrs.get("figures", {})
            if str(size) not in figures:
                try:
                    measured = self.known(values, size) or self.measured(values, size, trial.number)
                except Exception as error:  # whatever a model does with settings that nobody has tried
                    trial.set_user_attr("error", reason(error))
                    return TrialState.FAIL, None
                figures = {**figures, str(size): measured}
                trial.set_user_attr("figures", figures)
            value = sum(figures[str(size)].values())
            if REDUCTION**power not in reported:
                trial.report(value, REDUCTION**power)
            if size < self.judge.sizes[-1] and trial.should_prune():
                return TrialState.PRUNED, None
        return TrialState.COMPLETE, value

    def known(self, values: Mapping[str, Any], size: int) -> dict[str, float] | None:
        """Return the metrics of an earlier trial with the same settings, which need not be trained again."""
        for trial in self.study.get_trials(deepcopy=False):
            figures: dict[str, dict[str, float]] = trial.user_attrs.get("figures", {})
            if str(size) in figures and self.space.read(trial.params) == values:
                return figures[str(size)]
        return None

    def measured(self, values: Mapping[str, Any], size: int, number: int) -> dict[str, float]:
        """Return the metrics of these settings after training on this many points."""
        tagger, best = self.tagger_with(values), best_of(self.trials())

        def tick() -> None:
            self.watcher.update(Standing(number, size, best, self.ends - time.monotonic()))

        clock = Clock(self.ends, tick)
        clock.look()
        tagger.fit_dataset(self.judge.smaller(size), Run(seed=tagger.seed, observer=clock))
        if tagger.outcome_.interrupted:  # by Ctrl-C, which ends a stage early
            raise KeyboardInterrupt
        clock.look()
        return self.judge.figures(tagger)

    def tagger_with(self, values: Mapping[str, Any]) -> Tagger:
        """Return a tagger for one trial."""
        settings, text = self.changes(values)
        mine = {"calibration": "none", "warm_start": False, "verbose": 0}  # which change no ranking
        return Tagger(**{**self.best_parameters(settings, text), **mine})

    def best_parameters(self, settings: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of the tagger with the chosen model and these settings."""
        given: dict[str, Any] = self.tagger.get_params(deep=False)
        chosen = {"model": self.choice.main.model, "preset": self.choice.preset}
        return {**given, **chosen, "settings": dict(settings) or None, "text": dict(text) or None}

    def changes(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings and the text settings of a trial that were named or searched, converted."""
        settings, text = self.space.divided(values)
        settings, text = {**(self.tagger.settings or {}), **settings}, {**(self.tagger.text or {}), **text}
        every = dataclasses.asdict(settings_of(self.choice.main.model, self.choice.preset, settings))
        every_text = dataclasses.asdict(config.from_mapping(TextSettings, text))
        return {name: every[name] for name in settings}, {name: every_text[name] for name in text}

    # --- Results ------------------------------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return the trials so far."""
        frozen = self.study.get_trials(deepcopy=False)
        return [self.trial_of(trial) for trial in frozen if len(trial.params) == len(self.space.parameters)]

    def trial_of(self, frozen: FrozenTrial) -> Trial:
        """Return a trial as results have it."""
        figures, about = frozen.user_attrs.get("figures", {}), frozen.user_attrs
        points = max(map(int, figures), default=0)
        values, status = self.space.read(frozen.params), STATUS[frozen.state]
        return Trial(frozen.number, status, values, points, figures.get(str(points)), about.get("seconds", 0.0),
                     about.get("error", ""))  # fmt: skip

    def tuned(self) -> Tuned:
        """Return the results so far."""
        trials = self.trials()
        best = best_of(trials)
        assert best is not None
        settings, text = self.changes(best.values)
        parameters = self.best_parameters(settings, text)
        if self.choice.settings:  # the main model goes back into its blend
            settings = dict(self.choice.with_settings({**self.own, **settings}) or {})
            parameters |= {"model": self.choice.model, "settings": settings}
        return Tuned(Tagger(**parameters), tuple(trials), best, {}, len(self.judge.held_out), (settings, text))

    def importance(self) -> dict[str, float]:
        """Return which share of the differences between trials each setting explains, largest first.

        By the smallest number of points, with which all trials were judged; empty with few trials or equal ones.
        """
        frozen = self.study.get_trials(deepcopy=False)
        size = str(self.judge.sizes[0])
        judged = [trial for trial in frozen if size in trial.user_attrs.get("figures", {})]
        values = [sum(trial.user_attrs["figures"][size].values()) for trial in judged]
        if len(judged) < FEWEST or max(values) == min(values):
            return {}
        flat = optuna.create_study(direction="maximize")
        for trial, value in zip(judged, values, strict=True):
            flat.add_trial(create_trial(params=trial.params, distributions=trial.distributions, value=value))
        shares = get_param_importances(flat, evaluator=FanovaImportanceEvaluator(seed=self.tagger.seed % 2**32))
        return {name: float(share) for name, share in shares.items()}

    def write(self, tuned: Tuned) -> None:
        """Write the results so far, so that a killed process leaves them."""
        if self.folder is not None:
            tuned.write(self.folder)


def reason(error: Exception) -> str:
    """Return why a trial failed, in one line."""
    text = str(error) if isinstance(error, ZipfelError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
