"""A sum tree of wide nodes: few vectorised operations per level, no drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ganglion.buffers.storage import zeros

FAN = 32  # children per node
TOP = 2_048  # sums at most above all nodes, which are searched as one
Array = NDArray[Any]


def sum_tree(size: int, device: torch.device) -> SumTree:
    """The tree that is quickest on a device."""
    return HostTree(size, device) if device.type == "cpu" else SumTree(size, device)


class SumTree:
    """Non-negative masses; sets many at once, and finds many positions by cumulative mass."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.levels: list[Tensor] = []  # leaves first; each padded to whole nodes, the last searched as one
        while True:
            nodes = -(-size // FAN)
            self.levels.append(zeros((nodes * FAN,), torch.float64, device))
            if nodes * FAN <= TOP:
                break
            size = nodes
        self.mass = self.levels[0]
        self.below = zeros((len(self.levels[-1]) + 1,), torch.float64, device)  # for `find`: the mass before each sum
        self.none = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        return self.levels[-1].sum()

    def get(self, index: Tensor) -> Tensor:
        return self.mass.take(index)

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Sets the masses at distinct positions `index` [N]."""
        self.mass.index_copy_(0, index, mass)
        self.sum_up(index)

    def set_largest(self, index: Tensor, mass: Tensor) -> None:
        """Sets masses at positions that may repeat: the largest mass of each counts."""
        self.mass.scatter_reduce_(0, index, mass, "amax", include_self=False)
        self.sum_up(index)

    def sum_up(self, index: Tensor) -> None:
        """Sums anew every node above `index`; sums are never adjusted, so they cannot drift."""
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            index = index // FAN
            high.index_copy_(0, index, low.view(-1, FAN).index_select(0, index).sum(-1))

    def find(self, uniform: Tensor) -> Tensor:
        """Positions drawn in proportion to their mass; one of zero mass is never found."""
        torch.cumsum(self.levels[-1], 0, out=self.below[1:])
        mass = self.inside(uniform * self.below[-1], self.below[-1])
        node = torch.searchsorted(self.below, mass, right=True) - 1
        mass = mass - self.below.take(node)
        for level in reversed(self.levels[:-1]):
            inner = torch.nn.functional.pad(level.view(-1, FAN).index_select(0, node).cumsum(-1), (1, 0))
            mass = self.inside(mass, inner[:, -1])
            child = torch.searchsorted(inner, mass[:, None], right=True) - 1
            mass = mass - inner.gather(-1, child)[:, 0]
            node = torch.add(child[:, 0], node, alpha=FAN)
        return node

    def inside(self, mass: Tensor, end: Tensor) -> Tensor:
        """Mass below `end`: rounding must not lead out of a node."""
        return torch.minimum(mass, torch.nextafter(end, self.none))

    def rebuild(self, mass: Tensor) -> None:
        """Takes all masses at once."""
        self.mass.copy_(mass)
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            sums = low.view(-1, FAN).sum(-1)
            high[: len(sums)] = sums


class HostTree(SumTree):
    """The same in main memory, where numpy's small operations cost a third of torch's."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self.arrays = [level.numpy() for level in self.levels]
        self.ready(0)

    def ready(self, count: int) -> None:
        """Memory for `count` nodes at once, seen by both."""
        self.rows = torch.zeros(count, FAN, dtype=torch.float64)
        self.inner = torch.zeros(count, FAN + 1, dtype=torch.float64)  # sums of a node, from nothing to all of it
        self.want, self.place = torch.zeros(count, 1, dtype=torch.float64), torch.zeros(count, 1, dtype=torch.int64)
        self.first = np.arange(count) * (FAN + 1)

    def nodes(self, level: int, index: Array) -> Tensor:
        """The masses of the children of nodes `index`, [N, FAN]."""
        if len(index) != len(self.rows):
            self.ready(len(index))
        np.take(self.arrays[level].reshape(-1, FAN), index, 0, self.rows.numpy(), "clip")
        return self.rows

    def set(self, index: Tensor, mass: Tensor) -> None:
        self.arrays[0][index.numpy()] = mass.numpy()
        self.sum_up(index)

    def sum_up(self, index: Tensor) -> None:
        node = index.numpy()
        for level in range(1, len(self.levels)):
            node = node // FAN
            self.arrays[level][node] = self.nodes(level - 1, node).sum(-1).numpy()

    def find(self, uniform: Tensor) -> Tensor:
        torch.cumsum(self.levels[-1], 0, out=self.below[1:])
        below = self.below.numpy()
        mass = np.minimum(uniform.numpy() * below[-1], np.nextafter(below[-1], 0.0))
        node = below.searchsorted(mass, "right") - 1
        mass -= below.take(node)
        for level in reversed(range(len(self.levels) - 1)):
            torch.cumsum(self.nodes(level, node), -1, out=self.inner[:, 1:])
            inner, want, place = self.inner.numpy(), self.want.numpy()[:, 0], self.place.numpy()[:, 0]
            np.minimum(mass, np.nextafter(inner[:, -1], 0.0), out=want)
            torch.searchsorted(self.inner, self.want, right=True, out=self.place)
            place -= 1
            mass = want - inner.reshape(-1).take(self.first + place)
            node = node * FAN + place
        return torch.from_numpy(node)
