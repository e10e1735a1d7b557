"""Rate limiters: how many updates the steps so far allow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field

from ganglion.config import Count, LimiterConfig, Positive, register
from ganglion.core import EnvSpec, Limiter, Progress


@register("limiter", "ratio")
class RatioConfig(LimiterConfig):
    """One update every `opt_interval` env steps once `warmup` steps are there; below 1, several updates per step."""

    opt_interval: Positive = Field(1.0, ge=1e-4)
    warmup: Count = Field(1_000, ge=0)

    @property
    def begins(self) -> int:
        return self.warmup

    def build(self, spec: EnvSpec, device: torch.device) -> Limiter:
        return Ratio(self.opt_interval, self.warmup)


@register("limiter", "ready")
class ReadyConfig(LimiterConfig):
    """An update whenever an item is complete: learning from rollouts."""

    def build(self, spec: EnvSpec, device: torch.device) -> Limiter:
        return Ready()


@register("limiter", "always")
class AlwaysConfig(ReadyConfig):
    """An update as long as the buffer has an item, without a step: learning from data that is there."""


@dataclass(frozen=True)
class Ratio:
    """Owes updates in proportion to the steps since warm-up; declines while the buffer cannot give an item."""

    opt_interval: float
    warmup: int

    def owes(self, at: Progress, ready: bool) -> bool:
        return ready and at.opt_steps < (at.env_steps - self.warmup) / self.opt_interval


@dataclass(frozen=True)
class Ready:
    """Owes an update whenever there is an item."""

    opt_interval: float = 0.0

    def owes(self, at: Progress, ready: bool) -> bool:
        return ready
