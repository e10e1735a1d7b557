"""Running statistics against all rows at once."""

from __future__ import annotations

import pytest
import torch

from ganglion.core import Row
from ganglion.nn import ObsNormaliser, RewardScale


def test_statistics_of_parts_are_those_of_the_whole():
    g = torch.Generator().manual_seed(0)
    norm = ObsNormaliser(3)
    rows = torch.randn(50, 4, 3, generator=g) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, -5.0, 100.0])
    valid = torch.rand(50, 4, generator=g) < 0.8
    for t in range(0, 50, 5):
        norm.moments.observe(rows[t : t + 5], valid[t : t + 5])
    live = rows[valid].double()
    assert torch.allclose(norm.moments.mean, live.mean(0)) and norm.moments.count == len(live)
    assert torch.allclose(norm.moments.var, live.var(0, unbiased=False))
    made = norm(rows)[valid]
    assert torch.allclose(made.mean(0), torch.zeros(3), atol=1e-4)
    assert torch.allclose(made.std(0, unbiased=False), torch.ones(3), atol=1e-3)


def test_nothing_valid_changes_nothing():
    norm = ObsNormaliser(2)
    norm.moments.observe(torch.full((3, 2, 2), float("inf")), torch.zeros(3, 2, dtype=torch.bool))
    x = torch.tensor([[[0.5, -0.5]]])
    assert torch.allclose(norm(x), x) and norm.moments.count == 0


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return():
    scale = RewardScale(slots=2, gamma=0.5)
    reward = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    start = torch.tensor([[True, True], [False, False], [True, False]])
    valid = torch.ones(3, 2, dtype=torch.bool)
    off = torch.zeros(3, 2, dtype=torch.bool)
    scale.observe(Row(reward, reward, reward, off, off, valid, start, {}, ()))
    totals = torch.tensor([1.0, 2.0, 3.5, 5.0, 5.0, 2.5])  # slot 0 starts anew at its third row
    assert scale.moments.var.item() == pytest.approx(totals.var(unbiased=False).item(), rel=1e-6)
    assert scale(torch.tensor(1.0)).item() == pytest.approx(1 / totals.std(unbiased=False).item(), rel=1e-5)
