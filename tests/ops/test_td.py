"""Temporal differences against loops, and the projections of distributional methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops
from tests.ops import reference

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


@few
@given(seeds, st.sampled_from([0.0, 1e-2, 0.5]))
def test_q_td(seed: int, eps: float) -> None:
    d = Draw(seed)
    q, next_q, a, next_a = d.normal(T, B, A), d.normal(T, B, A) * 20, d.action(T, B), d.action(T, B)
    plain, scaled = np.zeros((T, B)), np.zeros((T, B))

    def h(x: float) -> float:
        return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x

    def inverse(y: float) -> float:
        if eps == 0:
            return np.sign(y) * ((abs(y) + 1) ** 2 - 1)
        return np.sign(y) * (((np.sqrt(1 + 4 * eps * (abs(y) + 1 + eps)) - 1) / (2 * eps)) ** 2 - 1)

    for t in range(T):
        for b in range(B):
            ahead = next_q[t, b, next_a[t, b]]
            plain[t, b] = q[t, b, a[t, b]] - (d.reward[t, b] + d.discount[t, b] * ahead)
            scaled[t, b] = q[t, b, a[t, b]] - h(d.reward[t, b] + d.discount[t, b] * inverse(ahead))
    args = [tensor(x) for x in (q, a, d.reward, d.discount, next_q, next_a)]
    assert_close(ops.q_td(*args), tensor(plain))
    assert_close(ops.q_td_rescaled(*args, eps), tensor(scaled))
    v = ops.v_td(tensor(q[..., 0]), tensor(d.reward), tensor(d.discount), tensor(next_q[..., 0]))
    assert_close(v, tensor(q[..., 0] - d.reward - d.discount * next_q[..., 0]))


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


@few
@given(seeds)
def test_branching_and_margin_and_expected(seed: int) -> None:
    d, k = Draw(seed), 3
    q, next_q, chooser = d.normal(T, B, k, A), d.normal(T, B, k, A), d.normal(T, B, k, A)
    action, expert = d.action(T, B, k), d.action(T, B)
    error, margin = np.zeros((T, B, k)), np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            ahead = np.mean([next_q[t, b, i, chooser[t, b, i].argmax()] for i in range(k)])
            for i in range(k):
                error[t, b, i] = q[t, b, i, action[t, b, i]] - (d.reward[t, b] + d.discount[t, b] * ahead)
            e = expert[t, b]
            margin[t, b] = max(q[t, b, 0, a] + 0.8 * (a != e) for a in range(A)) - q[t, b, 0, e]
    args = [tensor(x) for x in (q, action, d.reward, d.discount, next_q, chooser)]
    assert_close(ops.branching_td(*args), tensor(error))
    assert_close(ops.margin(tensor(q[:, :, 0]), tensor(expert), 0.8), tensor(margin))
    probs = np.abs(q[:, :, 0])
    assert_close(ops.expected_value(tensor(next_q[:, :, 0]), tensor(probs)), tensor((probs * next_q[:, :, 0]).sum(-1)))


@few
@given(seeds, st.integers(2, 9), st.booleans())
def test_projection(seed: int, n: int, on_the_grid: bool) -> None:
    d = Draw(seed)
    support = np.linspace(-2.0, 3.0, n)
    probs = d.rng.dirichlet(np.ones(n), size=(T, B))
    reward = np.full((T, B), support[0] * 0) if on_the_grid else d.reward * 3
    discount = np.where(d.discount > 0, 1.0, 0.0) if on_the_grid else d.discount
    expected = np.array(
        [[reference.project(reward[t, b], discount[t, b], support, probs[t, b]) for b in range(B)] for t in range(T)]
    )
    ours = ops.project(tensor(reward), tensor(discount), ops.atoms(-2.0, 3.0, n, tensor(probs)), tensor(probs))
    assert_close(ours, tensor(expected))
    assert_close(ours.sum(-1), torch.ones(T, B, dtype=torch.float64))
    logits = d.normal(T, B, n)
    loss = [
        [-(expected[t, b] * (logits[t, b] - np.log(np.exp(logits[t, b]).sum()))).sum() for b in range(B)]
        for t in range(T)
    ]
    assert_close(ops.categorical_td(tensor(logits), ours), tensor(loss))


def test_pick_atoms() -> None:
    values = torch.randn(T, B, A, 5)
    action = torch.randint(0, A, (T, B))
    expected = torch.stack([torch.stack([values[t, b, action[t, b]] for b in range(B)]) for t in range(T)])
    assert torch.equal(ops.pick_atoms(values, action), expected)


@few
@given(seeds, st.sampled_from([0.5, 1.0, 2.0]))
def test_quantile_huber(seed: int, kappa: float) -> None:
    d, n, m = Draw(seed), 4, 3
    theta, goal, tau = d.normal(T, B, n) * 2, d.normal(T, B, m) * 2, d.rng.random((T, B, n))
    expected = [
        [reference.quantile_huber(theta[t, b], tau[t, b], goal[t, b], kappa) for b in range(B)] for t in range(T)
    ]
    assert_close(ops.quantile_huber(tensor(theta), tensor(tau), tensor(goal), kappa), tensor(expected))
    shared = ops.midpoints(n, tensor(theta))
    assert_close(shared, tensor((2 * np.arange(n) + 1) / (2 * n)))
    expected = [
        [reference.quantile_huber(theta[t, b], shared.numpy(), goal[t, b], kappa) for b in range(B)] for t in range(T)
    ]
    assert_close(ops.quantile_huber(tensor(theta), shared, tensor(goal), kappa), tensor(expected))


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


def test_gradcheck() -> None:
    g = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g, requires_grad=True)

    goal = some(T, B, 5).detach().softmax(-1)
    assert torch.autograd.gradcheck(lambda x: ops.categorical_td(x, goal), some(T, B, 5))
    tau = torch.rand(T, B, 5, dtype=torch.float64, generator=g)
    assert torch.autograd.gradcheck(lambda x: ops.quantile_huber(x, tau, goal), some(T, B, 5))
    action = torch.randint(0, 5, (T, B), generator=g)
    assert torch.autograd.gradcheck(lambda x: ops.margin(x, action), some(T, B, 5))
    assert torch.autograd.gradcheck(lambda x: ops.soft_value(x, 0.5), some(T, B, 5))
