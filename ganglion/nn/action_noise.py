"""Noise on real actions whose numbers depend on those before: what slots carry from action to action."""

from __future__ import annotations

from math import sqrt
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Carried

NoiseKind = Literal["gaussian", "ou", "pink"]
OCTAVES = 10  # of pink noise: its power falls as 1 / f up to a thousand steps


class ActionNoise(NamedTuple):
    """`size` numbers per slot and step, of unit deviation in the long run.

    gaussian: white noise. ou: an Ornstein-Uhlenbeck process that starts at 0 with each episode and returns there at
    rate `theta` (Lillicrap et al. 2016). pink: power 1 / f, which starts anywhere (Eberhard et al. 2023).
    """

    kind: NoiseKind
    size: int
    theta: float = 0.15

    @property
    def draws(self) -> int:
        """Normal numbers per step."""
        return self.size * (OCTAVES if self.kind == "pink" else 1)

    def hold(self, steps: float) -> float:
        """For how many steps a slot keeps its numbers: as white noise is told to; coloured noise lasts by itself."""
        return steps if self.kind == "gaussian" else 1.0

    def carry(self, slots: int) -> Carried:
        """What slots carry when an episode starts."""
        if self.kind == "gaussian":
            return ()
        if self.kind == "ou":
            return (torch.zeros(1, slots, self.size),)
        begun = torch.zeros(1, slots, 1, 1)
        return torch.zeros(1, slots, self.size, OCTAVES), begun

    def step(self, carried: Carried, normal: Tensor) -> tuple[Carried, Tensor]:
        """Normal numbers [1, B, draws] -> what slots carry on, and the noise [1, B, size]."""
        if self.kind == "gaussian":
            return (), normal
        if self.kind == "ou":
            spread = sqrt(self.theta * (2.0 - self.theta))  # the deviation in the long run is then 1
            state = ops.ou_step(carried[0], normal, theta=self.theta, sigma=spread, dt=1.0)
            return (state,), state
        state, begun = carried
        later, noise = ops.pink_step(state, normal)
        start = normal.reshape(state.shape)  # as if it had always been there: from 0 it would grow for a thousand steps
        noise = torch.where(begun[..., 0] > 0, noise, start.sum(-1) / sqrt(OCTAVES))
        return (torch.where(begun > 0, later, start), torch.ones_like(begun)), noise
