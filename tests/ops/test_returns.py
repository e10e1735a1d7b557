"""Recursions along time against loops in float64, gradients, and small worlds whose values are known."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops
from tests.ops import reference
from tests.ops.reference import Case, cases

few = settings(max_examples=30)
lams = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def rows(c: Case, *names: str) -> list[torch.Tensor]:
    return [torch.as_tensor(getattr(c, n)) for n in names]


@few
@given(cases(rows=70), lams)
def test_gae(c: Case, lam: float) -> None:
    ours = ops.gae(*rows(c, "reward", "value", "after", "discount", "cut"), lam)
    assert_close(ours, torch.as_tensor(reference.gae(c, lam)))


@few
@given(cases(), st.booleans())
def test_lambda_returns(c: Case, tensor_lam: bool) -> None:
    lam = np.random.default_rng(0).random(c.reward.shape) if tensor_lam else np.full(c.reward.shape, 0.8)
    ours = ops.lambda_returns(*rows(c, "reward", "after", "discount", "cut"), torch.as_tensor(lam))
    assert_close(ours, torch.as_tensor(reference.lambda_returns(c, lam)))
    error = ops.td_lambda_error(*rows(c, "value", "reward", "after", "discount", "cut"), torch.as_tensor(lam))
    assert_close(error, torch.as_tensor(c.value) - ours)


@few
@given(cases(), lams, st.sampled_from([(1.0, 1.0, 1.0), (2.0, 0.9, 1.5)]))
def test_vtrace(c: Case, lam: float, clips: tuple[float, float, float]) -> None:
    ours = ops.vtrace(*rows(c, "log_ratio", "reward", "value", "after", "discount", "cut"), lam, clips)
    goal, advantage = reference.vtrace(c, lam, clips)
    assert_close(ours.goal, torch.as_tensor(goal))
    assert_close(ours.advantage, torch.as_tensor(advantage))


@few
@given(cases())
def test_upgo(c: Case) -> None:
    ours = ops.upgo_returns(*rows(c, "reward", "value", "after", "discount", "cut"))
    assert_close(ours, torch.as_tensor(reference.upgo(c)))


@few
@given(cases(), lams)
def test_retrace(c: Case, lam: float) -> None:
    ours = ops.retrace(*rows(c, "log_ratio", "reward", "value", "after", "discount", "cut"), lam)
    assert_close(ours, torch.as_tensor(reference.retrace(c, lam)))


@few
@given(cases(), st.integers(1, 6))
def test_n_step(c: Case, n: int) -> None:
    ours = ops.n_step(*rows(c, "reward", "discount", "cut"), n)
    for got, expected in zip(ours, reference.n_step(c, n)):
        assert_close(got, torch.as_tensor(expected))


@few
@given(cases(), st.booleans())
def test_discounted_sum(c: Case, bootstrapped: bool) -> None:
    last = torch.as_tensor(c.value[0]) if bootstrapped else None
    later = c.value[0] if bootstrapped else np.zeros(c.value.shape[1])
    expected = np.zeros(c.reward.shape)
    for t in reversed(range(len(expected))):
        later = expected[t] = c.reward[t] + c.discount[t] * later
    assert_close(ops.discounted_sum(*rows(c, "reward", "discount"), last), torch.as_tensor(expected))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 13, 64, 127])
def test_both_forms_of_the_scan_agree_to_the_bit(length: int) -> None:
    module = sys.modules["ganglion.ops.scan"]
    x, factor = torch.randn(length, 3), torch.rand(length, 3) * (torch.rand(length, 3) < 0.9)
    assert torch.equal(module._sweep(x, factor), module._merge(x, factor))


def test_scan_gradients() -> None:
    g = torch.Generator().manual_seed(0)
    for length in (1, 2, 5, 8):
        x, f = (torch.randn(length, 2, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(2))
        assert torch.autograd.gradcheck(ops.scan, (x, f))
        assert torch.autograd.gradgradcheck(ops.scan, (x, f))


def test_scan_neither_changes_its_inputs_nor_aliases_them() -> None:
    x, factor = torch.randn(9, 2), torch.rand(9, 2)
    kept = x.clone(), factor.clone()
    ops.scan(x, factor).zero_()
    assert torch.equal(x, kept[0]) and torch.equal(factor, kept[1])


def test_scan_of_long_rows_stays_precise_in_float32() -> None:
    g = torch.Generator().manual_seed(0)
    x, factor = torch.randn(4096, 4, generator=g), torch.full((4096, 4), 0.999)
    exact = ops.scan(x.double(), factor.double())
    assert (ops.scan(x, factor) - exact).abs().max() < 1e-5 * exact.abs().max()


def test_gradients_of_returns() -> None:
    g = torch.Generator().manual_seed(1)
    reward, value, after = (torch.randn(4, 2, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(3))
    discount = torch.full((4, 2), 0.9, dtype=torch.float64)
    cut = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 1]], dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda r, v, a: ops.gae(r, v, a, discount, cut, 0.9), (reward, value, after))
    assert torch.autograd.gradcheck(lambda r, a: ops.lambda_returns(r, a, discount, cut, 0.9), (reward, after))


# ------------------------------------------------------------ worlds whose values are known

GAMMA = 0.9


def corridor(limit: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A corridor of 4 steps, reward 1 each, then the end; or an endless one, cut by a time limit after `limit` steps.

    Next-step autoreset: reward, discount, cut and the true value of every row, dead rows included, over two episodes.
    """
    length = limit or 4
    values = [1 / (1 - GAMMA)] * (length + 1) if limit else [(1 - GAMMA**k) / (1 - GAMMA) for k in (4, 3, 2, 1, 0)]
    reward = ([1.0] * length + [0.0]) * 2
    ends = ([False] * (length - 1) + [True, False]) * 2
    discount = [0.0 if end and not limit else GAMMA for end in ends]
    column = [torch.tensor(x, dtype=torch.float64).unsqueeze(1) for x in (reward, discount, values * 2)]
    return column[0], column[1], torch.tensor(ends).unsqueeze(1), column[2]


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_true_values_have_no_advantage(limit: int | None, lam: float) -> None:
    """With the true values every target is the value itself, at terminations and at time limits alike."""
    reward, discount, cut, value = corridor(limit)
    after = torch.cat([value[1:], value[:1]])
    live = reward > 0  # all but dead rows
    zero = torch.zeros_like(value)
    assert_close(ops.gae(reward, value, after, discount, cut, lam)[live], zero[live])
    assert_close(ops.lambda_returns(reward, after, discount, cut, lam)[live], value[live])
    assert_close(ops.vtrace(zero, reward, value, after, discount, cut, lam).goal[live], value[live])
    assert_close(ops.retrace(zero, reward, value, after, discount, cut, lam)[live], value[live])
    assert_close(ops.upgo_returns(reward, value, after, discount, cut)[live], value[live])
    folded = ops.n_step(reward, discount, cut, 3)
    bootstrap = ops.at(torch.cat([value, value[:1]]), folded.ahead)
    assert_close((folded.reward + folded.discount * bootstrap)[live], value[live])


@settings(max_examples=20)
@given(st.integers(0, 10_000), lams)
def test_both_autoreset_modes_agree(seed: int, lam: float) -> None:
    """Next-step rows with a dead row, and same-step rows with the final observation's value given, are one thing."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, size=3)
    dead, reward, value, discount, cut, same_after = [], [], [], [], [], []
    for length in lengths:
        terminated = rng.random() < 0.5
        v = rng.normal(size=length + 1)
        for t in range(length):
            end = t == length - 1
            reward.append(rng.normal())
            value.append(v[t])
            discount.append(0.0 if end and terminated else GAMMA)
            cut.append(end)
            dead.append(False)
            same_after.append(v[t + 1])
        reward.append(0.0)
        value.append(v[-1])
        discount.append(GAMMA)
        cut.append(False)
        dead.append(True)
        same_after.append(0.0)
    r, v, d, s = (torch.tensor(x, dtype=torch.float64).unsqueeze(1) for x in (reward, value, discount, same_after))
    c, live = torch.tensor(cut).unsqueeze(1), ~torch.tensor(dead)
    next_step = ops.gae(r, v, torch.cat([v[1:], v[:1]]), d, c, lam)[live]
    same_step = ops.gae(r[live], v[live], s[live], d[live], c[live], lam)
    assert_close(next_step, same_step)


def test_shapes_that_would_broadcast_are_refused() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="gae: all tensors need one shape"):
        ops.gae(x, x, x, x, torch.zeros(3, 1, dtype=torch.bool), 0.9)
