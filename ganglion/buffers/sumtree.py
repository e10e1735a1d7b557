"""A sum tree of two levels: few vectorised operations, no drift."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.buffers.storage import zeros


class SumTree:
    """Non-negative masses; sets many at once, and finds many positions by cumulative mass.

    A draw passes over all node sums once and then over the leaves of one node per number asked for; the nodes are as
    wide as makes the two cost about the same.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.fan = 32
        while self.fan * self.fan * 400 < size:
            self.fan *= 2
        nodes = -(-size // self.fan)
        self.mass = zeros((nodes * self.fan,), torch.float64, device)  # padded to whole nodes
        self.sums = zeros((nodes,), torch.float64, device)
        self.below = zeros((nodes + 1,), torch.float64, device)  # the mass before each node, for `find`
        self.none = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        return self.sums.sum()

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
        """Sums anew every node of `index`; sums are never adjusted, so they cannot drift."""
        node = index // self.fan
        self.sums.index_copy_(0, node, self.nodes.index_select(0, node).sum(-1))

    @property
    def nodes(self) -> Tensor:
        return self.mass.view(-1, self.fan)

    def find(self, uniform: Tensor) -> Tensor:
        """Positions drawn in proportion to their mass; one of zero mass is never found."""
        torch.cumsum(self.sums, 0, out=self.below[1:])
        mass = self.inside(uniform * self.below[-1], self.below[-1])
        node = torch.searchsorted(self.below, mass, right=True) - 1
        inner = torch.nn.functional.pad(self.nodes.index_select(0, node).cumsum(-1), (1, 0))  # [N, fan + 1]
        mass = self.inside(mass - self.below.take(node), inner[:, -1])
        child = torch.searchsorted(inner, mass[:, None], right=True)[:, 0] - 1
        return torch.add(child, node, alpha=self.fan)

    def inside(self, mass: Tensor, end: Tensor) -> Tensor:
        """Mass below `end`: rounding must not lead out of a node."""
        return torch.minimum(mass, torch.nextafter(end, self.none))

    def rebuild(self, mass: Tensor) -> None:
        """Takes all masses at once."""
        self.mass.copy_(mass)
        self.sums.copy_(self.nodes.sum(-1))
