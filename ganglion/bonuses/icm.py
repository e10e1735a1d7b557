"""Intrinsic curiosity (Pathak et al. 2017): new is what a model of the world cannot foretell, in features that know
what the agent does."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from ganglion import nn
from ganglion.bonuses.curious import ActionFeatures, Curious, CuriousConfig, Judged, Seen
from ganglion.config import register
from ganglion.core import Algorithm, EnvSpec


@register("bonus", "icm")
class ICMConfig(CuriousConfig):
    """The error of foretelling what an action leads to."""

    features: int = Field(64, ge=1, le=65_536)  # of an observation
    ahead: float = Field(0.2, ge=0, le=1)  # weight of foretelling in the loss; the rest is of naming the action

    def build(self, inner: Algorithm[Any, Any], spec: EnvSpec) -> Curious:
        return Curious(self, inner, ICM(self, spec), spec)


class ICM(ActionFeatures):
    """|ahead(f(s), a) - f(s')|^2 / 2."""

    def __init__(self, cfg: ICMConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec, cfg.features)
        self.weight = cfg.ahead
        after = cfg.net.body(cfg.features + nn.flat_size(spec.action))
        self.ahead = nn.Net(after, nn.LinearHead(after, cfg.features))

    def judge(self, seen: Seen) -> Judged:
        now, later, named = self.named(seen)
        foretold = self.ahead(torch.cat([now.detach(), nn.flatten(seen.action, self.space)], -1))
        surprise = 0.5 * (foretold - later.detach()).square().sum(-1)
        return Judged(surprise, self.weight * surprise - (1 - self.weight) * named)
