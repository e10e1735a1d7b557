"""Exploration: noise on actions and parameters, per slot. Coins and softmax are `Greedy`'s; schedules are config's."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import torch
from torch import Tensor

from ganglion.ops.rows import within
from ganglion.ops.trees import map_tree


def epsilon_ladder(
    slots: int, eps: float | Tensor = 0.4, alpha: float = 7.0, share: tuple[int, int] = (0, 1)
) -> Tensor:
    """eps^(1 + alpha i / (N - 1)) for slot i of N: every slot explores at its own rate. Horgan et al. 2018 (Ape-X).

    With `share` (k, K) these slots are the k-th of K equal parts of all N.
    """
    part, parts = share
    rung = torch.arange(part * slots, (part + 1) * slots, device=eps.device if isinstance(eps, Tensor) else None)
    return eps ** (1 + alpha / max(parts * slots - 1, 1) * rung)


def gaussian(
    action: Tensor, normal: Tensor, std: float | Tensor, low: Tensor, high: Tensor, limit: float | None = None
) -> Tensor:
    """Action + std * normal, in units of half the range, within bounds; `limit` bounds the noise first (TD3's target).

    `normal` is [..., size] flat; low and high broadcast to the action.
    """
    noise = std * normal.reshape(action.shape)
    noise = noise if limit is None else noise.clamp(-limit, limit)
    return within(action + noise * (0.5 * (high - low)), low, high)


def ou_step(
    state: Tensor, normal: Tensor, mu: float = 0.0, theta: float = 0.15, sigma: float = 0.3, dt: float = 1e-2
) -> Tensor:
    """x + theta (mu - x) dt + sigma sqrt(dt) normal: one step of an Ornstein-Uhlenbeck process per slot.

    Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016. The state is the slot's: set it to 0 where an episode starts.
    """
    return state + theta * (mu - state) * dt + sigma * sqrt(dt) * normal.reshape(state.shape)


def coloured(normal: Tensor, beta: float = 1.0) -> Tensor:
    """White noise [T, ...] turned into noise of power 1 / f^beta and unit variance: 0 white, 1 pink, 2 red.

    Timmer and Koenig 1995; Eberhard et al. 2023 (pink noise for actions). One call per episode.
    """
    rows = normal.shape[0]
    frequency = torch.fft.rfftfreq(rows, dtype=normal.dtype, device=normal.device)
    scale = frequency.clamp(min=1 / rows) ** (-beta / 2)
    twice = torch.full_like(scale, 2.0)  # every frequency but the first, and the last of an even count, stands for two
    twice[:1].fill_(1.0)  # filled, not assigned: a number cannot be copied in under capture
    if rows % 2 == 0:
        twice[-1:].fill_(1.0)
    scale = scale * torch.sqrt(rows / (twice * scale.square()).sum())
    spectrum = torch.fft.rfft(normal, dim=0) * scale.reshape(-1, *[1] * (normal.dim() - 1))
    pink: Tensor = torch.fft.irfft(spectrum, n=rows, dim=0)
    return pink


def pink_step(state: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """One step of pink noise per slot: state [..., n, K] -> (state, noise [..., n] of unit variance).

    A sum of K first-order processes with time scales 1, 2, 4, ...: its power falls as 1 / f over K octaves, without
    knowing the length of the episode. `normal` is [..., n * K]; K = 10 is plenty for a thousand steps.
    """
    octaves = state.shape[-1]
    scale = 2.0 ** torch.arange(octaves, dtype=state.dtype, device=state.device)
    keep = torch.exp(-1 / scale)
    state = keep * state + torch.sqrt(1 - keep.square()) * normal.reshape(state.shape)
    return state, state.sum(-1) / sqrt(octaves)


def perturb(parameters: Any, normal: Any, sigma: float | Tensor) -> Any:
    """Parameters + sigma * normal, leaf by leaf: parameter noise (Plappert et al. 2018)."""
    return map_tree(lambda p, n: p + sigma * n, parameters, normal)


def adapt_sigma(sigma: Tensor, distance: Tensor, target: float, factor: float = 1.01) -> Tensor:
    """Parameter noise that keeps the actions' distance near `target`: sigma grows below it and shrinks above."""
    return torch.where(distance < target, sigma * factor, sigma / factor)


def epsilon_distance(eps: float, actions: int) -> float:
    """-log(1 - eps + eps / A): the KL that parameter noise should reach to explore like eps-greedy."""
    return -log(1 - eps + eps / actions)


def factorised(into: Tensor, out: Tensor) -> Tensor:
    """Noise of a noisy layer from one number per input and per output, [out, in]. Fortunato et al. 2018."""

    def root(x: Tensor) -> Tensor:
        return x.sign() * x.abs().sqrt()

    return root(out).unsqueeze(-1) * root(into).unsqueeze(-2)
