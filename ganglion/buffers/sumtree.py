"""A sum tree of wide nodes: few vectorised operations per level, no drift."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.buffers.storage import zeros

FAN = 32  # children per node


class SumTree:
    """Non-negative masses; sets many at once, and finds many positions by cumulative mass."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.levels: list[Tensor] = []  # leaves first; each padded to whole nodes, the last is one node
        while True:
            nodes = -(-size // FAN)
            self.levels.append(zeros((nodes * FAN,), torch.float64, device))
            if nodes == 1:
                break
            size = nodes

    @property
    def total(self) -> Tensor:
        return self.levels[-1].sum()

    def get(self, index: Tensor) -> Tensor:
        return self.levels[0][index]

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Sets the masses at distinct positions `index` [N]."""
        self.levels[0][index] = mass
        self.sum_up(index)

    def set_largest(self, index: Tensor, mass: Tensor) -> None:
        """Sets masses at positions that may repeat: the largest mass of each counts."""
        self.levels[0].scatter_reduce_(0, index, mass, "amax", include_self=False)
        self.sum_up(index)

    def sum_up(self, index: Tensor) -> None:
        """Sums anew every node above `index`; sums are never adjusted, so they cannot drift."""
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            index = index // FAN
            high[index] = low.view(-1, FAN)[index].sum(-1)

    def find(self, uniform: Tensor) -> Tensor:
        """Positions drawn in proportion to their mass; one of zero mass is never found."""
        mass = uniform * self.total
        node = torch.zeros_like(uniform, dtype=torch.int64)
        for level in reversed(self.levels):
            cum = level.view(-1, FAN)[node].cumsum(-1)  # [N, FAN]
            mass = torch.minimum(mass, torch.nextafter(cum[:, -1], torch.zeros_like(mass)))  # rounding stays inside
            child = (cum <= mass[:, None]).sum(-1)
            before = torch.cat([torch.zeros_like(cum[:, :1]), cum], -1).gather(-1, child[:, None])[:, 0]
            mass = mass - before
            node = node * FAN + child
        return node

    def rebuild(self, leaves: Tensor) -> None:
        """Takes all masses at once."""
        self.levels[0].copy_(leaves)
        for low, high in zip(self.levels[:-1], self.levels[1:], strict=True):
            sums = low.view(-1, FAN).sum(-1)
            high[: sums.shape[0]] = sums
