"""What temporal differences mean beyond their formulas; the table holds their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
T, B, A = 3, 2, 4


def tensor(x: Any) -> torch.Tensor:
    return torch.as_tensor(x)


class Draw:
    """Random float64 inputs of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.reward = self.rng.normal(size=(T, B))
        self.discount = np.where(self.rng.random((T, B)) < 0.3, 0.0, self.rng.uniform(0.5, 1, (T, B)))

    def normal(self, *shape: int) -> Any:
        return self.rng.normal(size=shape)

    def action(self, *shape: int, n: int = A) -> Any:
        return self.rng.integers(0, n, shape)


def test_targets_carry_no_gradient() -> None:
    d = Draw(0)
    q = tensor(d.normal(T, B, A)).requires_grad_()
    next_q = tensor(d.normal(T, B, A)).requires_grad_()
    action = tensor(d.action(T, B))
    error = ops.q_td(q, action, tensor(d.reward), tensor(d.discount), next_q, action)
    grads = torch.autograd.grad(error.sum(), [q, next_q], allow_unused=True)
    assert grads[0] is not None and grads[1] is None


@few
@given(seeds, st.booleans())
def test_soft_and_munchausen(seed: int, masked: bool) -> None:
    d, tau = Draw(seed), 0.3
    q, action = d.normal(T, B, A), d.action(T, B)
    legal = d.rng.random((T, B, A)) < 0.6 if masked else np.ones((T, B, A), bool)
    np.put_along_axis(legal, action[..., None], True, -1)
    soft, bonus, mean = np.zeros((T, B)), np.zeros((T, B)), np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            weights = np.exp(q[t, b] / tau) * legal[t, b]
            soft[t, b] = tau * np.log(weights.sum())
            bonus[t, b] = np.clip(tau * np.log(weights[action[t, b]] / weights.sum()), -1, 0)
            pi = weights / weights.sum()
            mean[t, b] = sum(p * (x - tau * np.log(p)) for p, x in zip(pi, q[t, b]) if p > 0)
    mask = tensor(legal) if masked else None
    assert_close(ops.soft_value(tensor(q), tau, mask), tensor(soft))
    assert_close(tensor(mean), tensor(soft))  # what Munchausen bootstraps from is the soft value
    assert_close(ops.munchausen_bonus(tensor(q), tensor(action), tau, legal=mask), tensor(bonus))


def test_quantile_loss_finds_the_quantiles() -> None:
    """The minimiser of the plain quantile loss is the quantile of the targets."""
    goal = torch.arange(101, dtype=torch.float64).reshape(1, 1, -1)
    tau = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    theta = torch.zeros(1, 1, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        (g,) = torch.autograd.grad(ops.quantile_huber(theta, tau, goal, 0.0).sum(), theta)
        theta = (theta - 5.0 * g).detach().requires_grad_()
    assert_close(theta.detach().flatten(), torch.tensor([10.0, 50.0, 90.0], dtype=torch.float64), atol=1.5, rtol=0)


@few
@given(seeds)
def test_fqf_fractions(seed: int) -> None:
    """The gradient of the fraction loss is that of the 1-Wasserstein distance to F, found by finite differences."""
    d, n = Draw(seed), 4
    logits = tensor(d.normal(n)).requires_grad_()
    tau, middle = ops.fractions(logits)
    assert_close(tau[0].item(), 0.0), assert_close(tau[-1].item(), 1.0)
    assert_close(middle, 0.5 * (tau[1:] + tau[:-1]).detach())

    def quantile(x: torch.Tensor) -> torch.Tensor:
        return 3 * x**2 + x  # an increasing quantile function

    inner = tau[1:-1].detach()
    loss = ops.fraction_loss(tau, quantile(inner), quantile(middle))
    (ours,) = torch.autograd.grad(loss, tau)

    def wasserstein(points: Any) -> float:
        fine = np.linspace(0, 1, 40_001)[:-1] + 0.5 / 40_000
        place = np.clip(np.searchsorted(points, fine, side="right") - 1, 0, n - 1)
        mids = 0.5 * (points[1:] + points[:-1])
        return float(np.abs((3 * fine**2 + fine) - (3 * mids**2 + mids)[place]).mean())

    at, step = tau.detach().numpy(), 1e-3
    for i in range(1, n):
        gap = np.eye(n + 1)[i] * min(step, 0.2 * np.diff(at).min())
        slope = (wasserstein(at + gap) - wasserstein(at - gap)) / (2 * gap.sum())
        assert abs(float(ours[i]) - slope) < 0.05
