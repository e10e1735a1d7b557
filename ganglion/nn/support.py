"""Numbers as distributions over points of another scale: what values and rewards are learned as."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ganglion import ops


class Support(NamedTuple):
    """`bins` points from -limit to limit, evenly spaced on the scale of `ops.rescale` (Schrittwieser et al. 2020) or of
    `ops.symlog` (Hafner et al. 2023)."""

    limit: float
    bins: int
    symlog: bool = False

    def points(self, like: Tensor) -> Tensor:
        each = 2 * self.limit / (self.bins - 1)
        return torch.arange(self.bins, device=like.device, dtype=like.dtype) * each - self.limit

    def number(self, logits: Tensor) -> Tensor:
        """What logits stand for: [..., bins] -> [...]."""
        mean = ops.from_two_hot(logits.softmax(-1), self.points(logits))
        return ops.symexp(mean) if self.symlog else ops.unrescale(mean)

    def cross_entropy(self, logits: Tensor, number: Tensor) -> Tensor:
        """Of logits with the two-hot of a number, [...]."""
        moved = ops.symlog(number) if self.symlog else ops.rescale(number)
        return -(ops.two_hot(moved, self.points(logits)) * logits.log_softmax(-1)).sum(-1)
