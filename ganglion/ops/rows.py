"""Rows, masks and means: what every algorithm does with [T, B, ...] tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ganglion.core import Draw, Noise
from ganglion.ops.across import mean, several


def alike(name: str, *tensors: Tensor) -> None:
    """Refuses tensors of unequal shape: broadcasting [B, 1] over [B] would silently make [B, B]."""
    shapes = [tuple(x.shape) for x in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"{name}: all tensors need one shape, got {shapes}")


def within(x: Tensor, low: Any, high: Any) -> Tensor:
    """x moved into [low, high]; both numbers, or both tensors that broadcast to x."""
    return torch.clamp(x, low, high)


def mask(obs: Any) -> Any:
    """The legal actions of an observation, or None where it does not say. Structural, so compilers trace it."""
    if isinstance(obs, Mapping) and "action_mask" in obs:
        return obs["action_mask"]
    return None


def pick(q: Tensor, action: Tensor) -> Tensor:
    """q[..., action]: [..., A] and [...] int64 -> [...]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def blocked(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Logits or values with illegal entries at the lowest finite number: probability exactly 0, no NaN anywhere."""
    if legal is None:
        return logits
    return logits.masked_fill(~legal.bool(), torch.finfo(logits.dtype).min)


def best(q: Tensor, legal: Tensor | None = None) -> Tensor:
    """The best legal action: argmax over the last axis, int64."""
    return blocked(q, legal).argmax(-1)


def at(value: Tensor, ahead: Tensor) -> Tensor:
    """value[ahead[t, b], b]: [S, B] and [T, B] int64 -> [T, B]. Trailing axes of `value` come along."""
    if len(value) == 1 and len(ahead) == 1:  # a row there is only one of
        return value
    extra = value.dim() - ahead.dim()
    index = ahead.reshape(*ahead.shape, *[1] * extra).expand(*ahead.shape, *value.shape[ahead.dim() :])
    return value.gather(0, index)


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """sum(w x) / count(w > 0): rows of weight 0 take no part, not even in the divisor."""
    alike("weighted_mean", x, weight)
    live = weight > 0
    return mean(torch.where(live, weight * x, 0.0).sum(), live.sum())


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """The mean over rows where `valid`; 0 where none is."""
    alike("masked_mean", x, valid)
    return mean(torch.where(valid, x, 0.0).sum(), valid.sum())


def masked_means(valid: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """The `masked_mean` of each; together where operations are run one by one."""
    if torch.compiler.is_compiling() or several():
        return tuple(masked_mean(x, valid) for x in rows)
    alike("masked_means", valid, *rows)
    return mean(torch.where(valid, torch.stack(rows), 0.0).flatten(1).sum(1), valid.sum()).unbind()


def normalise(x: Tensor, valid: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """(x - mean) / std over valid rows; constant input gives 0, and so do invalid rows."""
    valid = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
    count = valid.sum()
    centred = torch.where(valid, x - mean(torch.where(valid, x, 0.0).sum(), count), 0.0)
    centred = torch.where(valid, centred - mean(centred.sum(), count), 0.0)  # the rounding of a large mean goes too
    return centred * (mean(centred.square().sum(), count) + eps**2).rsqrt()


def sequence_priority(error: Tensor, weight: Tensor | None = None, eta: float = 0.9) -> Tensor:
    """eta max|error| + (1 - eta) mean|error| over the rows of each sequence with weight > 0: [T, B] -> [B].

    Kapturowski et al. 2019 (R2D2); |error| itself for T = 1.
    """
    live = torch.ones_like(error, dtype=torch.bool) if weight is None else weight > 0
    size = torch.where(live, error.detach().abs(), 0.0)
    if error.shape[0] == 1:
        return size[0]
    return eta * size.amax(0) + (1 - eta) * size.sum(0) / live.sum(0).clamp(min=1)


def shuffled(rows: int, epochs: int, minibatches: int, noise: Noise) -> Tensor:
    """Minibatches of `epochs` passes over `rows`: int64 [epochs * minibatches, rows // minibatches].

    Each pass is a fresh permutation: the order of noise.uniform[:, epoch], [rows, epochs]. Where `minibatches` does not
    divide `rows`, the last rows % minibatches rows of each permutation sit that pass out.
    """
    each = rows // minibatches
    order = noise.uniform[:, :epochs].t().argsort(dim=-1, stable=True)
    return order[:, : each * minibatches].reshape(epochs * minibatches, each)


def shuffle_draws(epochs: int) -> Draw:
    """What `shuffled` needs per row."""
    return Draw(uniform=epochs)


def above(x: Tensor, limit: float | None) -> Tensor | None:
    """x > limit as a tensor; None where there is no limit."""
    return None if limit is None else x > limit


def empty(like: Tensor) -> Tensor:
    """A tensor of no elements beside `like`: "no priorities"."""
    return like.new_zeros(0, dtype=torch.float32)
