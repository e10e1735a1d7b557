"""Worlds made of tables, so that several searches can be given the same priors, values and rewards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ganglion import search

LOWEST = float(np.finfo(np.float32).min)
STATES = 30


class Case(NamedTuple):
    """What a table world is made of, and how it is searched."""

    rule: str  # puct or gumbel
    slots: int
    actions: int
    simulations: int
    discount: float
    masked: bool = False
    considered: int = 16
    seed: int = 0


CASES = [
    Case("puct", 8, 4, 50, 0.97),
    Case("puct", 8, 9, 3, 1.0, seed=1),  # fewer simulations than actions
    Case("puct", 8, 9, 50, -1.0, masked=True, seed=2),
    Case("puct", 8, 25, 40, 0.99, masked=True, seed=3),
    Case("gumbel", 8, 4, 50, 0.97, seed=4),
    Case("gumbel", 8, 9, 3, 1.0, seed=5),
    Case("gumbel", 8, 9, 50, -1.0, masked=True, seed=6),
    Case("gumbel", 8, 25, 16, 0.99, masked=True, considered=4, seed=7),
    Case("gumbel", 8, 2, 25, 0.99, considered=1, seed=8),
    Case("gumbel", 8, 5, 33, -1.0, masked=True, considered=5, seed=9),
]


class Tables(NamedTuple):
    """Of every slot and state; numbers of numpy's old generator, which never changes."""

    after: np.ndarray[Any, Any]  # [B, S, A]
    reward: np.ndarray[Any, Any]
    discount: np.ndarray[Any, Any]
    logits: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]  # [B, S]
    legal: np.ndarray[Any, Any]  # [B, S, A] bool


def tables(case: Case) -> Tables:
    dice = np.random.RandomState(case.seed)
    shape = case.slots, STATES, case.actions
    legal = dice.rand(*shape) < 0.6 if case.masked else np.ones(shape, bool)
    legal[..., 0] |= ~legal.any(-1)
    discount = np.where(dice.rand(*shape) < 0.1, 0.0, case.discount).astype(np.float32)
    logits = np.where(legal, dice.randn(*shape), LOWEST).astype(np.float32)
    reward = np.where(dice.rand(*shape) < 0.3, dice.randn(*shape), 0.0).astype(np.float32)
    return Tables(
        dice.randint(STATES, size=shape), reward, discount, logits, dice.randn(*shape[:2]).astype(np.float32), legal
    )


class World:
    """The tables as tensors; a state is the row of its slot and its number, [B, 2]."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.case = case
        found = [torch.from_numpy(x).to(device) for x in tables(case)]
        self.after, self.reward, self.discount, self.logits, self.value, self.allowed = found
        self.slot = torch.arange(case.slots, device=device)
        self.start = torch.stack((self.slot, torch.zeros_like(self.slot)), 1)

    def root(self) -> search.Root:
        return search.Root(self.start, *self.seen(self.start))

    def legal(self) -> Tensor:
        return self.allowed[:, 0]

    def seen(self, state: Tensor) -> tuple[Tensor, Tensor]:
        slot, at = state.unbind(1)
        return self.logits[slot, at], self.value[slot, at]

    def dynamics(self, state: Tensor, action: Tensor) -> search.Outcome:
        slot, at = state.unbind(1)
        after = torch.stack((slot, self.after[slot, at, action]), 1)
        reward, discount = self.reward[slot, at, action], self.discount[slot, at, action]
        return search.Outcome(after, reward, discount, *self.seen(after))

    def found(self, shake: Tensor) -> search.Found:
        """What this package's search finds."""
        case, legal = self.case, self.legal() if self.case.masked else None
        if case.rule == "puct":
            return search.puct(self.root(), self.dynamics, legal, search.PuctRule(case.simulations))
        rule = search.GumbelRule(case.simulations, case.considered)
        return search.gumbel(self.root(), self.dynamics, legal, shake, rule)
