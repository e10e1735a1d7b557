"""The episodic part of Never Give Up (Badia et al. 2020): new is what has few near neighbours in the episode so far."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from ganglion.bonuses.episodic import Episodic, EpisodicConfig
from ganglion.config import NonNegative, Positive, register
from ganglion.core import Carried, EnvSpec


@register("bonus", "ngu")
class NGUConfig(EpisodicConfig):
    """Few near neighbours within the episode."""

    capacity: int = Field(128, ge=1, le=100_000)  # of the observations of an episode that are remembered, the newest
    neighbours: int = Field(10, ge=1, le=100_000)
    width: Positive = 1e-3  # of the kernel, in units of the usual squared distance
    same: NonNegative = 0.008  # squared distances below it, in the same unit, are 0
    floor: Positive = 1e-3  # under the root of similarities
    most: Positive = 8.0  # similarity above which there is no bonus

    def bonus(self, spec: EnvSpec) -> NGU:
        return NGU(self, spec)


class NGU(Episodic):
    """1 / (sqrt(sum over the k nearest of width / (d^2 / mean d^2 + width)) + floor)."""

    def __init__(self, cfg: NGUConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec, cfg.features)
        self.cfg = cfg

    def begin(self, slots: int) -> Carried:
        """Features, how many there have been, and the sum and number of squared distances between neighbours."""
        sizes = (self.cfg.capacity, self.cfg.features), (), (), ()
        return tuple(torch.zeros(1, slots, *size) for size in sizes)

    def novelty(self, features: Tensor, known: Carried) -> tuple[Tensor, Carried]:
        cfg, (memory, count, total, pairs) = self.cfg, known
        place = torch.arange(cfg.capacity, device=features.device)
        there = place < count[..., None]
        apart = (features.unsqueeze(-2) - memory).square().sum(-1).masked_fill(~there, torch.inf)  # [1, B, capacity]
        near = apart.topk(min(cfg.neighbours, cfg.capacity), dim=-1, largest=False).values
        found = near < torch.inf
        total = total + torch.where(found, near, 0.0).sum(-1)
        pairs = pairs + found.sum(-1)
        usual = (total / pairs.clamp(min=1)).clamp(min=1e-12)
        beyond = (near / usual[..., None] - cfg.same).clamp(min=0)
        alike = (cfg.width / (beyond + cfg.width)).sum(-1).sqrt() + cfg.floor
        new = torch.where(
            (alike > cfg.most) | (count == 0), 0.0, 1 / alike
        )  # the first has nothing to be compared with
        here = (place == count[..., None] % cfg.capacity).unsqueeze(-1)
        return new, (torch.where(here, features.unsqueeze(-2), memory), count + 1, total, pairs)
