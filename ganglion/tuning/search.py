"""How the next trial is chosen, and whether one is worth going on with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ganglion.errors import UserError
from ganglion.runtime.randomness import derive
from ganglion.tuning.space import SearchSpace, values_of
from ganglion.tuning.study import StudyConfig, StudyTrial


class Search(Protocol):
    def ask(self, number: int) -> dict[str, Any]:
        """The settings of a trial; those of the first are the config's own."""

    def prunes(self, trial: StudyTrial) -> bool:
        """Whether a trial, with one more evaluation, is to end."""

    def tell(self, trial: StudyTrial) -> None:
        """How one ended; also of those that were there before."""


class RandomSearch:
    """Settings drawn evenly from the space. No trial ends early: what it is compared with has equal steps."""

    def __init__(self, cfg: StudyConfig, space: SearchSpace) -> None:
        self.cfg, self.space = cfg, space

    def ask(self, number: int) -> dict[str, Any]:
        if number == 0:
            return values_of(self.cfg.base, self.space)
        return drawn(self.space, np.random.default_rng(derive(self.cfg.base.run.seed, f"trial/{number}")))

    def prunes(self, trial: StudyTrial) -> bool:
        return False

    def tell(self, trial: StudyTrial) -> None:
        """Learns nothing."""


def drawn(space: SearchSpace, dice: np.random.Generator) -> dict[str, Any]:
    return {path: one.value(float(dice.random())) for path, one in space.items()}


class OptunaSearch:
    """Tree-structured Parzen estimators (Bergstra et al. 2011) and median pruning, by Optuna; kept in memory, for the
    study's own lines are what it is made from again."""

    def __init__(self, cfg: StudyConfig, space: SearchSpace, before: int = 0) -> None:
        """`before`: trials there are: one that goes on does not draw what it has drawn."""
        try:
            import optuna
        except ImportError as error:
            raise UserError(
                '--method: tpe needs a package. Try pip install "ganglion[tune]", or --method random'
            ) from error
        self.optuna, self.cfg, self.space = optuna, cfg, space
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        first = max(4, min(10, cfg.trials // 3))
        seed = derive(cfg.base.run.seed, f"tpe/{before}") % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=first, multivariate=True, constant_liar=True, seed=seed
            )
        pruner = optuna.pruners.MedianPruner(n_startup_trials=min(5, first), n_warmup_steps=2)
        self.study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        unit, kinds = optuna.distributions.FloatDistribution(0.0, 1.0), optuna.distributions.CategoricalDistribution
        self.axes: dict[str, Any] = {
            path: kinds(list(range(one.options))) if one.options else unit for path, one in space.items()
        }
        self.running: dict[int, Any] = {}

    def ask(self, number: int) -> dict[str, Any]:
        if number == 0:
            own = values_of(self.cfg.base, self.space)
            self.study.enqueue_trial(self.coordinates(own))
        trial = self.running[number] = self.study.ask(self.axes)
        if number == 0:
            return own
        return {path: one.read(trial.params[path]) for path, one in self.space.items()}

    def coordinates(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {path: one.coordinate(settings[path]) for path, one in self.space.items()}

    def prunes(self, trial: StudyTrial) -> bool:
        ours = self.running[trial.number]
        ours.report(trial.curve[-1], len(trial.curve) - 1)
        return self.cfg.prune and bool(ours.should_prune())

    def tell(self, trial: StudyTrial) -> None:
        """One that failed, as by diverging, counts as one that was given up: worse than all others."""
        states = self.optuna.trial.TrialState
        state = states.COMPLETE if trial.state == "finished" else states.PRUNED
        value = trial.score if trial.state == "finished" else None
        ours = self.running.pop(trial.number, None)
        if ours is not None:
            self.study.tell(ours, value, state)
            return
        made = self.optuna.trial.create_trial(
            state=state,
            value=value,
            params=self.coordinates(trial.settings),
            distributions=self.axes,
            intermediate_values=dict(enumerate(trial.curve)),
        )
        self.study.add_trial(made)


def searching(cfg: StudyConfig, space: SearchSpace, before: Sequence[StudyTrial]) -> Search:
    """The search that a study asks for, told of the trials before."""
    found: Search = RandomSearch(cfg, space) if cfg.method == "random" else OptunaSearch(cfg, space, len(before))
    for trial in before:
        found.tell(trial)
    return found
