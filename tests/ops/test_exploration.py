"""Exploration noise: its law, its independence between slots, and hashed random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ganglion import ops


def test_gaussian() -> None:
    action, low, high = torch.zeros(1, 3, 2), torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0])
    normal = torch.tensor([[[0.5, 0.5], [9.0, -9.0], [1.0, 2.0]]])
    noisy = ops.gaussian(action, normal, 0.2, low, high)
    assert_close(noisy, torch.tensor([[[0.1, 0.2], [1.0, -2.0], [0.2, 0.8]]]))
    bounded = ops.gaussian(action, normal, 0.2, low, high, limit=0.3)
    assert_close(bounded, torch.tensor([[[0.1, 0.2], [0.3, -0.6], [0.2, 0.6]]]))


def test_ornstein_uhlenbeck() -> None:
    normal = np.random.default_rng(0).normal(size=(50, 3, 2))
    x, state = np.zeros((3, 2)), torch.zeros(3, 2, dtype=torch.float64)
    for row in normal:
        x = x + 0.15 * (0.5 - x) * 1e-2 + 0.3 * np.sqrt(1e-2) * row
        state = ops.ou_step(state, torch.as_tensor(row), mu=0.5)
    assert_close(state, torch.as_tensor(x))


def slope(x: torch.Tensor) -> float:
    """The exponent of the power spectrum over the middle frequencies, by least squares in logarithms."""
    power = torch.fft.rfft(x, dim=0).abs().square().mean(1).numpy()
    f = np.fft.rfftfreq(len(x))
    keep = (f > 0.005) & (f < 0.1)
    return float(np.polyfit(np.log(f[keep]), np.log(power[keep]), 1)[0])


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1024, 1023])
def test_coloured_noise(beta: float, rows: int) -> None:
    normal = torch.randn(rows, 200, generator=torch.Generator().manual_seed(0))
    x = ops.coloured(normal, beta)
    assert abs(slope(x) + beta) < 0.1
    assert abs(x.square().mean().item() - 1) < 0.1
    if beta == 0:
        assert_close(x, normal, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_coloured_noise_has_unit_variance_exactly(beta: float, rows: int) -> None:
    """The map is linear: the variance of each row is the squared length of its weights."""
    weights = ops.coloured(torch.eye(rows, dtype=torch.float64), beta)
    assert_close(weights.square().sum(1), torch.ones(rows, dtype=torch.float64))
    if beta == 0:
        assert_close(weights, torch.eye(rows, dtype=torch.float64))


@pytest.mark.parametrize("beta", [1.0, 2.0])
@pytest.mark.parametrize("rows", [2, 3, 8, 9])
def test_frequency_zero_is_as_loud_as_the_lowest_one(beta: float, rows: int) -> None:
    """1 / f^beta has no value at 0: a constant grows as much as the slowest wave that fits in, no more and no less."""
    wave = torch.cos(2 * torch.pi * torch.arange(rows, dtype=torch.float64) / rows)
    constant = torch.ones(rows, dtype=torch.float64)
    slowest = ops.coloured(wave, beta)[0] / wave[0]
    assert_close(ops.coloured(constant, beta), slowest * constant)
    if rows > 3:
        faster = torch.cos(4 * torch.pi * torch.arange(rows, dtype=torch.float64) / rows)
        assert_close(ops.coloured(faster, beta)[0] / faster[0], slowest * 2 ** (-beta / 2))


def test_pink_steps_are_pink_and_independent() -> None:
    g = torch.Generator().manual_seed(0)
    state = torch.randn(200, 1, 10, generator=g)
    rows = []
    for _ in range(1024):
        state, x = ops.pink_step(state, torch.randn(200, 10, generator=g))
        rows.append(x.squeeze(-1))
    x = torch.stack(rows)
    assert abs(slope(x) + 1) < 0.2
    assert abs(x.var().item() - 1) < 0.2
    assert np.abs(np.corrcoef(x[:, :10].t().numpy()) - np.eye(10)).mean() < 0.3


def test_parameter_noise() -> None:
    tree = {"w": torch.zeros(2), "b": (torch.ones(1),)}
    out = ops.perturb(tree, {"w": torch.tensor([1.0, -1.0]), "b": (torch.tensor([2.0]),)}, 0.5)
    assert_close(out["w"], torch.tensor([0.5, -0.5])), assert_close(out["b"][0], torch.tensor([2.0]))
    sigma = ops.adapt_sigma(torch.tensor([1.0, 1.0]), torch.tensor([0.1, 0.3]), 0.2)
    assert_close(sigma, torch.tensor([1.01, 1 / 1.01]))
    assert ops.epsilon_distance(0.0, 4) == 0 and abs(ops.epsilon_distance(0.4, 4) + np.log(0.7)) < 1e-12


# ------------------------------------------------------------ hashing


def test_hash_bits_are_what_they_were() -> None:
    """Written down once: worlds on other devices and in later versions must reset alike."""
    ours = ops.hash_bits(torch.tensor([0, 1, 2**40, -1]), 7)
    assert ours.tolist() == [2323334460, 2863443687, 217401878, 2048841542]
    assert torch.equal(ops.hash_bits(torch.tensor([0, 1, 2**40, -1], dtype=torch.int64), torch.tensor(7)), ours)


def test_hash_is_even_and_every_key_counts() -> None:
    slot, episode = torch.arange(200).unsqueeze(1), torch.arange(300).unsqueeze(0)
    u = ops.hash_uniform(3, slot, episode)
    assert u.shape == (200, 300) and u.dtype == torch.float32 and (u >= 0).all() and (u < 1).all()
    count = torch.histc(u, 20, 0, 1)
    assert ((count - 3000).square() / 3000).sum() < 50  # chi-square, 19 degrees: 50 is far in the tail
    assert u.unique().numel() > 59_500  # 24 bits: about 100 chance meetings
    assert not torch.equal(u, ops.hash_uniform(4, slot, episode))
    assert abs(torch.corrcoef(u[:10]).fill_diagonal_(0)).max() < 0.25
    bits = ops.hash_bits(torch.arange(4096))
    share = torch.stack([(bits >> i & 1).double().mean() for i in range(32)])
    assert (share - 0.5).abs().max() < 0.05
    flips = torch.stack([(bits >> i & 1) ^ (ops.hash_bits(torch.arange(4096) ^ 1) >> i & 1) for i in range(32)])
    assert abs(flips.double().mean() - 0.5) < 0.02  # one input bit moves half of the output


def test_hash_normal() -> None:
    x = ops.hash_normal(torch.arange(100_000), 5)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02 and torch.isfinite(x).all()
    assert abs((x.abs() < 1).double().mean() - 0.6827) < 0.01
