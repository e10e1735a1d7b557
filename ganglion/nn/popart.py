"""PopArt (van Hasselt et al. 2016): values whose scale follows that of returns, without a change of what is said."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from ganglion import ops
from ganglion.nn.heads import ValueHead
from ganglion.nn.layers import Body, Init


class PopArtHead(ValueHead):
    """A value per row: the layer's output times the deviation of goals, plus their mean.

    A loss of values divided by `variance` is one of normalised values. `follow` comes after an optimiser's step."""

    mean: Tensor
    square: Tensor
    moved: Tensor

    def __init__(self, body: Body, init: Init, rate: float) -> None:
        super().__init__(body, init)
        self.rate = rate
        for name, value in (("mean", 0.0), ("square", 1.0), ("moved", 0.0)):
            self.register_buffer(name, torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.moments().std() + self.mean

    def moments(self) -> ops.Moments:
        return ops.Moments(self.mean.clone(), (self.square - self.mean.square()).clamp(min=1e-4), self.moved)

    @property
    def variance(self) -> Tensor:
        """What a loss is divided by; before the first goals are seen it has no gradient, which could be of any size."""
        return torch.where(self.moved > 0, self.moments().var, inf)

    @torch.no_grad()
    def follow(self, goal: Tensor, valid: Tensor) -> None:
        """Moves mean and deviation towards those of goals [T, B], and the layer against them: what it says stays."""
        self.moved.add_(1)
        rate = torch.maximum(1 / self.moved, torch.full_like(self.moved, self.rate))  # the first batch counts whole
        before = self.moments()
        for kept, new in ((self.mean, goal), (self.square, goal.square())):
            kept.copy_(torch.lerp(kept, ops.masked_mean(new, valid), rate))
        weight, bias = ops.popart(self.layer.weight, self.layer.bias, before, self.moments())
        self.layer.weight.copy_(weight)
        self.layer.bias.copy_(bias)
