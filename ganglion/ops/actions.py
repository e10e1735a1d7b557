"""From the raw outputs of a head to the distribution over an action space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ganglion.core import Box, Discrete, Draw, MultiBinary, MultiDiscrete, Space
from ganglion.ops.distributions import (
    Bernoulli,
    Categorical,
    MultiCategorical,
    Normal,
    Product,
    TanhNormal,
    add_draws,
)


def dist_size(space: Space) -> int:
    """How many raw outputs of a head make a distribution over the space."""
    if isinstance(space, Discrete):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    if isinstance(space, MultiBinary):
        return space.n
    if isinstance(space, Box):
        return 2 * space.size
    return sum(dist_size(s) for s in space.items.values())


def dist_draws(space: Space) -> Draw:
    """How many random numbers a sample takes."""
    if isinstance(space, Discrete):
        return Draw(uniform=1)
    if isinstance(space, MultiDiscrete):
        return Draw(uniform=len(space.nvec))
    if isinstance(space, MultiBinary):
        return Draw(uniform=space.n)
    if isinstance(space, Box):
        return Draw(normal=space.size)
    return add_draws([dist_draws(s) for s in space.items.values()])


def bounds(space: Box, like: Tensor) -> tuple[Tensor, Tensor]:
    """Low and high of a box as tensors beside `like`, shaped like an action. Filled, not copied: safe under capture."""

    def fill(values: tuple[float, ...]) -> Tensor:
        if len(set(values)) == 1:
            return like.new_full(space.shape, values[0])
        return torch.cat([like.new_full((1,), v) for v in values]).reshape(space.shape)

    return fill(space.low), fill(space.high)


def anywhere(space: Box, uniform: Tensor, edges: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Actions anywhere within the bounds of a box: uniform numbers [..., size] -> [..., *shape]. `edges`: its `bounds`,
    where they are at hand."""
    low, high = bounds(space, uniform) if edges is None else edges
    return low + (high - low) * uniform.reshape(*uniform.shape[:-1], *space.shape)


def dist(raw: Tensor, space: Space, legal: Any = None, squash: bool = False) -> Any:
    """The distribution over `space` that raw head outputs [..., dist_size(space)] stand for.

    A box becomes a Normal, or with `squash` a TanhNormal onto its bounds; a Composite hands each part its own outputs
    and, from a mapping of masks, its own mask.
    """
    if isinstance(space, Discrete):
        return Categorical(raw, legal)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(raw, space.nvec, legal)
    if isinstance(space, MultiBinary):
        return Bernoulli(raw)
    if isinstance(space, Box):
        return _box(raw, space, squash)
    pieces = raw.split([dist_size(s) for s in space.items.values()], -1)
    masks = legal if isinstance(legal, Mapping) else {}
    named = zip(space.items.items(), pieces, strict=True)
    return Product({k: dist(piece, part, masks.get(k), squash) for (k, part), piece in named})


def _box(raw: Tensor, space: Box, squash: bool) -> Normal | TanhNormal:
    mean, log_std = (x.reshape(*raw.shape[:-1], *space.shape) for x in raw.split(space.size, -1))
    if not squash:
        return Normal(mean, log_std, len(space.shape))
    low, high = bounds(space, raw)
    return TanhNormal(mean, log_std.clamp(-20, 2), low, high, len(space.shape))


def decisions(valid: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
    """Which rows [T, B] are decisions: not of those that wait for their turn, whose values are learned all the same."""
    return valid & extras["acts"] if "acts" in extras else valid
