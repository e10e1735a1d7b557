"""Random network distillation (Burda et al. 2019): new is what a network cannot foretell of one that never learns."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from ganglion import nn
from ganglion.bonuses.curious import Bonus, Curious, CuriousConfig, Judged, Seen
from ganglion.config import register
from ganglion.core import Algorithm, EnvSpec, Obs, Past
from ganglion.errors import UserError


@register("bonus", "rnd")
class RNDConfig(CuriousConfig):
    """The error of foretelling a random network."""

    features: int = Field(64, ge=1, le=65_536)  # numbers that are foretold
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), normalise=True)

    def build(self, inner: Algorithm[object, object], spec: EnvSpec) -> Curious:
        if self.net.recurrent:
            raise UserError("algo.bonus.net.memory: rnd judges single observations; it has no recurrent form.")
        return Curious(self, inner, RND(self, spec))


class Embedding(nn.Encoded):
    """obs [T, B, ...] -> features [T, B, n]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, features: int) -> None:
        super().__init__(net, spec.obs)
        body = net.body(self.encoder.out)
        self.net = nn.Net(body, nn.LinearHead(body, features))

    def forward(self, obs: Obs, start: Tensor) -> Tensor:
        features, _ = self.encoder(obs, Past((), start))
        said: Tensor = self.net(features)
        return said


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
