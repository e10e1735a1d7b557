"""Planning by drawn plans: one round by hand, and that it finds what is best."""

from __future__ import annotations

from math import exp

import pytest
import torch
from torch import Tensor

from ganglion.core import Noise
from ganglion.search import MppiRule, mppi, shifted, spread

GOAL = torch.tensor([[0.3, -0.5], [0.8, 0.1], [-0.9, 0.0]])  # [H, A]


def near(plans: Tensor) -> Tensor:
    """The nearer to GOAL the better, [H, B, N, A] -> [B, N]."""
    return -(plans - GOAL[:, None, None].to(plans.dtype)).square().sum((0, 3)) * 10


def noise_of(rule: MppiRule, slots: int, seed: int = 0) -> Noise:
    dice = torch.Generator().manual_seed(seed)
    return Noise(*(torch.rand(slots, n, generator=dice) if k == 0 else torch.randn(slots, n, generator=dice)
                   for k, n in enumerate(rule.draws)))  # fmt: skip


def test_one_round_by_hand() -> None:
    rule = MppiRule(3, 2, samples=5, elites=3, iterations=1, temperature=0.7, most=1.5)
    noise, start = noise_of(rule, 1), torch.full((1, 3, 2), 0.1)
    own = torch.rand(3, 1, 2, 2) * 2 - 1
    found = mppi(start, own, near, noise, rule)
    e = noise.normal.view(5, 3, 2).double()
    plans = [own[:, 0, k].double() for k in range(2)]
    plans += [(0.1 + 1.5 * e[k]).clamp(-1, 1) for k in range(5)]
    worth = [float(near(p[:, None, None])) for p in plans]
    best = sorted(range(7), key=lambda k: -worth[k])[:3]
    weights = [exp((worth[k] - worth[best[0]]) / 0.7) for k in best]
    weights = [w / sum(weights) for w in weights]
    mean = sum(w * plans[k] for w, k in zip(weights, best, strict=True))
    var = sum(w * (plans[k] - mean) ** 2 for w, k in zip(weights, best, strict=True))
    torch.testing.assert_close(found.mean[0].double(), mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.std[0].double(), var.sqrt().clamp(0.05, 1.5), atol=1e-5, rtol=1e-4)
    u, summed = float(noise.uniform), 0.0
    for w, k in zip(weights, best, strict=True):
        summed += w
        if u < summed:
            torch.testing.assert_close(found.chosen[0].double(), plans[k], atol=1e-6, rtol=1e-6)
            break
    assert float(found.value) == pytest.approx(sum(w * worth[k] for w, k in zip(weights, best, strict=True)), rel=1e-4)


def test_it_finds_the_best_plan_in_every_slot_alone() -> None:
    rule = MppiRule(3, 2, samples=1_024, elites=64, iterations=6)
    noise, start, none = noise_of(rule, 4), torch.zeros(4, 3, 2), torch.zeros(3, 4, 0, 2)
    found = mppi(start, none, near, noise, rule)
    assert (found.mean - GOAL).abs().max() < 0.1
    alone = mppi(start[1:2], none[:, :1], near, Noise(noise.uniform[1:2], noise.normal[1:2]), rule)
    torch.testing.assert_close(alone.mean[0], found.mean[1])


def test_values_that_are_no_numbers_do_no_harm() -> None:
    rule = MppiRule(3, 2, samples=16, elites=4)
    found = mppi(torch.zeros(1, 3, 2), torch.zeros(3, 1, 0, 2), lambda p: near(p) * torch.nan, noise_of(rule, 1), rule)
    assert found.mean.isfinite().all() and found.std.isfinite().all()


def test_where_nothing_may_be_random_all_rows_draw_alike() -> None:
    rule = MppiRule(3, 2, samples=64, elites=8)
    said = spread(torch.zeros(1, 3), rule.draws)
    assert torch.equal(said.normal[0, 0], said.normal[0, 2]) and said.normal.std() == pytest.approx(1.0, abs=0.1)
    plan = torch.arange(6.0).view(3, 2)
    assert shifted(plan).tolist() == [[2.0, 3.0], [4.0, 5.0], [0.0, 0.0]]
