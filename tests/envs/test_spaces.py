"""Spaces there and back."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core import Box, Composite, Discrete, MultiBinary, MultiDiscrete, Space
from ganglion.envs import from_gym, to_gym
from ganglion.envs.gym_arrays import batch, leaves
from ganglion.envs.gym_spaces import Actions, grow
from ganglion.errors import UserError

LEAVES = st.one_of(
    st.integers(1, 9).map(Discrete),
    st.lists(st.integers(2, 6), min_size=1, max_size=4).map(lambda n: MultiDiscrete(tuple(n))),
    st.integers(1, 6).map(MultiBinary),
    st.lists(st.integers(1, 4), max_size=3).map(lambda s: Box(tuple(s), torch.float32, (-1.0,), (2.0,))),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda s: Box(tuple(s), torch.uint8, (0.0,), (255.0,))),
    st.integers(2, 5).map(lambda n: Box((n,), torch.float32, (-inf,) * (n - 1) + (0.0,), (1.0,) * (n - 1) + (inf,))),
)
SPACES = st.recursive(
    LEAVES, lambda s: st.dictionaries(st.sampled_from("abcde"), s, min_size=1, max_size=3).map(Composite), max_leaves=6
)


@given(SPACES)
def test_there_and_back(space: Space) -> None:
    assert from_gym(to_gym(space)) == space


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # a Box of no dimensions
@given(SPACES, st.integers(0, 1000))
def test_values_there_and_back(space: Space, seed: int) -> None:
    outside = to_gym(space)
    outside.seed(seed)
    values = [outside.sample() for _ in range(3)]
    arrays, write = batch(outside, 3)
    for slot, value in enumerate(values):
        write(slot, value)
    tree = grow(leaves(outside), [torch.from_numpy(a) for a in arrays])
    actions = Actions(outside)
    again = actions.each(actions.columns(tree))
    for value, back in zip(values, again, strict=True):
        assert outside.contains(back)
        assert _equal(value, back)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return np.array_equal(a, b)


def test_what_gymnasium_has_and_we_have_not() -> None:
    assert from_gym(spaces.Tuple((spaces.Discrete(3, start=5), spaces.Box(0, 1, (2,), np.float64)))) == Composite(
        {"0": Discrete(3), "1": Box((2,), torch.float32, (0.0,), (1.0,))}
    )
    assert from_gym(spaces.Box(-5, 5, (2,), np.int32)) == Box((2,), torch.float32, (-5.0,), (5.0,))
    assert from_gym(spaces.MultiBinary((2, 3))) == MultiBinary(6)
    assert from_gym(spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]))) == MultiDiscrete((2, 3, 4, 5))
    for space in (spaces.Text(4), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})):
        with pytest.raises(UserError, match="not supported"):
            from_gym(space)


def test_integer_boxes_take_the_nearest_integer() -> None:
    actions = Actions(spaces.Box(-2, 2, (2,), np.int32))
    (action,) = actions.each(actions.columns(torch.tensor([[0.6, -9.0]])))
    assert action.tolist() == [1, -2] and action.dtype == np.int32
