"""Search by upper confidence bounds (Rosin 2011; Silver et al. 2018; Schrittwieser et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.search.tree import Tree

EPS = 1e-8


class PuctRule(NamedTuple):
    """How an action is chosen on the way down."""

    simulations: int = 50
    c_init: float = 1.25
    c_base: float = 19_652.0

    def scores(self, tree: Tree) -> Tensor:
        """q + P sqrt(n) / (1 + n_a) (c_init + log((n + c_base + 1) / c_base)), [B, N, A]; q between the least and the
        largest of a node and its children, the least where an action was never tried."""
        visits, counts = tree.visits[..., None], tree.counts
        c = self.c_init + torch.log((visits + (self.c_base + 1)) / self.c_base)
        return scaled(tree) + visits.sqrt() * c * tree.probs / (counts + 1)


def scaled(tree: Tree) -> Tensor:
    """Action values of every node from 0 to 1, [B, N, A]."""
    tried, value, q = tree.counts > 0, tree.value[..., None], tree.q
    known = torch.where(tried, q, value)
    low = torch.minimum(known.amin(-1, keepdim=True), value)
    high = torch.maximum(known.amax(-1, keepdim=True), value)
    return torch.where(tried, (q - low) / (high - low).clamp(min=EPS), 0.0)


def puct_choice(tree: Tree, c_init: float, c_base: float, legal: Tensor) -> Tensor:
    """The action that would be taken at every node, [B, N]; at the root one of `legal` [B, A]."""
    scores = PuctRule(0, c_init, c_base).scores(tree)
    return torch.cat((ops.best(scores[:, :1], legal[:, None]), scores[:, 1:].argmax(-1)), 1)
