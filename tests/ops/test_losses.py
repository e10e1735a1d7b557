"""What losses must do at the edges, and what carries no gradient; the table holds their references."""

from __future__ import annotations

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


def test_an_unknown_penalty_is_refused() -> None:
    with pytest.raises(ValueError, match="'mse' or 'huber', not 'l1'"):
        ops.penalty(torch.zeros(2), "l1")


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
def test_trust_region_is_the_nearest_step_within_the_limit(seed: int) -> None:
    g, k = tensors(*draw(seed, (B, A), (B, A)))
    step = ops.trust_region(g, k, 0.3)
    rise = (k * step).sum(-1)
    assert (rise <= 0.3 + 1e-9).all()
    inside = (k * g).sum(-1) <= 0.3
    assert_close(step[inside], g[inside])
    assert_close(rise[~inside], torch.full_like(rise[~inside], 0.3))


def test_multi_logits_refuses_too_many_labels() -> None:
    with pytest.raises(ValueError, match="at most 12 labels"):
        ops.multi_logits(torch.zeros(13, 20), torch.zeros(13, dtype=torch.int64))


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
