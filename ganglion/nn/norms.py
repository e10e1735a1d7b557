"""Normalisation inside networks, and bodies made of it: batch, layer and RMS norm of ensembles, weights of unit norm.

All take [count, N, size]: `count` members side by side, N rows. What a batch norm normalises by is said at each call:
its running statistics (`live` None), or those of rows where `live` [N] is 1; these move the running ones on request.
The running statistics are buffers, so they are saved, sent and restored with the model.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import Row
from ganglion.nn.layers import ACTIVATIONS, Activation, LayerNorms, Linears, RMSNorm
from ganglion.nn.normalisers import RewardScale
from ganglion.ops import across

EPS = 1e-5


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) over rows that count; batch renormalisation (Ioffe 2017) once the
    statistics have moved `renorm_after` times."""

    mean: Tensor
    var: Tensor
    moved: Tensor

    def __init__(self, count: int, size: int, momentum: float = 0.01, renorm_after: int | None = None) -> None:
        super().__init__()
        self.momentum, self.renorm_after = momentum, renorm_after
        self.gain, self.shift = (nn.Parameter(torch.full((count, 1, size), x)) for x in (1.0, 0.0))
        self.register_buffer("mean", torch.zeros(count, 1, size))
        self.register_buffer("var", torch.ones(count, 1, size))
        self.register_buffer("moved", torch.zeros(()))

    def forward(self, x: Tensor, live: Tensor | None = None, move: bool = False) -> Tensor:
        if live is None:
            return (x - self.mean) * (self.var + EPS).rsqrt() * self.gain + self.shift
        share = (live / live.sum().clamp(min=1))[:, None]
        mean = (x * share).sum(1, keepdim=True)
        var = ((x - mean).square() * share).sum(1, keepdim=True)
        y = (x - mean) * (var + EPS).rsqrt()
        if self.renorm_after is not None:
            y = self.renormalised(y, mean.detach(), var.detach(), self.renorm_after)
        if move:
            self.follow(mean.detach(), var.detach(), live.sum())
        return y * self.gain + self.shift

    def renormalised(self, y: Tensor, mean: Tensor, var: Tensor, after: int) -> Tensor:
        """As the running statistics would have it, within limits: what is learned from is then close to what acts."""
        scale = (self.var + EPS).rsqrt()
        late = self.moved >= after
        stretch = torch.where(late, ((var + EPS).sqrt() * scale).clamp(1 / 3, 3), 1.0)
        return y * stretch + torch.where(late, ((mean - self.mean) * scale).clamp(-5, 5), 0.0)

    @torch.no_grad()
    def follow(self, mean: Tensor, var: Tensor, rows: Tensor) -> None:
        """Moves the running statistics towards those of a batch: of all learners, where there are several."""
        for own, new in ((self.mean, mean), (self.var, var)):
            new = across.mean(new * rows, rows.expand_as(new)) if across.several() else new
            own.copy_(torch.lerp(own, new.to(own.dtype), self.momentum))
        self.moved.add_(1)


def unit_rows(layer: Linears) -> None:
    """Puts what each unit reads with to norm 1, in place."""
    layer.weight.copy_(layer.weight * (layer.weight.square().sum(1, keepdim=True) + 1e-12).rsqrt())


def unit_gain(norm: BatchNorm | RMSNorm) -> None:
    """Puts gain and shift of a norm together to the root of their number, in place."""
    own = list(norm.parameters())
    total = torch.stack([p.square().sum(-1, keepdim=True) for p in own]).sum(0)
    for p in own:
        p.copy_(p * (p.shape[-1] / (total + 1e-12)).sqrt())


class ResidualBlock(nn.Module):
    """x + what an inverted bottleneck makes of it: each of its two maps is batch-normalised, then rectified."""

    def __init__(self, count: int, size: int, expansion: int = 4) -> None:
        super().__init__()
        wide = expansion * size
        self.widen, self.narrow = unit(count, size, wide), unit(count, wide, size)
        self.inner, self.outer = BatchNorm(count, wide), BatchNorm(count, size)

    def forward(self, x: Tensor, live: Tensor | None, move: bool) -> Tensor:
        wide = torch.relu(self.inner(self.widen(x), live, move))
        return x + torch.relu(self.outer(self.narrow(wide), live, move))

    def project(self) -> None:
        for layer, norm in ((self.widen, self.inner), (self.narrow, self.outer)):
            unit_rows(layer)
            unit_gain(norm)


def unit(count: int, inputs: int, outputs: int) -> Linears:
    """Orthogonal maps without a bias."""
    made = Linears(count, inputs, outputs, "orthogonal")
    made.bias.requires_grad_(False)
    return made


class ResidualMLP(nn.Module):
    """`count` residual networks whose features have a bounded norm: [T, B, inputs] -> [count, T, B, outputs].

    Inputs are batch-normalised, blocks follow, their sum is RMS-normalised, and a last map reads it (Kim et al. 2026).
    """

    def __init__(self, count: int, inputs: int, size: int, blocks: int, outputs: int) -> None:
        super().__init__()
        self.count = count
        self.norm, self.embed = BatchNorm(count, inputs), unit(count, inputs, size)
        self.blocks = nn.ModuleList(ResidualBlock(count, size) for _ in range(blocks))
        self.rms, self.head = RMSNorm(count, size), Linears(count, size, outputs, "orthogonal")
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Puts weights back to the norms they started with: only directions are learned."""
        for layer in (self.embed, self.head):
            unit_rows(layer)
        for norm in (self.norm, self.rms):
            unit_gain(norm)
        for block in self.blocks:
            block.project()  # type: ignore[operator]

    def forward(self, x: Tensor, live: Tensor | None = None, move: bool = False) -> Tensor:
        y, live = members(x, self.count), None if live is None else live.flatten()
        y = self.embed(self.norm(y, live, move))
        for block in self.blocks:
            y = block(y, live, move)
        said: Tensor = self.head(self.rms(y)).unflatten(1, x.shape[:2])
        return said


class BatchNormMLP(nn.Module):
    """`count` perceptrons with a batch norm before each layer: [T, B, inputs] -> [count, T, B, outputs]."""

    def __init__(
        self, count: int, inputs: int, hidden: tuple[int, ...], outputs: int, activation: Activation,
        momentum: float, renorm_after: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = (inputs, *hidden, outputs)
        self.count, self.activation = count, ACTIVATIONS[activation]
        self.norms = nn.ModuleList(BatchNorm(count, size, momentum, renorm_after) for size in sizes[:-1])
        self.layers = nn.ModuleList(Linears(count, a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor, live: Tensor | None = None, move: bool = False) -> Tensor:
        y, live = members(x, self.count), None if live is None else live.flatten()
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            y = layer(norm(self.activation(y) if i else y, live, move))
        return y.unflatten(1, x.shape[:2])


class DroppedMLP(nn.Module):
    """`count` perceptrons whose layers are thinned out and layer-normalised on request before they are activated:
    [T, B, inputs] -> [count, T, B, outputs].

    Which units are left out is a function of `key`, an integer for each call, and not of a generator: the same eager
    and compiled, and repeated after a resume. Without a key none is left out.
    """

    def __init__(
        self, count: int, inputs: int, hidden: tuple[int, ...], outputs: int, activation: Activation,
        dropout: float, layer_norm: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.count, self.dropout, self.activation = count, dropout, ACTIVATIONS[activation]
        self.layers = nn.ModuleList(Linears(count, a, b) for a, b in pairwise((inputs, *hidden)))
        self.norms = nn.ModuleList(LayerNorms(count, size) for size in hidden if layer_norm)
        self.head = Linears(count, hidden[-1] if hidden else inputs, outputs)

    def forward(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        y = members(x, self.count)
        for i, layer in enumerate(self.layers):
            y = layer(y)
            if key is not None and self.dropout:
                y = y * thinned(y, self.dropout, key, i)
            y = self.activation(self.norms[i](y) if self.norms else y)
        said: Tensor = self.head(y).unflatten(1, x.shape[:2])
        return said


def thinned(like: Tensor, rate: float, key: Tensor, layer: int) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), by a coin of each number (Srivastava et al. 2014)."""
    place = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    return (ops.hash_uniform(key, layer, place) >= rate) / (1 - rate)


def members(x: Tensor, count: int) -> Tensor:
    """Rows [T, B, size] for each of `count` members: [count, T * B, size]."""
    return x.reshape(1, -1, x.shape[-1]).expand(count, -1, -1)


class BoundedRewardScale(RewardScale):
    """The same, unclipped, and divided by more where the largest return seen would otherwise exceed `limit`."""

    most: Tensor

    def __init__(self, slots: int, gamma: float, limit: float) -> None:
        super().__init__(slots, gamma)
        self.limit = limit
        self.register_buffer("most", torch.zeros((), dtype=torch.float64))

    def forward(self, reward: Tensor) -> Tensor:
        size = torch.maximum((self.moments.var + 1e-8).sqrt(), self.most / self.limit)
        return reward / size.to(reward.dtype)

    @torch.no_grad()
    def observe(self, rows: Row) -> None:
        totals = self.totals(rows)
        self.moments.observe(totals[..., None], rows.valid)
        self.most.copy_(torch.maximum(self.most, torch.where(rows.valid, totals.abs(), 0.0).max()))
