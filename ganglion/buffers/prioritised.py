"""Prioritised replay (Schaul et al. 2016): rows are drawn in proportion to how wrong they were."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion.buffers.replay import Fold, Replay, ReplayConfig
from ganglion.buffers.sumtree import SumTree
from ganglion.config import Share, linear, register
from ganglion.core import Obs, Past, Progress, Row, Sample, State, Transition, join, under


@register("buffer", "prioritised")
class PrioritisedConfig(ReplayConfig):
    """Replay by priority."""

    alpha: float = Field(0.6, ge=0, le=1)  # how much priorities count
    beta: Share = linear(0.4, 1.0, until=1.0)  # how far the bias is corrected, over the budget
    floor: float = Field(1e-6, gt=0)  # added to every priority

    def build(self, fold: Fold, recurrent: bool, slots: int, device: torch.device) -> Prioritised:
        return Prioritised(self, fold, recurrent, slots, device)


class Prioritised(Replay):
    """A sum tree beside the ring. Only rows that can be sampled have mass: valid, with all later rows there."""

    cfg: PrioritisedConfig

    def __init__(self, cfg: PrioritisedConfig, fold: Fold, recurrent: bool, slots: int, device: torch.device) -> None:
        super().__init__(cfg, fold, recurrent, slots, device)
        self.tree = SumTree(self.ring.length * slots, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # new rows are as urgent as the most urgent
        self.block = torch.arange(slots, device=device)

    def push(self, row: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        super().push(row, ahead, at)
        self.set_mass(self.ring.pushed - 1, torch.zeros(self.slots, dtype=torch.float64, device=self.device))
        complete = self.ring.pushed - 1 - self.fold.reach
        if complete >= 0:
            valid = self.held.valid[complete % self.ring.length]
            self.set_mass(complete, valid * self.largest**self.cfg.alpha)

    def set_mass(self, time: int, mass: Tensor) -> None:
        self.tree.set(self.block + (time % self.ring.length) * self.slots, mass)

    def ready(self) -> bool:
        return super().ready() and bool(self.tree.total > 0)

    def take(self, uniform: Tensor, at: Progress) -> Sample[Transition]:
        """Draws one sequence from each equal share of the mass; weights correct for being drawn too often."""
        n = uniform.shape[0]
        strata = (torch.arange(n, device=self.device) + uniform.to(self.device)) / n
        index = self.tree.find(strata)
        share = self.tree.get(index) / self.tree.total
        weight = (share * (self.ring.filled * self.slots)) ** -self.cfg.beta(at.fraction)
        return self.gather(index, (weight / weight.max()).float(), at)

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Takes one new priority [N] per sequence drawn."""
        urgency = priority.double() + self.cfg.floor
        urgency = torch.where(urgency.isfinite(), urgency, self.largest)
        self.largest.copy_(torch.maximum(self.largest, urgency.max()))
        mass = urgency**self.cfg.alpha
        if self.cfg.max_use is not None:
            mass = mass * (self.uses[index] < self.cfg.max_use)
        self.tree.set_largest(index, mass)

    def metrics(self) -> Mapping[str, float]:
        mass = self.tree.levels[0]
        known = mass[mass > 0]
        spread = float(known.std() / known.mean()) if known.numel() > 1 else 0.0
        return {**super().metrics(), "priority_max": float(self.largest), "priority_spread": spread}

    def state(self) -> State:
        return join({"replay": super().state(), "tree": State({"mass": self.tree.levels[0], "largest": self.largest})})

    def restore(self, state: State) -> None:
        super().restore(under(state, "replay"))
        tree = under(state, "tree").tensors
        self.largest.copy_(tree["largest"])
        self.tree.rebuild(tree["mass"])
        for time in range(max(self.ring.pushed - self.fold.reach, 0), self.ring.pushed):  # n_step may have grown
            self.set_mass(time, torch.zeros(self.slots, dtype=torch.float64, device=self.device))
