"""Planning of continuous actions by model predictive path integrals (Williams et al. 2015; Hansen et al. 2024): plans
are drawn from a normal that moves onto the best of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Draw, Noise

Worth = Callable[[Tensor], Tensor]  # plans [H, B, N, A] -> values [B, N]


class MppiRule(NamedTuple):
    """How plans of `horizon` actions are drawn and weighed; actions are numbers from -1 to 1."""

    horizon: int
    size: int  # numbers of an action
    samples: int = 64
    elites: int = 16
    iterations: int = 4
    temperature: float = 0.5
    least: float = 0.05  # standard deviation
    most: float = 2.0

    @property
    def draws(self) -> Draw:
        """Random numbers of a row: which of the elites, and plans."""
        return Draw(uniform=1, normal=self.iterations * self.samples * self.horizon * self.size)


class MppiPlan(NamedTuple):
    """What was found: the first actions of the elites, as a normal, and one of them."""

    mean: Tensor  # [B, H, A]
    std: Tensor  # [B, H, A]
    chosen: Tensor  # [B, H, A] an elite
    value: Tensor  # [B] of the elites, weighed


def mppi(start: Tensor, own: Tensor, worth: Worth, noise: Noise, rule: MppiRule) -> MppiPlan:
    """From a plan [B, H, A] to begin with, and plans that take part in every round, [H, B, K, A] (K may be 0).

    Each round draws plans a = clip(mean + std e), takes the best E by value, and moves the normal onto them:
    w_i = softmax((v_i - max v) / temperature), mean = sum w_i a_i, std^2 = sum w_i (a_i - mean)^2.
    """
    slots, horizon, size = start.shape
    shaken = noise.normal.view(slots, rule.iterations, rule.samples, horizon, size).permute(1, 3, 0, 2, 4)
    mean = start.transpose(0, 1)  # [H, B, A]
    std = torch.full_like(mean, rule.most)
    elite, weight, value = own, start.new_empty(0), start.new_empty(0)
    for e in shaken.unbind():
        drawn = (mean[:, :, None] + std[:, :, None] * e).clamp(-1.0, 1.0)
        plans = torch.cat([own, drawn], 2)
        value, which = worth(plans).nan_to_num(0.0).topk(rule.elites, -1)  # [B, E]
        elite = plans.gather(2, which[None, :, :, None].expand(horizon, -1, -1, size))
        weight = ((value - value[:, :1]) / rule.temperature).softmax(-1)
        share = weight[None, :, :, None]
        mean = (share * elite).sum(2)
        std = (share * (elite - mean[:, :, None]).square()).sum(2).sqrt().clamp(rule.least, rule.most)
    one = ops.inverse_cdf(weight, noise.uniform[..., 0])
    chosen = elite.gather(2, one[None, :, None, None].expand(horizon, -1, 1, size)).squeeze(2)
    mean, std, chosen = (x.transpose(0, 1) for x in (mean, std, chosen))
    return MppiPlan(mean, std, chosen, (weight * value).sum(-1))


def shifted(plan: Tensor) -> Tensor:
    """A plan [..., H, A] one step later: its last action is not known yet."""
    return torch.cat([plan[..., 1:, :], torch.zeros_like(plan[..., :1, :])], -2)


def spread(rows: Tensor, draw: Draw) -> Noise:
    """The same numbers for every row [T, B]: what a planner draws plans from where nothing may be random."""
    number = torch.arange(draw.normal, device=rows.device)
    normal = ops.hash_normal(number, 0).expand(*rows.shape[:2], -1)
    return Noise(normal.new_full((*rows.shape[:2], draw.uniform), 0.5), normal)
