"""Scales: rescaling of values, symlog, two-hot, running moments, PopArt."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ganglion.ops.rows import alike


def rescale(x: Tensor, eps: float = 1e-2) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x. Pohlen et al. 2018."""
    size = x.abs()
    return x.sign() * size / (torch.sqrt(size + 1) + 1) + eps * x  # sqrt(a + 1) - 1 without cancellation


def unrescale(x: Tensor, eps: float = 1e-2) -> Tensor:
    """The inverse of `rescale`: sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)."""
    a = x.abs()
    root = 2 * (a + 1 + eps) / (torch.sqrt(1 + 4 * eps * (a + 1 + eps)) + 1)  # finite for eps = 0 too
    less = a / (0.5 + 0.5 * torch.sqrt(1 + 4 * eps * (a + 1 + eps)) + eps)  # root - 1, without cancellation
    return x.sign() * less * (root + 1)


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|). Hafner et al. 2023."""
    return x.sign() * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """The inverse of `symlog`."""
    return x.sign() * torch.expm1(x.abs())


def two_hot(x: Tensor, support: Tensor) -> Tensor:
    """Weights on the two points of a rising `support` [n] around x whose mean is x (clipped to the ends): [..., n]."""
    x = torch.minimum(torch.maximum(x, support[0]), support[-1])
    upper = torch.searchsorted(support, x.contiguous(), right=True).clamp(1, support.shape[0] - 1)
    low, high = support[upper - 1], support[upper]
    share = ((x - low) / (high - low)).unsqueeze(-1)
    zeros = x.new_zeros(*x.shape, support.shape[0])
    upper = upper.unsqueeze(-1)
    return zeros.scatter(-1, upper, share).scatter(-1, upper - 1, 1 - share)


def from_two_hot(probs: Tensor, support: Tensor) -> Tensor:
    """The mean of a distribution on the support: [..., n] -> [...]."""
    return (probs * support).sum(-1)


class Moments(NamedTuple):
    """Mean and variance of all rows seen, per element, and their number."""

    mean: Tensor  # [*shape]
    var: Tensor  # [*shape]
    rows: Tensor  # 0-d

    def std(self, eps: float = 1e-8) -> Tensor:
        return torch.sqrt(self.var + eps)

    def normalise(self, x: Tensor, limit: float = 10.0) -> Tensor:
        """(x - mean) / std, within +-limit."""
        return ((x - self.mean) / self.std()).clamp(-limit, limit)


def moments(x: Tensor, valid: Tensor | None = None) -> Moments:
    """Moments of a batch over its rows: x [*rows, *shape], valid [*rows] (all of the first axis where None)."""
    valid = torch.ones_like(x[(...,) + (0,) * (x.dim() - 1)], dtype=torch.bool) if valid is None else valid
    rows = x.reshape(valid.numel(), *x.shape[valid.dim() :]).to(torch.promote_types(x.dtype, torch.float32))
    live = valid.reshape(-1, *[1] * (rows.dim() - 1))
    count = valid.sum().to(rows.dtype)
    mean = torch.where(live, rows, 0.0).sum(0) / count.clamp(min=1)
    var = torch.where(live, (rows - mean).square(), 0.0).sum(0) / count.clamp(min=1)
    return Moments(mean, var, count)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """The moments of both sets of rows together, in any order of merging. Chan et al. 1979."""
    count = a.rows + b.rows
    share = b.rows / count.clamp(min=1)
    gap = b.mean - a.mean
    var = (1 - share) * a.var + share * b.var + share * (1 - share) * gap.square()
    return Moments(a.mean + share * gap, var, count)


def popart(weight: Tensor, bias: Tensor, old: Moments, new: Moments) -> tuple[Tensor, Tensor]:
    """A last layer whose de-normalised outputs stay what they were when the moments move. van Hasselt et al. 2016.

    w' = w s / s',  b' = (s b + m - m') / s';  weight [out, in], bias [out], moments [out] (or scalars).
    """
    alike("popart", old.mean, new.mean)
    before, after = old.std(), new.std()
    ratio = (before / after).expand_as(bias)
    return weight * ratio.unsqueeze(-1), (before * bias + old.mean - new.mean) / after
