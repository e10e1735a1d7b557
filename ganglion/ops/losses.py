"""Losses per row, to be minimised; reduce them with `masked_mean` or `weighted_mean`."""

from __future__ import annotations

import torch
from torch import Tensor


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """e^2 / 2 within delta, delta (|e| - delta / 2) beyond."""
    size = error.abs()
    small = size.clamp(max=delta)
    return small * (size - 0.5 * small)


def penalty(error: Tensor, kind: str) -> Tensor:
    """What an error costs: "mse" is e^2, "huber" is e^2 / 2 up to |e| = 1 and |e| - 1/2 beyond."""
    if kind == "mse":
        return error.square()
    if kind == "huber":
        return huber(error)
    raise ValueError(f"penalty: kind is 'mse' or 'huber', not {kind!r}")


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor, dual: float | None = None) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip, 1 + clip) A); with `dual` c > 1 never above -c A where A < 0.

    Schulman et al. 2017 (PPO); Ye et al. 2020 (dual clip, for negative advantages only).
    """
    ratio = log_ratio.exp()
    near = torch.clamp(ratio, 1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, near * advantage)
    if dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)


def value_loss(value: Tensor, old: Tensor, goal: Tensor, clip: float | Tensor | None = None) -> Tensor:
    """(V - G)^2 / 2; with `clip`, the larger of that and the loss of a value moved no further than clip from `old`."""
    loss = (value - goal).square()
    if clip is not None:
        near = old + torch.clamp(value - old, -clip, clip)
        loss = torch.maximum(loss, (near - goal).square())
    return 0.5 * loss


def kl_k1(log_ratio: Tensor) -> Tensor:
    """-log rho: KL(old || new) from samples of old; unbiased, may be negative."""
    return -log_ratio


def kl_k2(log_ratio: Tensor) -> Tensor:
    """(log rho)^2 / 2: biased, never negative."""
    return 0.5 * log_ratio.square()


def kl_k3(log_ratio: Tensor) -> Tensor:
    """rho - 1 - log rho: unbiased and never negative."""
    return torch.expm1(log_ratio) - log_ratio
