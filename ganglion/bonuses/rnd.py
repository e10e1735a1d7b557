"""Random network distillation (Burda et al. 2019): new is what a network cannot foretell of one that never learns."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from ganglion.bonuses.curious import Bonus, Curious, CuriousConfig, Embedding, Judged, Seen
from ganglion.config import register
from ganglion.core import Algorithm, EnvSpec


@register("bonus", "rnd")
class RNDConfig(CuriousConfig):
    """The error of foretelling a random network."""

    features: int = Field(64, ge=1, le=65_536)  # numbers that are foretold

    def build(self, inner: Algorithm[Any, Any], spec: EnvSpec) -> Curious:
        return Curious(self, inner, RND(self, spec), spec)


class RND(Bonus):
    """||guess(s') - truth(s')||^2 / n."""

    def __init__(self, cfg: RNDConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.truth = Embedding(cfg.net, spec, cfg.features).requires_grad_(False)
        self.guess = Embedding(cfg.net, spec, cfg.features)

    def judge(self, seen: Seen) -> Judged:
        start = torch.zeros_like(seen.counts)
        error = (self.guess(seen.next_obs, start) - self.truth(seen.next_obs, start)).square().mean(-1)
        return Judged(error, error)
