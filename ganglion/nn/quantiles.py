"""Networks that say the return at any fraction of its distribution: IQN's and FQF's."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import Action, EnvSpec, Memory, Obs, Past
from ganglion.nn.heads import QHead
from ganglion.nn.nets import Encoded, MLPConfig


class QuantileNet(Encoded):
    """obs [T, B, ...] -> features [T, B, F]; these and fractions [T, B, n] -> returns [T, B, A, n].

    A fraction is shown as cosines and scales the features, relu(sum_i cos(pi i tau) w_i + b); one more hidden layer
    reads the product (Dabney et al. 2018b).
    """

    def __init__(self, net: MLPConfig, spec: EnvSpec, actions: int, dueling: bool, burn_in: int, cosines: int) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.body = net.body(self.encoder.out)
        self.embed, self.merge = nn.Linear(cosines, self.body.out), nn.Linear(self.body.out, self.body.out)
        self.head = QHead(self.body, actions, dueling)
        self.cosines = cosines

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.value(obs, past)  # it is chosen by these

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        """Expected returns [T, B, A], from the middles of 32 equal parts."""
        features, memory = self.features(obs, past)
        tau = ops.midpoints(32, features).expand(*features.shape[:2], 32)
        return self.quantiles(features, tau).mean(-1), memory

    def features(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        seen, memory = self.encode(obs, past)
        return self.body(seen)[0], memory

    def quantiles(self, features: Tensor, tau: Tensor) -> Tensor:
        order = torch.arange(self.cosines, dtype=tau.dtype, device=tau.device)
        scale = torch.relu(self.embed(torch.cos(pi * order * tau.unsqueeze(-1))))  # [T, B, n, F]
        said: Tensor = self.head(torch.relu(self.merge(features.unsqueeze(-2) * scale)))
        return said.transpose(-1, -2)
