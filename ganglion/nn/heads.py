"""Last layers: action values, action distributions, state values."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from ganglion.config import AlgoConfig
from ganglion.core import Box, Composite, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space, mask_misfit
from ganglion.errors import UserError
from ganglion.nn.layers import Body, Init, LinearHead, Linears, NoisyLinear


class QHead(nn.Module):
    """One value per action, [..., A], or `atoms` numbers, [..., A, atoms]; dueling adds those of the state to centred
    advantages (Wang et al. 2016). With `noisy` it is two NoisyLinear of that spread, which take numbers."""

    def __init__(self, body: Body, actions: int, dueling: bool, atoms: int = 0, noisy: float = 0.0) -> None:
        super().__init__()
        shape = (actions + dueling, atoms) if atoms else (actions + dueling,)
        self.shape, self.sizes, self.dim = shape, [actions, 1], -len(shape)
        self.dueling, self.draws = dueling, 0
        self.layer: nn.Module = LinearHead(body, prod(shape))
        if noisy:
            self.layer, self.inner = (NoisyLinear(body.out, size, noisy) for size in (prod(shape), body.out))
            self.each = [self.inner.draws, self.layer.draws]
            self.draws = sum(self.each)

    def forward(self, x: Tensor, normal: Tensor | None = None) -> Tensor:
        q: Tensor = self.shaken(x, normal) if self.draws else self.layer(x)
        if self.dim < -1:
            q = q.unflatten(-1, self.shape)
        if not self.dueling:
            return q
        advantage, state = q.split(self.sizes, self.dim)
        return state + advantage - advantage.mean(self.dim, keepdim=True)

    def shaken(self, x: Tensor, normal: Tensor | None) -> Tensor:
        inner, last = (None, None) if normal is None else normal.split(self.each, -1)
        said: Tensor = self.layer(torch.relu(self.inner(x, inner)), last)
        return said


def outputs(space: Space) -> int:
    """How many numbers a network must say for one action: logits, or the mean of each component."""
    match space:
        case Box():
            return space.size
        case Discrete():
            return space.n
        case MultiDiscrete():
            return sum(space.nvec)
        case MultiBinary():
            return space.n
        case Composite():
            return sum(outputs(part) for part in space.items.values())


def parts(space: Space) -> list[Space]:
    """The spaces a composite one is made of, however deep, in order."""
    return [p for part in space.items.values() for p in parts(part)] if isinstance(space, Composite) else [space]


def discrete_actions(cfg: AlgoConfig, spec: EnvSpec) -> int:
    """How many actions there are to choose from; refuses spaces that have no such number."""
    cfg.check_actions(spec)
    check_mask(spec)
    assert isinstance(spec.action, Discrete)
    return spec.action.n


def check_mask(spec: EnvSpec) -> None:
    """Refuses an action mask that does not fit the actions: it would be ignored, or fail in the middle of a run."""
    if isinstance(spec.obs, Composite) and "action_mask" in spec.obs.items:
        mask = spec.obs.items["action_mask"]
        wanted = mask_misfit(mask, spec.action)
        if wanted:
            raise UserError(
                f"env: the action_mask of {spec.name} is {mask}, but for its actions it should be {wanted}."
            )


class PolicyHead(nn.Module):
    """The raw parameters of `ops.dist` for any action space; deviations of Box actions are free parameters."""

    def __init__(self, body: Body, space: Space, init: Init, log_std: float = 0.0) -> None:
        super().__init__()
        self.layer = LinearHead(body, outputs(space), init, gain=0.01)
        self.parts = parts(space)
        boxes = sum(part.size for part in self.parts if isinstance(part, Box))
        self.log_std = nn.Parameter(torch.full((boxes,), log_std)) if boxes else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.log_std is None:
            return y
        raw, at, box = [], 0, 0
        for part in self.parts:
            n = outputs(part)
            raw.append(y[..., at : at + n])
            at += n
            if isinstance(part, Box):
                raw.append(self.log_std[box : box + n].expand(*y.shape[:-1], n))
                box += n
        return torch.cat(raw, -1)


class ValueHead(nn.Module):
    """One value per row. Of some (`nn.popart`) the scale follows that of what is learned."""

    def __init__(self, body: Body, init: Init) -> None:
        super().__init__()
        self.layer = LinearHead(body, 1, init, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(-1)

    @property
    def variance(self) -> float | Tensor:
        return 1.0

    def follow(self, goal: Tensor, valid: Tensor) -> None:
        """The scale of this one is fixed."""


class ValueHeads(Linears):
    """One value per row of each member of a body: [count, T, B, out] -> [count, T, B]; several: [count, T, B, n]."""

    def __init__(self, body: Body, outputs: int = 1) -> None:
        super().__init__(body.count, body.out, outputs)
        self.single, self.joins = outputs == 1, outputs == 1 and body.dtype == torch.float32

    def forward(self, x: Tensor) -> Tensor:
        if self.joins and not x.is_cuda and torch.compiler.is_compiling():  # a library takes seven times as long
            return (x * self.weight.transpose(1, 2)[:, None]).sum(-1) + self.bias
        return self.said(super().forward(x.flatten(1, 2)).unflatten(1, x.shape[1:3]))

    def said(self, x: Tensor) -> Tensor:
        """[..., outputs], without the axis of a single one."""
        return x.squeeze(-1) if self.single else x
