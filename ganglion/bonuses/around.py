"""Another algorithm, whose items are changed before it learns from them: bonuses, imitation by rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from ganglion.core import (
    Acted,
    Algorithm,
    Carried,
    Draws,
    Knobs,
    Noise,
    Obs,
    Past,
    Prediction,
    Progress,
    Row,
    Stateful,
    Update,
)

Mini = TypeVar("Mini")


class Around(Algorithm[Any, Mini]):
    """Acts as the algorithm within; what is learned is for those who extend it to say."""

    def __init__(self, inner: Algorithm[Any, Any]) -> None:
        self.inner, self.model = inner, inner.model
        self.sync_every, self.late_every, self.passes = inner.sync_every, inner.late_every, inner.passes

    @property
    def share(self) -> tuple[int, int]:
        return self.inner.share

    @share.setter
    def share(self, share: tuple[int, int]) -> None:
        self.inner.share = share

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        return self.inner.predict(obs, past, noise)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return self.inner.explore(prediction, knobs, noise)

    def exploit(self, prediction: Prediction) -> Acted:
        return self.inner.exploit(prediction)

    def neutral(self, rows: Tensor) -> Noise:
        return self.inner.neutral(rows)

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return self.inner.knobs(at)

    def carry(self, slots: int) -> Carried:
        return self.inner.carry(slots)

    def draws(self) -> Draws:
        return self.inner.draws()

    def acting(self) -> Mapping[str, Stateful]:
        return self.inner.acting()

    # ------------------------------------------------------------ learning: likewise, unless said otherwise

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return self.inner.plan(rows, noise)

    def enough(self, update: Update) -> Tensor | None:
        return self.inner.enough(update)

    def learn(self, mini: Any, knobs: Knobs, noise: Noise) -> Update:
        return self.inner.learn(mini, knobs, noise)

    def learn_late(self, mini: Any, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        return self.inner.learn_late(mini, knobs, noise)

    def observe(self, rows: Row) -> None:
        self.inner.observe(rows)

    def sync_target(self) -> None:
        self.inner.sync_target()

    def parts(self) -> Mapping[str, Stateful]:
        return self.inner.parts()
