"""Prioritised replay (Schaul et al. 2016): rows are drawn in proportion to how wrong they were."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion import ops
from ganglion.buffers.replay import Replay, ReplayConfig
from ganglion.buffers.sumtree import SumTree
from ganglion.config import Fold, Positive, Share, linear, register
from ganglion.core import EnvSpec, Obs, Past, Progress, Row, Sample, State, join, under
from ganglion.errors import UserError
from ganglion.ops.across import least, several
from ganglion.ops.returns import windows


@register("buffer", "prioritised")
class PrioritisedConfig(ReplayConfig):
    """Replay by priority."""

    alpha: float = Field(0.6, ge=0, le=1)  # how much priorities count
    beta: Share = linear(0.4, 1.0, until=1.0)  # how far the bias is corrected, over the budget
    floor: Positive = 1e-6  # added to every priority
    initial: Literal["largest", "error"] = "largest"  # of new rows: as the most urgent, or as wrong as the explorer was

    @property
    def rated(self) -> bool:
        return self.initial == "error"

    def build(self, spec: EnvSpec, device: torch.device, fold: Fold) -> Prioritised:
        if self.episodes:
            raise UserError("algo.replay.episodes: draws episodes evenly, without priorities; use kind: replay.")
        return Prioritised(self, spec, device, fold)


class Prioritised(Replay):
    """A sum tree beside the ring. Only rows that can be sampled have mass: valid, with all later rows there."""

    cfg: PrioritisedConfig

    def __init__(self, cfg: PrioritisedConfig, spec: EnvSpec, device: torch.device, fold: Fold) -> None:
        super().__init__(cfg, spec, device, fold)
        self.tree = SumTree(self.size, device)
        self.code = self.tree.code
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # new rows are as urgent as the most urgent
        self.weight = torch.empty(1, 0, device=device)  # of the last sample
        self.found = torch.empty(0), torch.empty(1, 0)  # where the last sample lay, and the same as a row
        self.urgent = torch.empty(0, dtype=torch.float64)  # the last priorities, where code is compiled

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        super().push(rows, ahead, at)
        if (count := rows.reward.shape[0]) <= self.most:  # else its parts have been
            self.rate(count)

    def rate(self, count: int) -> None:
        """Masses for what so many new rows have made complete."""
        newest, reach = self.ring.pushed, self.fold.reach
        first, last = max(newest - count - reach, 0), newest - reach  # rows whose later rows are all there by now
        self.blank(newest - count, count)
        if self.cfg.rated:
            for time in range(first, last):  # each may change what the most urgent is
                live = self.ring.held.valid[time % self.ring.length]
                where = self.tree.along(time * self.slots, self.slots)
                self.tree.set(where, live * self.mass(self.error(time)))
        elif last > first:
            live = self.ring.held.valid.flatten()
            self.tree.fill(first * self.slots, (last - first) * self.slots, live, self.largest**self.cfg.alpha)

    def error(self, time: int) -> Tensor:
        """How wrong whoever explored was about the sequences that start at row `time`, [B] (Horgan et al. 2018).

        Row t expected extras q; it got n rewards and extras value of the row that bootstraps it.
        """
        rows, n, length = self.ring.held, self.fold.n, self.fold.length
        if not {"q", "value"} <= rows.extras.keys():
            raise UserError("algo.replay.initial: error needs an algorithm that says q of its rows (dqn); try largest.")
        along = torch.arange(time, time + length + n, device=self.device) % self.ring.length
        before = along[:-1]
        follows = self.ring.derived
        reward, discount, ahead = windows(rows.reward[before], follows.discount[before], follows.cut[before], n)
        after = ops.at(rows.extras["value"][along], ahead)  # a NaN where nobody knows, which counts as most urgent
        got = reward + torch.where(discount > 0, discount * after, 0.0)
        live = follows.live[along[:length]] * (self.gathered.own >= self.cfg.burn_in)
        return ops.sequence_priority(got - rows.extras["q"][along[:length]], live)

    def mass(self, priority: Tensor) -> Tensor:
        """What a priority weighs in the tree; the largest so far is kept."""
        return self.urgency(priority).pow_(self.cfg.alpha)

    def blank(self, time: int, rows: int) -> None:
        """No mass for the newest `rows` rows, from `time` on, nor for the oldest that have lost frames."""
        self.tree.fill(time * self.slots, (rows + self.lost) * self.slots)

    def ready(self) -> bool:
        return super().ready() and bool(self.tree.total > 0)

    def take(self, uniform: Tensor, at: Progress) -> Sample[Any]:
        """Draws one sequence from each equal share of the mass; weights correct for being drawn too often."""
        index, mass = self.tree.find(self.here(uniform, at), spread=True)
        if several():  # each draws by the shares of its own mass, and all scale weights by the largest of any
            mass /= self.tree.total
            mass /= least(mass.min())
        elif self.code:
            self.code.over_least(mass.data_ptr(), mass.numel())
        elif mass.numel():
            mass /= mass.min()
        if self.weight.numel() != mass.numel():
            self.weight = torch.empty(1, mass.numel(), device=self.device)
        weight = self.weight.copy_(mass.pow_(-self.cfg.beta.at(at)))  # at most 1
        if self.found[0] is not index:
            self.found = index, index.view(1, -1)
        return self.gather(self.found[1], weight, at)

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Takes one new priority [N] per sequence drawn, [1, N]."""
        mass = self.mass(priority)
        if self.cfg.max_use is not None:
            mass = mass * (self.usage.uses(index) < self.cfg.max_use)
        self.tree.set_largest(index, mass)

    def urgency(self, priority: Tensor) -> Tensor:
        """Finite priorities; what is not finite, a NaN too, is as urgent as the most urgent so far."""
        if self.code:
            priority, n = priority.float().contiguous(), priority.numel()
            if self.urgent.numel() != n:
                self.urgent = torch.empty(n, dtype=torch.float64)
            given = priority.data_ptr(), n, self.cfg.floor, self.largest.data_ptr()
            self.code.urgency(*given, self.urgent.data_ptr())
            return self.urgent
        urgency = priority.float().double() + self.cfg.floor
        urgency = torch.where(urgency < inf, urgency, self.largest)
        self.largest.copy_(torch.maximum(self.largest, urgency.max()))
        return urgency

    def metrics(self) -> Mapping[str, float]:
        mass = self.tree.mass
        known = mass[mass > 0]
        spread = float(known.std() / known.mean()) if known.numel() > 1 else 0.0
        return {**super().metrics(), "priority_max": float(self.largest), "priority_spread": spread}

    def state(self) -> State:
        return join(
            {"replay": super().state(), "tree": State({"mass": self.tree.mass[: self.size], "largest": self.largest})}
        )

    def restore(self, state: State) -> None:
        super().restore(under(state, "replay"))
        tree = under(state, "tree").tensors
        self.largest.copy_(tree["largest"])
        self.tree.rebuild(tree["mass"])
        if self.ring.pushed:  # n_step may have grown
            rows = min(self.fold.reach, self.ring.pushed)
            self.blank(self.ring.pushed - rows, rows)
