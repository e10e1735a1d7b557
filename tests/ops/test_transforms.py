"""Scales: inverses, two-hot, merged moments, PopArt."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
X = torch.tensor([-1e6, -300.0, -1.0, -1e-3, 0.0, 1e-6, 0.5, 7.0, 1e4], dtype=torch.float64)


def test_rescale_and_its_inverse() -> None:
    for eps in (0.0, 1e-3, 1e-2, 1.0):
        expected = np.sign(X.numpy()) * (np.sqrt(np.abs(X.numpy()) + 1) - 1) + eps * X.numpy()
        assert_close(ops.rescale(X, eps), torch.as_tensor(expected))
        assert_close(ops.unrescale(ops.rescale(X, eps), eps), X, rtol=1e-9, atol=1e-12)
    small = torch.linspace(-100, 100, 41)
    assert_close(ops.unrescale(ops.rescale(small)), small, rtol=2e-6, atol=1e-6)  # float32: no cancellation
    assert torch.autograd.gradcheck(ops.rescale, X[1:4].clone().requires_grad_())
    assert torch.autograd.gradcheck(ops.unrescale, X[1:4].clone().requires_grad_())


def test_symlog_and_its_inverse() -> None:
    assert_close(ops.symlog(X), torch.as_tensor(np.sign(X.numpy()) * np.log1p(np.abs(X.numpy()))))
    assert_close(ops.symexp(ops.symlog(X)), X)


@few
@given(seeds, st.booleans())
def test_two_hot(seed: int, uneven: bool) -> None:
    rng = np.random.default_rng(seed)
    support = np.sort(rng.normal(size=7)) if uneven else np.linspace(-2, 2, 7)
    x = np.concatenate([rng.normal(size=5) * 2, support])
    ours = ops.two_hot(torch.as_tensor(x), torch.as_tensor(support))
    for i, value in enumerate(x):
        inside = min(max(value, support[0]), support[-1])
        expected = [np.interp(inside, support, np.eye(7)[j]) for j in range(7)]
        assert_close(ours[i], torch.as_tensor(expected))
    back = ops.from_two_hot(ours, torch.as_tensor(support))
    assert_close(back, torch.as_tensor(np.clip(x, support[0], support[-1])))


@few
@given(seeds, st.integers(1, 4))
def test_moments_of_batches_merge_to_those_of_all_rows(seed: int, batches: int) -> None:
    rng = np.random.default_rng(seed)
    total = ops.Moments(torch.zeros(3).double(), torch.ones(3).double(), torch.zeros(()).double())
    seen = []
    for _ in range(batches):
        x = rng.normal(loc=100, size=(2, rng.integers(1, 6), 3))
        valid = rng.random(x.shape[:2]) < 0.7
        seen.append(x[valid])
        total = ops.merge_moments(total, ops.moments(torch.as_tensor(x), torch.as_tensor(valid)))
    rows = np.concatenate(seen)
    assert int(total.rows) == len(rows)
    if len(rows):
        assert_close(total.mean, torch.as_tensor(rows.mean(0)))
        assert_close(total.var, torch.as_tensor(rows.var(0)))
        z = total.normalise(torch.as_tensor(rows), limit=2.0)
        expected = np.clip((rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8), -2, 2)
        assert_close(z, torch.as_tensor(expected), rtol=1e-5, atol=1e-5)


def test_moments_of_plain_rows() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    ours = ops.moments(x)
    assert_close(ours.mean, x.mean(0)) and assert_close(ours.var, x.var(0, unbiased=False))
    assert int(ours.rows) == 3


@few
@given(seeds)
def test_popart_keeps_outputs(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    weight, bias, x = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((2, 5), (2,), (7, 5)))
    old, new = (
        ops.Moments(torch.randn(2, generator=g).double(), torch.rand(2, generator=g).double() + 0.1, torch.tensor(1.0))
        for _ in range(2)
    )
    before = (x @ weight.t() + bias) * old.std() + old.mean
    moved, shift = ops.popart(weight, bias, old, new)
    assert_close((x @ moved.t() + shift) * new.std() + new.mean, before)
