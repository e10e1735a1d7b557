"""Rate limiters: how many updates the steps so far allow."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ganglion.config import Config, Count, Positive
from ganglion.core import Limiter, Progress


class RatioConfig(Config):
    """One update every `opt_interval` env steps once `warmup` steps are there; below 1, several updates per step."""

    opt_interval: Positive = Field(1.0, ge=1e-4)
    warmup: Count = Field(1_000, ge=0)

    def build(self) -> Limiter:
        return Ratio(self.opt_interval, self.warmup)


@dataclass(frozen=True)
class Ratio:
    """Owes updates in proportion to the steps since warm-up; declines while the buffer cannot give an item."""

    opt_interval: float
    warmup: int

    def owes(self, at: Progress, ready: bool) -> bool:
        return ready and at.opt_steps < (at.env_steps - self.warmup) / self.opt_interval


@dataclass(frozen=True)
class WhenReady:
    """An update whenever an item is complete: on-policy learning."""

    def owes(self, at: Progress, ready: bool) -> bool:
        return ready

    def build(self) -> Limiter:
        return self
