"""A sum tree: many masses set at once, many positions found at once, no drift."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from ganglion.buffers import row_kernels
from ganglion.buffers.storage import zeros

TOP = {"cpu": 512, "cuda": 1 << 22}  # sums at most that are searched as one
FAN = 8  # masses under one sum: a line of memory
SHIFT = 3
Array = Any  # of numpy in main memory, where its small operations cost a third of torch's; else a tensor


class SumTree:
    """Non-negative masses. Eights are summed level by level until `top` sums are left, which are searched as one.

    Sums are added from the left by whoever adds them (C, numpy or torch in main memory), so that all agree.
    """

    def __init__(self, size: int, device: torch.device, top: int | None = None) -> None:
        top, height = top or TOP.get(device.type, 512), 0
        while -(-size >> SHIFT * height) > top:
            height += 1
        self.size = size
        size = -(-size >> SHIFT * height) << SHIFT * height  # padded, so that every sum has all its parts
        self.tensors = [zeros((size >> SHIFT * k,), torch.float64, device) for k in range(height + 1)]  # leaves first
        self.mass, self.height, self.top = self.tensors[0], height, len(self.tensors[-1])
        self.below = zeros((self.top + 1,), torch.float64, device)  # for `find`: the mass before each sum
        self.room = Room(0)
        self.host = device.type == "cpu"
        self.code: Any = row_kernels.code() if self.host else None
        self.levels: list[Array] = [self.array(x) for x in self.tensors]
        self.pointers = (ctypes.c_void_p * (height + 1))(*(x.data_ptr() for x in self.tensors))

    def array(self, x: Tensor) -> Array:
        return x.numpy() if self.host else x

    @property
    def total(self) -> Tensor:
        return self.tensors[-1].sum()

    def get(self, index: Tensor) -> Tensor:
        return self.mass.take(index)

    # ------------------------------------------------------------ in

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Sets the masses at distinct positions `index` [N]."""
        if self.code:
            self.write(index, mass, largest=False)
        else:
            self.levels[0][self.array(index)] = self.array(mass)
            self.sum_up(index)

    def set_largest(self, index: Tensor, mass: Tensor) -> None:
        """Sets masses at positions that may repeat: the largest mass of each counts."""
        if self.code:
            self.write(index, mass, largest=True)
        else:
            index = index.view(-1)
            self.mass.scatter_reduce_(0, index, mass.view(-1), "amax", include_self=False)
            self.sum_up(index)

    def fill(self, first: int, count: int, live: Tensor | None = None, mass: float | Tensor = 0.0) -> None:
        """Sets `count` positions from `first` on, going round: to `mass` where `live` [size], else to 0."""
        if self.code:
            flags = (None, 0) if live is None else (live.data_ptr(), live.stride(0))
            self.code.fill(self.pointers, self.height, self.size, first % self.size, count, *flags, float(mass))
            return
        index, none = self.along(first, count), torch.zeros(count, dtype=torch.float64, device=self.mass.device)
        self.set(index, none if live is None else none.masked_fill(live[index], mass))

    def along(self, first: int, count: int) -> Tensor:
        """So many positions from `first` on, going round."""
        return (torch.arange(count, device=self.mass.device) + first) % self.size

    def write(self, index: Tensor, mass: Tensor, largest: bool) -> None:
        index, mass = index.contiguous(), mass.contiguous()  # held until it is written
        self.code.set(self.pointers, self.height, index.data_ptr(), mass.data_ptr(), index.numel(), largest)

    def sum_up(self, index: Tensor) -> None:
        """Sums anew all that is above `index`; sums are never adjusted, so they cannot drift."""
        at = self.array(index)
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            at = at >> SHIFT
            high[at] = self.sums(low, at)[-1]

    def sums(self, level: Array, at: Array) -> Array:
        """What lies under each sum `at` of the level above, added up from the left on any device, [FAN, N]."""
        parts = level.reshape(-1, FAN)
        added = parts.take(at, 0).T.copy() if self.host else parts[at].T.contiguous()
        for k in range(1, FAN):
            added[k] += added[k - 1]
        return added

    def rebuild(self, mass: Tensor) -> None:
        """Takes all masses at once, [size]; what the tree is padded with has none."""
        self.mass[: self.size].copy_(mass)
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            high[:] = self.sums(low, self.array(torch.arange(len(high), device=self.mass.device)))[-1]

    # ------------------------------------------------------------ out

    def find(self, uniform: Tensor, spread: bool = False) -> tuple[Tensor, Tensor]:
        """Positions drawn in proportion to their mass, and their masses; one of zero mass is never found.

        Where `spread`, the i-th of n numbers stands for one in the i-th of n equal parts of the mass. What is given may
        lie in memory that the next call takes over.
        """
        n = uniform.numel()  # len() of a tensor costs five times as much
        if not self.code:
            share = (uniform + torch.arange(n, device=uniform.device)) / n if spread else uniform
            at = torch.as_tensor(self.descend(self.array(share)))
            return at, self.mass.take(at)
        if self.room.size != n:
            self.room = Room(n)
        where = self.pointers, self.height, self.top, self.below.data_ptr(), uniform.data_ptr(), n, spread
        self.code.find(*where, *self.room.pointers)
        return self.room.index, self.room.mass

    def descend(self, uniform: Array) -> Array:
        """From the top to the leaves. The last sum of a level is never passed, whatever the rounding."""
        torch.cumsum(self.tensors[-1], 0, out=self.below[1:])
        below = self.array(self.below)
        left = uniform * (below[-1] * (1 - 2**-52))  # less than all of it
        at = below.searchsorted(left, "right") if self.host else torch.searchsorted(below, left, right=True)
        at -= 1
        left -= below.take(at)
        rows = self.array(torch.arange(len(at), device=self.mass.device))
        for level in reversed(self.levels[:-1]):
            sums = self.sums(level, at)
            passed = ((sums <= left) & (sums < sums[-1])).sum(0)
            left = left - sums[passed - 1, rows] * (passed > 0)
            at = at * FAN + passed
        return at


class Room:
    """Memory for so many draws: what is left of each on its way down, what it finds, and the mass of that."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left, self.mass = torch.empty(2, size, dtype=torch.float64).unbind()
        self.index = torch.empty(size, dtype=torch.int64)
        self.pointers = self.left.data_ptr(), self.index.data_ptr(), self.mass.data_ptr()
