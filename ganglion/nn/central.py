"""What the agents of a copy know together."""

from __future__ import annotations

from torch import Tensor

from ganglion import ops
from ganglion.core import CENTRAL, Box, EnvSpec, Memory, Model, Obs, Past, central
from ganglion.errors import UserError
from ganglion.nn.inputs import flat_size, flatten
from ganglion.nn.nets import Ensemble, MLPConfig
from ganglion.ops.agents import blank, by_copy, by_slot


class CentralEncoder(Model):
    """Observations by copy -> [T, C, out]: the central state where there is one, else what all agents see beside each
    other, with zeros for those that are not there. Without a memory."""

    def __init__(self, net: MLPConfig, spec: EnvSpec) -> None:
        super().__init__()
        state, self.agents, self.each = central(spec.obs), len(spec.agents), spec.obs
        self.given = state is not None
        if state is None:
            if not (size := flat_size(spec.obs)):
                raise UserError(
                    f"env: {spec.name} shows images and has no {CENTRAL}. Try vdn or pqn_vdn, which need none."
                )
            state = Box((self.agents * size,))
        self.encoder = net.model_copy(update={"memory": "none"}).encoder(state)
        self.out = self.encoder.out

    def forward(self, copies: Obs, there: Tensor) -> Tensor:
        """`there` [T, C, N]: which agents' observations say something."""
        return self.encoder(self.known(copies, there), Past((), there[..., 0]))[0]

    def known(self, copies: Obs, there: Tensor) -> Obs:
        if self.given:
            return ops.map_tree(lambda x: x.squeeze(2), copies[CENTRAL])
        each = by_copy(flatten(by_slot(copies), self.each), self.agents)  # [T, C, N, size]
        return blank(each, there).flatten(2)

    def observe(self, obs: Obs, valid: Tensor) -> None:
        """Rows come by slot, [T, B, ...]."""
        copies, there = by_copy((obs, valid), self.agents)
        if self.given:
            copies = {CENTRAL: ops.map_tree(lambda x: x[:, :, :1], copies[CENTRAL])}
        super().observe(self.known(copies, there), there.any(-1))

    def initial(self, slots: int) -> Memory:
        return ()


class CentralCritics(Model):
    """What is central, and numbers beside it (what agents do) -> values [count, T, C, outputs] by each critic."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, inputs: int, outputs: int, count: int = 1) -> None:
        super().__init__()
        self.central, self.outputs = CentralEncoder(net, spec), outputs
        self.nets = Ensemble(net.body(self.central.out + inputs, count), outputs)

    def forward(self, copies: Obs, there: Tensor, beside: Tensor) -> Tensor:
        """`beside` [T, C, inputs], or [T, C, E, inputs] where each row is judged E times: [count, T, C, E, outputs]."""
        known = self.central(copies, there)
        if beside.dim() == 3:
            return self.judged(known, beside)
        each = known.unsqueeze(2).expand(-1, -1, beside.shape[2], -1)
        return self.judged(each.flatten(1, 2), beside.flatten(1, 2)).unflatten(2, beside.shape[1:3])

    def judged(self, known: Tensor, beside: Tensor) -> Tensor:
        said: Tensor = self.nets(known, beside)
        return said.unsqueeze(-1) if self.outputs == 1 else said
