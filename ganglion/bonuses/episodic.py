"""Bonuses for what is new within an episode. What a slot has seen of it is carried from action to action, so the bonus
of a row is known when the row is collected, and kept with it: it is that of the observation that was acted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from ganglion import ops
from ganglion.bonuses.curious import NOTED, ActionFeatures, Curious, CuriousConfig, Judged, Seen
from ganglion.core import (
    Acted,
    Algorithm,
    Carried,
    EnvSpec,
    Knobs,
    Noise,
    Obs,
    Past,
    Prediction,
    Stateful,
)  # fmt: skip


class EpisodicConfig(CuriousConfig):
    """What every episodic bonus has."""

    features: int = Field(32, ge=1, le=65_536)  # of an observation, learned by naming actions

    def build(self, inner: Algorithm[Any, Any], spec: EnvSpec) -> EpisodicCurious:
        return EpisodicCurious(self, inner, self.bonus(spec), spec)

    def bonus(self, spec: EnvSpec) -> Episodic:
        raise NotImplementedError(f"{type(self).__name__} has no bonus")


class Episodic(ActionFeatures):
    """Compares the features of an observation with those of the episode so far."""

    def begin(self, slots: int) -> Carried:
        """What is known of an episode that starts, each [1, B, ...]."""
        raise NotImplementedError(f"{type(self).__name__} carries nothing")

    def novelty(self, features: Tensor, known: Carried) -> tuple[Tensor, Carried]:
        """The bonus of features [1, B, n], [1, B], and what is known after them."""
        raise NotImplementedError(f"{type(self).__name__} compares nothing")

    def judge(self, seen: Seen) -> Judged:
        return Judged(ops.first(seen.noted), -self.named(seen)[2])


class EpisodicCurious(Curious):
    """Another algorithm, whose rows bring a bonus."""

    bonus: Episodic

    def __init__(self, cfg: CuriousConfig, inner: Algorithm[Any, Any], bonus: Episodic, spec: EnvSpec) -> None:
        super().__init__(cfg, inner, bonus, spec)
        self.count = len(bonus.begin(1))  # of what is carried for the bonus, after what the algorithm carries

    def carry(self, slots: int) -> Carried:
        return (*self.inner.carry(slots), *self.bonus.begin(slots))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        own = len(past.carried) - self.count
        said = self.inner.predict(obs, past._replace(carried=past.carried[:own]), noise)
        new, known = self.bonus.novelty(self.bonus.features(obs, past.start), past.carried[own:])
        return said._replace(carried=(*(said.carried or past.carried[:own]), *known, new))

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        *carried, new = prediction.carried
        own = len(carried) - self.count
        before = tuple(carried[:own])
        acted = self.inner.explore(prediction._replace(carried=before), knobs, noise)
        kept = (*(acted.carried or before), *carried[own:])
        return acted._replace(extras={**acted.extras, NOTED: new}, carried=kept)

    def exploit(self, prediction: Prediction) -> Acted:
        *carried, _ = prediction.carried
        own = len(carried) - self.count
        before = tuple(carried[:own])
        acted = self.inner.exploit(prediction._replace(carried=before))
        return acted._replace(carried=(*(acted.carried or before), *carried[own:]))

    def acting(self) -> Mapping[str, Stateful]:
        return {**self.inner.acting(), "bonus": self.bonus}
