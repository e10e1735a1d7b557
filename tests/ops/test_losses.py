"""Losses against loops, gradients, and what they must do at the edges."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
T, B, A = 3, 4, 5


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(x) for x in arrays]


def log_softmax(x: Any) -> Any:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@few
@given(seeds)
def test_penalties(seed: int) -> None:
    (e,) = draw(seed, (T, B))
    huber = [[0.5 * x * x if abs(x) <= 1 else abs(x) - 0.5 for x in row] for row in e * 2]
    assert_close(ops.penalty(torch.as_tensor(e * 2), "huber"), torch.as_tensor(huber))
    assert_close(ops.penalty(torch.as_tensor(e), "mse"), torch.as_tensor(e**2))
    with pytest.raises(ValueError, match="'mse' or 'huber', not 'l1'"):
        ops.penalty(torch.as_tensor(e), "l1")


@few
@given(seeds, st.sampled_from([None, 3.0]), st.booleans())
def test_clipped_surrogate(seed: int, dual: float | None, as_tensor: bool) -> None:
    log_ratio, advantage = draw(seed, (T, B), (T, B))
    clip = 0.2
    expected = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            r, a = np.exp(log_ratio[t, b]), advantage[t, b]
            objective = min(r * a, min(max(r, 1 - clip), 1 + clip) * a)
            if dual is not None and a < 0:
                objective = max(objective, dual * a)
            expected[t, b] = -objective
    given_clip = torch.tensor(clip, dtype=torch.float64) if as_tensor else clip
    assert_close(ops.clipped_surrogate(*tensors(log_ratio, advantage), given_clip, dual), torch.as_tensor(expected))


@few
@given(seeds, st.sampled_from([None, 0.2]))
def test_value_loss(seed: int, clip: float | None) -> None:
    value, old, goal = draw(seed, (T, B), (T, B), (T, B))
    plain = 0.5 * (value - goal) ** 2
    near = old + np.clip(value - old, -(clip or 0), clip or 0)
    expected = plain if clip is None else np.maximum(plain, 0.5 * (near - goal) ** 2)
    assert_close(ops.value_loss(*tensors(value, old, goal), clip), torch.as_tensor(expected))


def test_kl_estimators_agree_with_the_exact_kl() -> None:
    """E_old[k1] = E_old[k3] = KL(old || new) exactly, by enumeration; k2 is near it; k2 and k3 are never negative."""
    g = torch.Generator().manual_seed(0)
    old_logits = torch.randn(A, dtype=torch.float64, generator=g)
    new_logits = old_logits + 0.1 * torch.randn(A, dtype=torch.float64, generator=g)
    old, new = ops.Categorical(old_logits), ops.Categorical(new_logits)
    log_ratio, p = new.log_probs() - old.log_probs(), old.probs()
    exact = old.kl(new)
    assert_close((p * ops.kl_k1(log_ratio)).sum(), exact)
    assert_close((p * ops.kl_k3(log_ratio)).sum(), exact)
    assert_close((p * ops.kl_k2(log_ratio)).sum(), exact, rtol=0.05, atol=0)
    assert (ops.kl_k3(log_ratio) >= 0).all() and (ops.kl_k2(log_ratio) >= 0).all()


@few
@given(seeds)
def test_policy_gradients(seed: int) -> None:
    logp, advantage, goal, value, ratio = draw(seed, *[(T, B)] * 5)
    assert_close(ops.policy_gradient(*tensors(logp, advantage)), torch.as_tensor(-advantage * logp))
    expected = -np.minimum(1, np.exp(ratio)) * (goal - value) * logp
    assert_close(ops.upgo_loss(*tensors(logp, ratio, goal, value)), torch.as_tensor(expected))
    kl, aux = np.abs(advantage), ratio
    expected = 0.5 * (aux - goal) ** 2 + 0.7 * kl + 0.5 * (value - goal) ** 2
    assert_close(ops.ppg_joint(*tensors(kl, aux, value, goal), 0.7), torch.as_tensor(expected))


@few
@given(seeds)
def test_counterfactual(seed: int) -> None:
    q, logits = draw(seed, (T, B, A), (T, B, A))
    action = np.random.default_rng(seed).integers(0, A, (T, B))
    expected = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            pi = np.exp(log_softmax(logits[t, b]))
            expected[t, b] = q[t, b, action[t, b]] - sum(pi[a] * q[t, b, a] for a in range(A))
    probs = torch.as_tensor(logits).softmax(-1)
    assert_close(ops.counterfactual(torch.as_tensor(q), torch.as_tensor(action), probs), torch.as_tensor(expected))


@few
@given(seeds, st.sampled_from([0.5, 1.0, 10.0]))
def test_acer_policy(seed: int, clip: float) -> None:
    logits, behaviour, q, goal = draw(seed, (T, B, A), (T, B, A), (T, B, A), (T, B))
    action = np.random.default_rng(seed).integers(0, A, (T, B))
    expected = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            log_pi, log_mu = log_softmax(logits[t, b]), log_softmax(behaviour[t, b])
            pi, rho, a = np.exp(log_pi), np.exp(log_pi - log_mu), action[t, b]
            value = (pi * q[t, b]).sum()
            expected[t, b] = -min(clip, rho[a]) * (goal[t, b] - value) * log_pi[a]
            for i in range(A):
                expected[t, b] -= max(0, 1 - clip / rho[i]) * pi[i] * (q[t, b, i] - value) * log_pi[i]
    log_pi, log_mu = (torch.as_tensor(x).log_softmax(-1) for x in (logits, behaviour))
    ours = ops.acer_policy(log_pi, log_mu, *tensors(q, goal, action), clip)
    assert_close(ours, torch.as_tensor(expected))


@few
@given(seeds)
def test_trust_region_is_the_nearest_step_within_the_limit(seed: int) -> None:
    g, k = tensors(*draw(seed, (B, A), (B, A)))
    step = ops.trust_region(g, k, 0.3)
    rise = (k * step).sum(-1)
    assert (rise <= 0.3 + 1e-9).all()
    inside = (k * g).sum(-1) <= 0.3
    assert_close(step[inside], g[inside])
    assert_close(rise[~inside], torch.full_like(rise[~inside], 0.3))


@few
@given(seeds, st.sampled_from([0.0, 0.1, 0.5]))
def test_supervised(seed: int, ratio: float) -> None:
    logits, x, y = draw(seed, (B, A), (B, 3), (B, 3))
    label = np.random.default_rng(seed).integers(0, A, B)
    smooth, focal, nce = np.zeros(B), np.zeros(B), np.zeros(B)
    for b in range(B):
        logp = log_softmax(logits[b])
        for a in range(A):
            smooth[b] -= (1 - ratio if a == label[b] else ratio / (A - 1)) * logp[a]
        focal[b] = -((1 - np.exp(logp[label[b]])) ** 2) * logp[label[b]]
        nce[b] = -log_softmax(np.array([x[b] @ y[i] / 0.5 for i in range(B)]))[b]
    assert_close(ops.label_smoothed(*tensors(logits, label), ratio), torch.as_tensor(smooth))
    assert_close(ops.soft_focal(*tensors(logits, label)), torch.as_tensor(focal))
    assert_close(ops.info_nce(*tensors(x, y), 0.5), torch.as_tensor(nce))


@few
@given(seeds, st.integers(1, 4))
def test_multi_logits(seed: int, m: int) -> None:
    (logits,) = draw(seed, (B, m, A))
    labels = np.random.default_rng(seed).integers(0, A, (B, m))
    expected = np.zeros(B)
    for b in range(B):
        cost = [[-log_softmax(logits[b, i])[labels[b, j]] for j in range(m)] for i in range(m)]
        expected[b] = min(sum(cost[i][p[i]] for i in range(m)) for p in permutations(range(m)))
    assert_close(ops.multi_logits(*tensors(logits, labels)), torch.as_tensor(expected))


def test_multi_logits_refuses_too_many_labels() -> None:
    with pytest.raises(ValueError, match="at most 12 labels"):
        ops.multi_logits(torch.zeros(13, 20), torch.zeros(13, dtype=torch.int64))


def test_gradcheck() -> None:
    g = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g, requires_grad=True)

    label = torch.randint(0, A, (B,), generator=g)
    labels = torch.randint(0, A, (B, 3), generator=g)
    advantage = some(T, B).detach()
    check = torch.autograd.gradcheck
    assert check(lambda x: ops.clipped_surrogate(x, advantage, 0.2, 3.0), some(T, B))
    old = some(T, B).detach()
    assert check(lambda x: ops.value_loss(x, old, advantage, 0.2), some(T, B))
    assert check(lambda x: ops.label_smoothed(x, label, 0.1), some(B, A))
    assert check(lambda x: ops.soft_focal(x, label), some(B, A))
    assert check(lambda x, y: ops.info_nce(x, y, 0.5), (some(B, 3), some(B, 3)))
    assert check(lambda x: ops.multi_logits(x, labels), some(B, 3, A))
    assert check(lambda x: ops.huber(x), some(T, B))
    action = torch.randint(0, A, (T, B), generator=g)
    mu, q = some(T, B, A).detach().log_softmax(-1), some(T, B, A).detach()
    assert check(lambda x, y, z: ops.ppg_joint(x, y, z, advantage), (some(T, B), some(T, B), some(T, B)))
    # gradient of the ACER loss: only log pi carries it
    logp = some(T, B, A)
    loss = ops.acer_policy(logp, mu, q, advantage, action, 1.0)
    assert torch.isfinite(torch.autograd.grad(loss.sum(), logp)[0]).all()


def test_focal_gradient_is_finite_for_a_certain_row() -> None:
    logits = torch.tensor([[100.0, 0.0]], requires_grad=True)
    ops.soft_focal(logits, torch.tensor([0]), gamma=0.5).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_what_is_fixed_carries_no_gradient() -> None:
    g = torch.Generator().manual_seed(0)
    row, table = ((T, B), (T, B, A))

    def some(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(*shape, generator=g, requires_grad=True)

    action = torch.zeros(row, dtype=torch.int64)
    discount, cut = torch.full(row, 0.9), torch.zeros(row, dtype=torch.bool)
    live, fixed = some(row), [some(row) for _ in range(3)]
    wide, other, behaviour = some(table), some(table), some(table)
    tau, middle = ops.fractions(wide)
    cases = [
        (ops.td_lambda_error(live, fixed[0], fixed[1], discount, cut, 0.9), [live], fixed),
        (ops.v_td(live, fixed[0], discount, fixed[1]), [live], fixed),
        (ops.policy_gradient(live, fixed[0]), [live], fixed),
        (ops.upgo_loss(live, fixed[0], fixed[1], fixed[2]), [live], fixed),
        (ops.categorical_td(wide, other), [wide], [other]),
        (ops.quantile_huber(wide, other.sigmoid(), behaviour), [wide], [other, behaviour]),
        (ops.fraction_loss(tau, other[..., 1:], middle * behaviour), [wide], [other, behaviour]),
        (ops.acer_policy(wide, behaviour, other, live, action, 1.0), [wide], [behaviour, other, live]),
        (ops.q_td_rescaled(wide, action, fixed[0], discount, other, action), [wide], [other, fixed[0]]),
    ]
    for loss, moved, still in cases:
        assert all(x.abs().sum() > 0 for x in torch.autograd.grad(loss.sum(), moved, retain_graph=True))
        grads = torch.autograd.grad(loss.sum(), still, allow_unused=True, retain_graph=True)
        assert all(x is None for x in grads)
    assert not ops.counterfactual(wide, action, other).requires_grad
