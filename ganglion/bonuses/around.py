"""Another algorithm, whose items are changed before it learns from them: bonuses, imitation by rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ganglion import ops
from ganglion.buffers.demonstrated import DEMO
from ganglion.config import AlgoConfig
from ganglion.config.model import Folded
from ganglion.core import (
    Acted,
    Algorithm,
    Carried,
    Draws,
    EnvSpec,
    Knobs,
    Noise,
    Obs,
    Past,
    Prediction,
    Progress,
    Recipe,
    Row,
    Sample,
    Stateful,
    Update,
)
from ganglion.errors import UserError

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


class Imitating(Around[Mini]):
    """Its rows say that they are its own; those of datasets say that they were demonstrated."""

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        acted = self.inner.explore(prediction, knobs, noise)
        chosen = ops.first(acted.action)
        own = torch.zeros(chosen.shape[:2], device=chosen.device)
        return acted._replace(extras={**acted.extras, DEMO: own})


class JudgedItem(NamedTuple):
    """What the algorithm within learns from, and the same rows for who judges them."""

    mini: Any
    item: Sample[Any]

    @property
    def index(self) -> Tensor:  # type: ignore[override]
        """Where the sample came from: new priorities go there."""
        return self.item.index


def judged_loss(logit: Tensor, item: Sample[Any]) -> tuple[Tensor, Tensor]:
    """Cross-entropy of telling demonstrated rows, by large logits, from own ones; and how often that is right. Both
    sorts weigh alike, however many there are."""
    live = (item.weight > 0).float()
    shown = item.data.extras[DEMO] * live
    own = live - shown
    loss = ops.weighted_mean(softplus(-logit), shown) + ops.weighted_mean(softplus(logit), own)
    right = ops.weighted_mean((logit > 0).float(), shown) + ops.weighted_mean((logit <= 0).float(), own)
    return loss, 0.5 * right.detach()


def replayed(cfg: AlgoConfig, spec: EnvSpec) -> Recipe:
    """What is plugged around the algorithm within; refused where it keeps no single steps."""
    recipe = cfg.recipe(spec)
    match recipe.buffer:
        case Folded(_, fold) if not fold.rollouts and fold.n == 1:
            return recipe
    raise UserError(f"algo.inner: {cfg.kind} should learn from a replay of single steps, with n_step 1; such as sac.")
