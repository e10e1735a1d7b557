"""Rows as transitions: n-step sums, next observations, sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ganglion.buffers.frames import Whole
from ganglion.buffers.storage import Fetched, SampledRing
from ganglion.core import Past, Transition
from ganglion.ops.returns import windows


class Fold(NamedTuple):
    """How rows become transitions: n rewards summed under gamma, sequences of `length` rows."""

    n: int
    gamma: float
    length: int

    @property
    def reach(self) -> int:
        """How many later rows a sampled row needs."""
        return self.length - 1 + self.n


class Transitions:
    """Puts together what is sampled; it lies in memory that the next sample takes over."""

    def __init__(self, ring: SampledRing, seen: Whole, fold: Fold, recurrent: bool) -> None:
        self.ring, self.seen, self.fold, self.recurrent = ring, seen, fold, recurrent
        self.own = torch.arange(fold.length, device=ring.device)[:, None]
        self.simple: tuple[Fetched, Transition] | None = None  # transitions of one step: views of what is fetched

    def __call__(self, index: Tensor) -> tuple[Transition, Tensor]:
        """The sequences that start at flat positions `index` [N], and which of their rows live, [T, N]."""
        got = self.ring.fetch(index, self.fold.length + self.fold.n, self.fold.length)
        simple = self.fold.n == 1 and not self.recurrent
        return self.steps(index, got) if simple else self.folded(index, got), got.derived.live

    def steps(self, index: Tensor, got: Fetched) -> Transition:
        """Transitions of one step."""
        if self.simple is None or self.simple[0] is not got:
            first, past = got.first, Past((), got.first.start)
            ahead = self.own.expand_as(first.reward)
            what = (first.action, first.reward, got.derived.discount)
            self.simple = got, Transition(first.obs, *what, got.rest.obs, ahead, past, past)
        data = self.simple[1]
        if self.ring.pack:
            return data
        obs, next_obs = self.seen.along(self.ring, index, got, False)
        return data._replace(obs=obs, next_obs=next_obs)

    def folded(self, index: Tensor, got: Fetched) -> Transition:
        """Transitions of several steps, or with memories; nothing passes an episode's end."""
        cut = (got.rows.terminated | got.rows.truncated)[:-1]
        reward, discount, later = windows(got.rows.reward[:-1], got.derived.discount, cut, self.fold.n)
        if not self.recurrent:
            obs, next_obs = self.seen.pairs(self.ring, index, got, later)
            past = Past((), got.first.start)
            return Transition(obs, got.first.action, reward, discount, next_obs, self.own.expand_as(later), past, past)
        ring, span = self.ring, self.ring.span(index, got)
        obs, next_obs = self.seen.along(ring, index, got, True)
        memory, after = (ring.read(ring.held.memory, span[k : k + 1], f"memory {k}") for k in (0, 1))
        past, next_past = Past(memory, got.first.start), Past(after, got.rest.start)
        # memory must run through every later row to reach the one that bootstraps
        return Transition(obs, got.first.action, reward, discount, next_obs, later - 1, past, next_past)
