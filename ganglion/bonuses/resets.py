"""Resets (D'Oro et al. 2023; Schwarzer et al. 2023, BBF): at intervals networks begin anew, and learn again from a
replay that remembers. What has learned for long learns worse; with resets many updates per step are worth their while.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field

from ganglion.bonuses.around import Around
from ganglion.config import AlgoConfig, Count, ResetsConfig, register
from ganglion.core import Algorithm, EnvSpec, Phase, State, Stateful, read_count
from ganglion.nn import Optimiser


@register("resets", "shrink")
class ShrinkConfig(ResetsConfig):
    """Weights are moved towards new ones: encoders a part of the way, all others the whole way (Ash and Adams 2020)."""

    every: Count = Field(20_000, ge=1)  # updates
    keep: float = Field(0.5, ge=0, le=1)  # share of an encoder's weights that stays
    keep_others: float = Field(0.0, ge=0, le=1)  # of bodies, heads and temperatures
    until: Count | None = Field(None, ge=1)  # updates after which there are no more; None: none

    def build(self, inner: Algorithm[Any, Any], cfg: AlgoConfig, spec: EnvSpec) -> Resetting:
        return Resetting(self, inner, cfg, spec)


class NewWeights:
    """Where they come from: a number, drawn when a run begins."""

    def __init__(self) -> None:
        self.seed = int(torch.randint(1 << 40, ()))

    def state(self) -> State:
        return State({}, {"seed": self.seed})

    def restore(self, state: State) -> None:
        self.seed = read_count(state.scalars["seed"])


class Resetting(Around[Any]):
    """Another algorithm, whose networks begin anew at intervals. Normalisers, scales and bonuses stay."""

    def __init__(self, cfg: ShrinkConfig, inner: Algorithm[Any, Any], built: AlgoConfig, spec: EnvSpec) -> None:
        super().__init__(inner)
        self.cfg, self.built, self.spec, self.reset_every = cfg, built, spec, cfg.every
        self.new = NewWeights()

    def prepare(self, item: Any) -> Any:
        return self.inner.prepare(item)

    def phases(self) -> Mapping[str, Phase]:
        return self.inner.phases()

    @torch.no_grad()
    def reset(self, updates: int) -> None:
        if self.cfg.until is not None and updates > self.cfg.until:
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.new.seed + updates)
            fresh = self.built.build(self.spec).parts()
        own = self.inner.parts()
        for name, part in fresh.items():
            match part:
                case torch.nn.Module():
                    self.shrink(own[name], part)
                case Optimiser():
                    own[name].restore(part.state())

    def shrink(self, own: Any, fresh: torch.nn.Module) -> None:
        new = dict(fresh.named_parameters())
        for name, weight in own.named_parameters():
            keep = self.cfg.keep if "encoder" in name.split(".") else self.cfg.keep_others
            weight.copy_(torch.lerp(new[name].to(weight.device), weight, keep))

    def parts(self) -> Mapping[str, Stateful]:
        return {**self.inner.parts(), "resets": self.new}
