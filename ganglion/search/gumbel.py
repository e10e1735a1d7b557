"""Search by planning with Gumbel (Danihelka et al. 2022): the root's actions are sampled without replacement and
thinned out by sequential halving (Karnin et al. 2013); below, visits follow an improved policy."""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import torch
from torch import Tensor

from ganglion.search.tree import Tree

EPS = 1e-8
LOW = -1e9  # of a considered action that is the only one left, however bad it looks


class GumbelRule(NamedTuple):
    """How many actions compete at the root, and how much what was found weighs against the prior."""

    simulations: int = 16
    considered: int = 16
    value_scale: float = 0.1
    visit_base: float = 50.0

    def completed(self, tree: Tree) -> Tensor:
        """sigma(q) = (visit_base + max_a n_a) value_scale q, [B, N, A]; q from 0 to 1 within each node, what was never
        tried at the mixed value of the node."""
        counts = tree.counts
        tried = counts > 0
        q = torch.where(tried, tree.q, mixed_value(tree, counts, tried)[..., None])
        low, high = q.amin(-1, keepdim=True), q.amax(-1, keepdim=True)
        q = (q - low) / (high - low).clamp(min=EPS)
        return (self.visit_base + counts.amax(-1, keepdim=True)) * self.value_scale * q

    def table(self) -> list[list[int]]:
        """By the number of legal actions: how often the actions have been visited that simulation i chooses from."""
        return [halving(min(self.considered, n), self.simulations) for n in range(self.considered + 1)]


def mixed_value(tree: Tree, counts: Tensor, tried: Tensor) -> Tensor:
    """(v + n sum_tried P q / sum_tried P) / (1 + n), [B, N]."""
    probs = torch.where(tried, tree.probs.clamp(min=torch.finfo(tree.probs.dtype).tiny), 0.0)
    mean = (probs * tree.q).sum(-1) / torch.where(tried.any(-1), probs.sum(-1), 1.0)
    total = counts.sum(-1)
    return (tree.raw + total * mean) / (total + 1)


def halving(considered: int, simulations: int) -> list[int]:
    """Sequential halving as visit counts: simulation i goes to the best action that has been visited so often."""
    if considered <= 1:
        return list(range(simulations))
    rounds, visits = ceil(log2(considered)), [0] * considered
    alive, plan = considered, [0] * 0
    while len(plan) < simulations:
        for _ in range(max(1, simulations // (rounds * alive))):
            plan += visits[:alive]
            visits[:alive] = [n + 1 for n in visits[:alive]]
        alive = max(2, alive // 2)
    return plan[:simulations]


def gumbel_from_uniform(uniform: Tensor) -> Tensor:
    """Standard Gumbel numbers from numbers in [0, 1)."""
    u = uniform.clamp(torch.finfo(uniform.dtype).tiny, 1 - torch.finfo(uniform.dtype).eps / 2)
    return -torch.log(-torch.log(u))


class Shaken(NamedTuple):
    """What the root's actions are ranked by, beside what was found."""

    legal: Tensor  # [B, A]
    score: Tensor  # [B, A] Gumbel numbers and logits
    plan: Tensor  # [B, simulations] how often the actions have been visited that are chosen from

    def ranked(self, tree: Tree, sigma: Tensor, visited: Tensor) -> Tensor:
        """g + logits + sigma(q) of the actions that have been visited so often, [B, A]."""
        scores = (self.score + sigma).clamp(min=LOW)
        return torch.where((tree.counts[:, 0] == visited[:, None]) & self.legal, scores, -torch.inf)


def gumbel_choice(tree: Tree, number: int, value_scale: float, visit_base: float, root: Shaken) -> Tensor:
    """The action that simulation `number` would take at every node, [B, N]."""
    sigma, counts = GumbelRule(value_scale=value_scale, visit_base=visit_base).completed(tree), tree.counts
    improved = (tree.logits + sigma).softmax(-1)
    below = (improved - counts / (1 + counts.sum(-1, keepdim=True))).argmax(-1)
    first = root.ranked(tree, sigma[:, 0], root.plan[:, number - 1]).argmax(-1)
    return torch.cat((first[:, None], below[:, 1:]), 1)
