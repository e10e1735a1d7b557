"""A recurrent model of a world with categorical states (Hafner et al. 2021, 2023)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import Draw
from ganglion.nn.cells import CellMemory, step
from ganglion.nn.layers import LinearHead
from ganglion.nn.nets import MLPConfig, Net

UNIFORM = 0.01  # share of an even distribution in each categorical: no logarithm grows without limit


class WorldState(NamedTuple):
    """What is certain of a state, and a draw of what is not."""

    deter: Tensor  # [..., deter]
    stoch: Tensor  # [..., groups * classes] one-hot in each group

    @property
    def features(self) -> Tensor:
        return torch.cat(self, -1)


class StateSpace(nn.Module):
    """h' = GRU(h, s, a);  s' ~ prior(h') where it is imagined, or posterior(h', features) where something is seen.

    Each s is `groups` choices of one of `classes`; gradients pass a draw as if it were its probabilities.
    """

    def __init__(self, net: MLPConfig, features: int, action: int, sizes: tuple[int, int, int]) -> None:
        """`sizes`: of what is certain, groups, classes."""
        super().__init__()
        self.deter, self.groups, self.classes = sizes
        self.stoch = self.groups * self.classes
        self.enter = net.body(self.stoch + action)
        self.cell = CellMemory("gru", self.enter.out, self.deter)
        self.prior, self.posterior = (
            Net(body, LinearHead(body, self.stoch)) for body in (net.body(self.deter), net.body(self.deter + features))
        )

    @property
    def out(self) -> int:
        return self.deter + self.stoch

    @property
    def draws(self) -> Draw:
        """Random numbers of a state."""
        return Draw(uniform=self.groups)

    def initial(self, slots: int) -> WorldState:
        new = self.cell.cell.weight_hh.new_zeros
        return WorldState(new(1, slots, self.deter), new(1, slots, self.stoch))

    def follow(self, state: WorldState, action: Tensor) -> Tensor:
        """What is certain after an action, [T, B, deter]."""
        entered = self.enter(torch.cat([state.stoch, action], -1))[0]
        return step(self.cell.cell, entered.flatten(0, 1), (state.deter.flatten(0, 1),))[0].view_as(state.deter)

    def log_probs(self, logits: Tensor) -> Tensor:
        """[..., groups * classes] -> [..., groups, classes]."""
        probs = logits.unflatten(-1, (self.groups, self.classes)).softmax(-1)
        return torch.log((1 - UNIFORM) * probs + UNIFORM / self.classes)

    def draw(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """A one-hot draw of each group, by numbers in [0, 1) [..., groups]; the likeliest by negative ones."""
        probs = log_probs.exp()
        choice = torch.where(uniform < 0, probs.argmax(-1), ops.inverse_cdf(probs.detach(), uniform.clamp(min=0.0)))
        one_hot = (torch.arange(self.classes, device=choice.device) == choice[..., None]).to(probs.dtype)
        return (one_hot + probs - probs.detach()).flatten(-2)

    def imagined(self, state: WorldState, action: Tensor, uniform: Tensor) -> WorldState:
        """The next state, unseen."""
        deter = self.follow(state, action)
        return WorldState(deter, self.draw(self.log_probs(self.prior(deter)), uniform))

    def seen(self, state: WorldState, action: Tensor, features: Tensor, uniform: Tensor) -> tuple[WorldState, Tensor]:
        """The next state, given what is seen there; the logarithms of its probabilities."""
        deter = self.follow(state, action)
        log_probs = self.log_probs(self.posterior(torch.cat([deter, features], -1)))
        return WorldState(deter, self.draw(log_probs, uniform)), log_probs


def kl(one: Tensor, other: Tensor) -> Tensor:
    """KL of independent categoricals, of logarithms [..., groups, classes] -> [...]."""
    return (one.exp() * (one - other)).sum((-2, -1))
