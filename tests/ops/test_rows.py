"""Rows, masks, means and shuffles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops
from ganglion.core import Noise

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def test_mask_is_structural() -> None:
    legal = torch.ones(2, dtype=torch.bool)
    assert ops.mask({"action_mask": legal, "x": legal}) is legal
    assert ops.mask({"x": legal}) is None
    assert ops.mask(legal) is None


@few
@given(seeds, st.floats(0, 1))
def test_means_count_only_live_rows(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(3, 4)), np.where(rng.random((3, 4)) < share, rng.uniform(0.1, 2, (3, 4)), 0.0)
    live = w > 0
    count = max(live.sum(), 1)
    x_dead = np.where(live, x, np.nan)  # what is not valid may be anything
    tx, tw, tv = torch.as_tensor(x_dead), torch.as_tensor(w), torch.as_tensor(live)
    assert_close(ops.weighted_mean(tx, tw).item(), float((w * x)[live].sum() / count))
    assert_close(ops.masked_mean(tx, tv).item(), float(x[live].sum() / count))
    z = ops.normalise(tx, tv).numpy()
    assert (z[~live] == 0).all()
    if live.sum() > 1:
        expected = (x[live] - x[live].mean()) / x[live].std()
        np.testing.assert_allclose(z[live], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1234.567, -1e6])
def test_normalise_is_safe_for_constant_input(constant: float) -> None:
    x = torch.full((7, 13), constant, requires_grad=True)
    z = ops.normalise(x, torch.ones(7, 13, dtype=torch.bool))
    z.sum().backward()
    assert z.abs().max() < 1e-3 and torch.isfinite(x.grad).all()


@pytest.mark.parametrize(("rows", "minibatches"), [(12, 4), (13, 4), (5, 1), (4, 4)])
def test_shuffled(rows: int, minibatches: int) -> None:
    uniform = torch.rand(rows, 3, generator=torch.Generator().manual_seed(0))  # others may shuffle alike by chance
    noise = Noise(uniform, torch.zeros(rows, 0))
    plan = ops.shuffled(rows, 3, minibatches, noise)
    each = rows // minibatches
    assert plan.shape == (3 * minibatches, each) and plan.dtype == torch.int64
    for epoch in plan.reshape(3, -1):
        assert len(set(epoch.tolist())) == each * minibatches  # no row twice in a pass
        assert all(0 <= i < rows for i in epoch.tolist())
    assert not torch.equal(plan[:minibatches], plan[minibatches : 2 * minibatches]) or rows < 3
    assert ops.shuffle_draws(3).uniform == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shuffled_takes_equal_numbers_as_they_come(dtype: torch.dtype) -> None:
    uniform = (torch.rand(300, 2, dtype=dtype, generator=torch.Generator().manual_seed(1)) * 20).floor() / 20
    plan = ops.shuffled(300, 2, 3, Noise(uniform, torch.zeros(300, 0)))
    assert torch.equal(plan.reshape(2, 300), uniform.argsort(dim=0, stable=True).t())


def test_above_and_empty() -> None:
    assert ops.above(torch.tensor(1.0), None) is None
    assert bool(ops.above(torch.tensor(1.0), 0.5))
    assert ops.empty(torch.zeros(3, dtype=torch.bool)).shape == (0,)
