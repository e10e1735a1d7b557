"""What the references are fed: shapes, endings and masks drawn by hypothesis, numbers in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.ops.reference import Case

Array = Any


class World:
    """Rows [T, B] with A actions and n atoms, parts or features; `ends` and `live` are shares of rows."""

    def __init__(
        self, shape: tuple[int, int, int, int], ends: float = 0.3, live: float = 0.7, flag: bool = True, seed: int = 0
    ) -> None:
        self.T, self.B, self.A, self.n = shape
        self.ends, self.live, self.flag = ends, live, flag
        self.rng = np.random.default_rng(seed)

    def normal(self, *trail: int, scale: float = 1.0) -> Array:
        return self.rng.normal(size=(self.T, self.B, *trail)) * scale

    def uniform(self, *trail: int) -> Array:
        return self.rng.random((self.T, self.B, *trail))

    def table(self, scale: float = 1.0) -> Array:
        return self.normal(self.A, scale=scale)

    def log_probs(self) -> Array:
        x = self.table()
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    def action(self, *trail: int) -> Array:
        return self.rng.integers(0, self.A, (self.T, self.B, *trail))

    def discount(self) -> Array:
        return np.where(self.uniform() < self.ends, 0.0, self.rng.uniform(0.5, 1.0, (self.T, self.B)))

    def valid(self) -> Array:
        return self.uniform() < self.live

    def legal(self, *trail: int, action: Array | None = None) -> Array:
        """At least one legal entry along the last axis, the action's own among them; None half of the time."""
        if not self.flag:
            return None
        trail = trail or (self.A,)
        legal = self.uniform(*trail) < self.live
        sure = self.rng.integers(0, trail[-1], legal.shape[:-1]) if action is None else action
        np.put_along_axis(legal, sure[..., None], True, -1)
        return legal

    def case(self) -> Case:
        terminated, truncated = self.uniform() < self.ends, self.uniform() < self.ends * 0.5
        gamma = self.rng.uniform(0.5, 1.0, (self.T, self.B)) if self.flag else np.full((self.T, self.B), 0.99)
        reward, value, after, log_ratio = (self.normal() for _ in range(4))
        return Case(reward, value, after, np.where(terminated, 0.0, gamma), terminated | truncated, log_ratio)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.rng.integers(len(options))]


@st.composite
def worlds(draw: Any) -> World:
    shape = tuple(draw(st.integers(1, most)) for most in (9, 4, 5, 5))
    ends, live = draw(st.sampled_from([0.0, 0.2, 0.6, 1.0])), draw(st.sampled_from([0.0, 0.5, 1.0]))
    return World(shape, ends, live, draw(st.booleans()), draw(st.integers(0, 2**32 - 1)))  # type: ignore[arg-type]


class Entry(NamedTuple):
    """A public function, its inputs, and the same thing written slowly."""

    make: Callable[[World], tuple[Any, ...]]  # arguments: numpy arrays in any tree, and plain constants
    reference: Callable[..., Any]
    call: Callable[..., Any]
    grad: tuple[int, ...]  # the arguments through which gradients pass


def tensors(tree: Any, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Any:
    """Arrays as tensors, floating ones in `dtype`; everything else as it is."""
    if isinstance(tree, dict):
        return {k: tensors(v, dtype, device) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [tensors(v, dtype, device) for v in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if not isinstance(tree, np.ndarray):
        return tree
    return torch.as_tensor(tree).to(device, dtype if tree.dtype.kind == "f" else None)


def each(fn: Callable[..., Any], *arrays: Array) -> Array:
    """fn of one row of every array, row by row over the first two axes; None stays None."""
    shape = next(x for x in arrays if x is not None).shape[:2]
    rows = [fn(*[None if x is None else x[i] for x in arrays]) for i in np.ndindex(shape)]
    return np.array(rows).reshape(*shape, *np.asarray(rows[0]).shape)


def same(ours: Any, expected: Any) -> None:
    """Equal trees: structure, shapes, kinds of number, and values."""
    if isinstance(expected, dict):
        assert list(ours) == list(expected)
        for key, part in expected.items():
            same(ours[key], part)
    elif isinstance(expected, (tuple, list)):
        assert len(ours) == len(expected)
        for x, y in zip(ours, expected, strict=True):
            same(x, y)
    elif expected is None:
        assert ours is None
    elif isinstance(ours, torch.Tensor):
        other = torch.as_tensor(np.array(expected))
        assert ours.shape == other.shape
        assert ours.is_floating_point() == other.is_floating_point()
        tight = {"rtol": 1e-9, "atol": 1e-9} if ours.dtype == torch.float64 else {}  # no float32 on the way
        assert_close(ours.detach(), other.to(ours.dtype) if ours.is_floating_point() else other, **tight)
    elif isinstance(expected, float):
        assert abs(ours - expected) < 1e-9
    else:
        assert np.array_equal(ours, expected)
