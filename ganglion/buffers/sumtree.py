"""A sum tree: many masses set at once, many positions found at once, no drift."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganglion.buffers.storage import zeros

TOP = {"cpu": 8_192, "cuda": 1 << 22}  # sums at most that are searched as one
Array = Any  # of numpy in main memory, where its small operations cost a third of torch's; else a tensor


class SumTree:
    """Non-negative masses. Pairs are summed level by level until `top` sums are left, which are searched as one."""

    def __init__(self, size: int, device: torch.device, top: int | None = None) -> None:
        top, height = top or TOP.get(device.type, 8_192), 0
        while -(-size >> height) > top:
            height += 1
        size = -(-size >> height) << height  # padded, so that every sum has two parts
        self.tensors = [zeros((size >> k,), torch.float64, device) for k in range(height + 1)]  # leaves first
        self.mass = self.tensors[0]
        self.below = zeros((len(self.tensors[-1]) + 1,), torch.float64, device)  # for `find`: the mass before each sum
        self.host = device.type == "cpu"
        self.levels: list[Array] = [self.array(x) for x in self.tensors]

    def array(self, x: Tensor) -> Array:
        return x.numpy() if self.host else x

    @property
    def total(self) -> Tensor:
        return self.tensors[-1].sum()

    def get(self, index: Tensor) -> Tensor:
        return self.mass.take(index)

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Sets the masses at distinct positions `index` [N]."""
        self.levels[0][self.array(index)] = self.array(mass)
        self.sum_up(index)

    def set_largest(self, index: Tensor, mass: Tensor) -> None:
        """Sets masses at positions that may repeat: the largest mass of each counts."""
        self.mass.scatter_reduce_(0, index, mass, "amax", include_self=False)
        self.sum_up(index)

    def sum_up(self, index: Tensor) -> None:
        """Sums anew every pair above `index`; sums are never adjusted, so they cannot drift."""
        at = self.array(index)
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            at = at >> 1
            pairs = low.reshape(-1, 2)
            both = pairs.take(at, 0) if self.host else pairs[at]
            high[at] = both[:, 0] + both[:, 1]

    def find(self, uniform: Tensor) -> Tensor:
        """Positions drawn in proportion to their mass; one of zero mass is never found."""
        at = self.descend(uniform, careful=not self.host)
        if self.host and self.levels[0].take(at).min(initial=1.0) <= 0:  # once in a blue moon
            at = self.descend(uniform, careful=True)
        return torch.as_tensor(at)

    def descend(self, uniform: Tensor, careful: bool) -> Array:
        """From the top to the leaves; unless `careful`, rounding may lead to where no mass is."""
        torch.cumsum(self.tensors[-1], 0, out=self.below[1:])
        below = self.array(self.below)
        mass = self.array(uniform) * (below[-1] * (1 - 2**-52))  # less than all of it
        at = below.searchsorted(mass, "right") if self.host else torch.searchsorted(below, mass, right=True)
        at -= 1
        mass -= below.take(at)
        for level in reversed(self.levels[:-1]):
            at <<= 1
            left = level.take(at)
            right = mass >= left
            if careful:
                right &= level.take(at + 1) > 0
            left *= right
            mass -= left
            at += right
        return at

    def rebuild(self, mass: Tensor) -> None:
        """Takes all masses at once."""
        self.mass.copy_(mass)
        for low, high in zip(self.tensors[:-1], self.tensors[1:], strict=True):
            high.copy_(low.view(-1, 2).sum(-1))
