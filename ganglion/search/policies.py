"""The searches that algorithms call: one pure function of a root, the dynamics and random numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Draw, Noise
from ganglion.search.dirichlet import dirichlet, dirichlet_draws
from ganglion.search.gumbel import GumbelRule, Shaken, gumbel_from_uniform
from ganglion.search.puct import PuctRule
from ganglion.search.tree import Dynamics, Found, Root
from ganglion.search.walk import Way, grow


def puct(root: Root, dynamics: Dynamics, legal: Tensor | None, rule: PuctRule) -> Found:
    """The share of visits is the better policy. To explore, mix noise into `root.logits` (`with_noise`)."""
    root, allowed = among(root, legal)
    tree = grow(root, dynamics, rule.simulations, Way(False, rule.c_init, rule.c_base, [allowed]))
    visits = tree.counts[:, 0]
    weights = visits / visits.sum(-1, keepdim=True)
    return Found(weights, ops.best(visits, allowed), tree.value[:, 0], visits, tree.q[:, 0], tree)


def gumbel(root: Root, dynamics: Dynamics, legal: Tensor | None, shake: Tensor, rule: GumbelRule) -> Found:
    """`shake`: Gumbel numbers [B, A]; zeros where nothing may be random."""
    root, allowed = among(root, legal)
    table = torch.tensor(rule.table(), dtype=root.logits.dtype, device=root.logits.device)
    plan = table[allowed.sum(-1).clamp(max=rule.considered)]
    beside = Shaken(allowed, shake + root.logits - root.logits.amax(-1, keepdim=True), plan)
    tree = grow(root, dynamics, rule.simulations, Way(True, rule.value_scale, rule.visit_base, [*beside]))
    sigma, visits = rule.completed(tree)[:, 0], tree.counts[:, 0]
    action = beside.ranked(tree, sigma, visits.amax(-1)).argmax(-1)
    weights = ops.blocked(root.logits + sigma, allowed).softmax(-1)
    return Found(weights, action, tree.value[:, 0], visits, tree.q[:, 0], tree)


def among(root: Root, legal: Tensor | None) -> tuple[Root, Tensor]:
    """With no prior on other than legal actions; which they are, [B, A]."""
    if legal is None:
        return root, torch.ones_like(root.logits, dtype=torch.bool)
    return root._replace(logits=ops.blocked(root.logits, legal)), legal.bool()


def with_noise(root: Root, shares: Tensor, weight: Tensor) -> Root:
    """The prior mixed with noise, (1 - w) P + w shares, [B, A], w [B, 1]: to explore under PUCT."""
    mixed = torch.lerp(root.logits.softmax(-1), shares, weight)
    return root._replace(logits=mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log())


class Planned(NamedTuple):
    """What a search says of what to do."""

    weights: Tensor  # [..., A]
    action: Tensor  # the best, [...]

    def mode(self) -> Tensor:
        return self.action

    def warmed(self, temperature: Tensor) -> ops.Categorical:
        """Actions by weights to the power of 1 / temperature."""
        least = torch.finfo(self.weights.dtype).tiny
        return ops.Categorical(self.weights.clamp(min=least).log() / temperature, self.weights > 0)


def entropy(weights: Tensor) -> Tensor:
    """-sum w log w, [..., A] -> [...]."""
    return -torch.where(weights > 0, weights * weights.clamp(min=torch.finfo(weights.dtype).tiny).log(), 0.0).sum(-1)


class Planner(NamedTuple):
    """A search as an algorithm acts by it: which rule, and the noise at the root."""

    rule: PuctRule | GumbelRule
    actions: int
    noise: float = 0.25  # puct: share of a Dirichlet in the root's prior
    alpha: float = 0.3  # puct: of that Dirichlet

    @property
    def draws(self) -> Draw:
        """Random numbers of a row."""
        return Draw(uniform=self.actions) if type(self.rule) is GumbelRule else dirichlet_draws(self.actions)

    def plan(self, root: Root, dynamics: Dynamics, legal: Tensor, noise: Noise) -> Found:
        """A search from every root; uniform numbers of -1 are those of evaluation: there is no noise (`calm`)."""
        shaken = noise.uniform[:, :1] >= 0
        if type(self.rule) is GumbelRule:
            shake = torch.where(shaken, gumbel_from_uniform(noise.uniform), 0.0)
            return gumbel(root, dynamics, legal, shake, self.rule)
        assert type(self.rule) is PuctRule
        root = root._replace(logits=ops.blocked(root.logits, legal))
        root = with_noise(root, dirichlet(self.alpha, legal, noise), self.noise * shaken)
        return puct(root, dynamics, legal, self.rule)

    def choose(self, plan: Planned, temperature: Tensor, noise: Noise) -> Tensor:
        """The training action: what Gumbel's search says, or one by its visits."""
        return plan.action if type(self.rule) is GumbelRule else plan.warmed(temperature).sample(noise)


def calm(noise: Noise) -> Noise:
    """Numbers by which a planner knows that nothing may be random."""
    return noise._replace(uniform=torch.full_like(noise.uniform, -1.0))
