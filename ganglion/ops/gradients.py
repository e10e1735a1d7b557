"""Rules on gradients before an optimiser sees them: pure functions on sequences of tensors, usable with any optimiser.

`clip` makes what is too large as large as allowed; `ignore` makes the whole update 0 when anything is too large.
The momentum rules measure against the root of a running mean of squares, so the limit is a multiple of what is usual.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Grads = Sequence[Tensor]


def grad_norm(grads: Grads) -> Tensor:
    """The length of all gradients as one vector, 0-d."""
    return torch.stack([g.square().sum() for g in grads]).sum().sqrt()


def second_moment(grads: Grads, second: Grads, decay: float = 0.999) -> list[Tensor]:
    """decay * v + (1 - decay) * g^2: the running mean of squares that the momentum rules take."""
    return [decay * v + (1 - decay) * g.square() for g, v in zip(grads, second, strict=True)]


def _scaled(grads: Grads, by: Tensor) -> list[Tensor]:
    return [g * by for g in grads]


def _unless(too_large: Tensor, grads: Grads) -> list[Tensor]:
    return [torch.where(too_large, torch.zeros_like(g), g) for g in grads]


def clip_value(grads: Grads, limit: float) -> list[Tensor]:
    """Each element within +-limit."""
    return [g.clamp(-limit, limit) for g in grads]


def clip_norm(grads: Grads, limit: float | Tensor) -> list[Tensor]:
    """All scaled so that their joint norm is at most `limit`. Pascanu et al. 2013."""
    norm = grad_norm(grads)
    return _scaled(grads, torch.where(norm > limit, limit / norm.clamp(min=1e-12), torch.ones_like(norm)))


def clip_momentum(grads: Grads, second: Grads, limit: float) -> list[Tensor]:
    """Each element within +-limit * sqrt(v)."""
    return [torch.clamp(g, -limit * v.sqrt(), limit * v.sqrt()) for g, v in zip(grads, second, strict=True)]


def clip_momentum_norm(grads: Grads, second: Grads, limit: float) -> list[Tensor]:
    """All scaled so that their joint norm is at most limit * |sqrt(v)|."""
    return clip_norm(grads, limit * grad_norm([v.sqrt() for v in second]))


def ignore_value(grads: Grads, limit: float) -> list[Tensor]:
    """Nothing at all where any element is beyond +-limit."""
    return _unless(torch.stack([(g.abs() > limit).any() for g in grads]).any(), grads)


def ignore_norm(grads: Grads, limit: float | Tensor) -> list[Tensor]:
    """Nothing at all where the joint norm is above `limit`."""
    return _unless(grad_norm(grads) > limit, grads)


def ignore_momentum(grads: Grads, second: Grads, limit: float) -> list[Tensor]:
    """Nothing at all where any element is beyond +-limit * sqrt(v)."""
    beyond = [(g.abs() > limit * v.sqrt()).any() for g, v in zip(grads, second, strict=True)]
    return _unless(torch.stack(beyond).any(), grads)


def ignore_momentum_norm(grads: Grads, second: Grads, limit: float) -> list[Tensor]:
    """Nothing at all where the joint norm is above limit * |sqrt(v)|."""
    return ignore_norm(grads, limit * grad_norm([v.sqrt() for v in second]))


def pcgrad(grads: Tensor, uniform: Tensor) -> Tensor:
    """Gradients of k tasks without their conflicts: [k, n], uniform [k, k] -> [k, n]. Yu et al. 2020.

    For each i, over the other tasks j in random order: where g_i . g_j < 0, g_i -= (g_i . g_j / |g_j|^2) g_j, with g_j
    the original. Their sum over k is the update.
    """
    tasks = grads.shape[0]
    size = grads.square().sum(-1).clamp(min=1e-12)
    order = uniform.argsort(-1)  # [k, k]
    rows = torch.arange(tasks, device=grads.device)
    out = grads
    for step in range(tasks):
        j = order[:, step]
        other = grads[j]
        dot = (out * other).sum(-1)
        away = torch.where((dot < 0) & (j != rows), dot / size[j], 0.0)
        out = out - away.unsqueeze(-1) * other
    return out
