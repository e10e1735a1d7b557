"""Prioritised replay (Schaul et al. 2016): rows are drawn in proportion to how wrong they were."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion import ops
from ganglion.buffers.frames import WHOLE, Whole
from ganglion.buffers.replay import Fold, Replay, ReplayConfig
from ganglion.buffers.sumtree import SumTree
from ganglion.config import Share, linear, register
from ganglion.core import Obs, Past, Progress, Row, Sample, State, Transition, join, under
from ganglion.errors import UserError
from ganglion.ops.returns import windows


@register("buffer", "prioritised")
class PrioritisedConfig(ReplayConfig):
    """Replay by priority."""

    alpha: float = Field(0.6, ge=0, le=1)  # how much priorities count
    beta: Share = linear(0.4, 1.0, until=1.0)  # how far the bias is corrected, over the budget
    floor: float = Field(1e-6, gt=0)  # added to every priority
    initial: Literal["largest", "error"] = "largest"  # of new rows: as the most urgent, or as wrong as the explorer was

    @property
    def rated(self) -> bool:
        return self.initial == "error"

    def build(self, fold: Fold, recurrent: bool, slots: int, device: torch.device, seen: Whole = WHOLE) -> Prioritised:
        return Prioritised(self, fold, recurrent, slots, device, seen)


class Prioritised(Replay):
    """A sum tree beside the ring. Only rows that can be sampled have mass: valid, with all later rows there."""

    cfg: PrioritisedConfig

    def __init__(
        self, cfg: PrioritisedConfig, fold: Fold, recurrent: bool, slots: int, device: torch.device, seen: Whole
    ) -> None:
        super().__init__(cfg, fold, recurrent, slots, device, seen)
        self.tree = SumTree(self.ring.length * slots, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # new rows are as urgent as the most urgent
        self.shares = torch.zeros(0, dtype=torch.float64)  # where each equal share of the mass begins
        span = max(1 + seen.history, fold.reach + seen.history)
        self.near = torch.arange(span * slots, device=device)  # flat positions from a row on

    def push(self, row: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        super().push(row, ahead, at)
        newest, slots = self.ring.pushed - 1, self.slots
        index, mass = self.blank(newest, 1)
        complete = newest - self.fold.reach
        if complete >= 0:
            valid = self.ring.held.valid[complete % self.ring.length]
            index = torch.cat([index, self.near[:slots] + complete % self.ring.length * slots])
            fresh = self.mass(self.error(complete)) if self.cfg.rated else self.largest**self.cfg.alpha
            mass = torch.cat([mass, valid * fresh])
        self.tree.set(index, mass)

    def error(self, time: int) -> Tensor:
        """How wrong whoever explored was about the sequences that start at row `time`, [B] (Horgan et al. 2018).

        Row t expected extras q; it got n rewards and extras value of the row that bootstraps it.
        """
        rows, (n, _, length) = self.ring.held, self.fold
        if not {"q", "value"} <= rows.extras.keys():
            raise UserError("algo.replay.initial: error needs an algorithm that says q of its rows (dqn); try largest.")
        along = torch.arange(time, time + length + n, device=self.device) % self.ring.length
        before = along[:-1]
        cut = rows.terminated[before] | rows.truncated[before]
        reward, discount, ahead = windows(rows.reward[before], self.ring.derived.discount[before], cut, n)
        after = ops.at(rows.extras["value"][along], ahead)  # a NaN where nobody knows, which counts as most urgent
        got = reward + torch.where(discount > 0, discount * after, 0.0)
        live = self.ring.derived.live[along[:length]] * (self.own >= self.cfg.burn_in)
        return ops.sequence_priority(got - rows.extras["q"][along[:length]], live)

    def mass(self, priority: Tensor) -> Tensor:
        """What a priority weighs in the tree; the largest so far is kept."""
        urgency = priority.double() + self.cfg.floor
        urgency = torch.where(urgency < inf, urgency, self.largest)  # a NaN is most urgent, too
        self.largest.copy_(torch.maximum(self.largest, urgency.max()))
        return urgency**self.cfg.alpha

    def blank(self, time: int, rows: int) -> tuple[Tensor, Tensor]:
        """No mass for the newest `rows` rows, from `time` on, nor for the oldest that have lost frames."""
        index = (self.near[: (rows + self.lost) * self.slots] + time * self.slots) % self.size
        return index, torch.zeros_like(index, dtype=torch.float64)

    def ready(self) -> bool:
        return super().ready() and bool(self.tree.total > 0)

    def take(self, uniform: Tensor, at: Progress) -> Sample[Transition]:
        """Draws one sequence from each equal share of the mass; weights correct for being drawn too often."""
        n = uniform.shape[0]
        if len(self.shares) != n:
            self.shares = torch.arange(n, dtype=torch.float64, device=self.device) / n
        strata = torch.add(self.shares, uniform.to(self.device), alpha=1 / n)
        index = self.tree.find(strata)
        mass = self.tree.get(index)
        weight = (mass / mass.min()) ** -self.cfg.beta(at.fraction)  # at most 1
        return self.gather(index, weight.float(), at)

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Takes one new priority [N] per sequence drawn."""
        mass = self.mass(priority)
        if self.cfg.max_use is not None:
            mass = mass * (self.usage.uses(index) < self.cfg.max_use)
        self.tree.set_largest(index, mass)

    def metrics(self) -> Mapping[str, float]:
        mass = self.tree.mass
        known = mass[mass > 0]
        spread = float(known.std() / known.mean()) if known.numel() > 1 else 0.0
        return {**super().metrics(), "priority_max": float(self.largest), "priority_spread": spread}

    def state(self) -> State:
        return join({"replay": super().state(), "tree": State({"mass": self.tree.mass, "largest": self.largest})})

    def restore(self, state: State) -> None:
        super().restore(under(state, "replay"))
        tree = under(state, "tree").tensors
        self.largest.copy_(tree["largest"])
        self.tree.rebuild(tree["mass"])
        if self.ring.pushed:  # n_step may have grown
            rows = min(self.fold.reach, self.ring.pushed)
            self.tree.set(*self.blank(self.ring.pushed - rows, rows))
