"""Dirichlet numbers from uniform and normal ones, in a fixed number of operations."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.core import Draw, Noise

TRIES = 4  # one in 200,000 numbers or fewer is refused as often: it stays at its mean


def dirichlet_draws(actions: int) -> Draw:
    """What `dirichlet` needs per row."""
    return Draw(uniform=(TRIES + 1) * actions, normal=TRIES * actions)


def dirichlet(alpha: float, legal: Tensor, noise: Noise) -> Tensor:
    """Shares of the legal actions, [..., A] bool -> [..., A]: Gamma numbers over their sum.

    A Gamma(alpha) number is one of Gamma(alpha + 1) times u^(1 / alpha); those are proposals d (1 + c x)^3 of a normal
    x, of which more than 19 in 20 are taken (Marsaglia and Tsang 2000). Computed as logarithms: small ones would be 0.
    """
    actions = legal.shape[-1]
    last, *tries = noise.uniform[..., : (TRIES + 1) * actions].unflatten(-1, (TRIES + 1, actions)).unbind(-2)
    d = alpha + 1 - 1 / 3
    log_v = torch.zeros_like(last)
    for u, x in zip(tries, noise.normal[..., : TRIES * actions].unflatten(-1, (TRIES, actions)).unbind(-2)):
        v = (1 + x / (9 * d) ** 0.5).clamp(min=1e-30) ** 3
        taken = torch.log(u.clamp(min=1e-30)) < 0.5 * x.square() + d - d * v + d * v.log()
        log_v = torch.where(taken & (v > 1e-25), v.log(), log_v)
    logs = log_v + last.clamp(min=1e-30).log() / alpha
    return logs.masked_fill(~legal.bool(), -torch.inf).softmax(-1).nan_to_num(0.0)
