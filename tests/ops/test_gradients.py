"""Rules on gradients, and distances, against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ganglion import ops
from tests.ops import reference

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def some(seed: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    shapes = [(3, 2), (4,)]
    return [rng.normal(size=s) for s in shapes], [rng.uniform(0.1, 1, s) for s in shapes]


def check(ours: list[torch.Tensor], expected: list[Any]) -> None:
    for x, y in zip(ours, expected, strict=True):
        assert_close(x, torch.as_tensor(y))


@few
@given(seeds, st.sampled_from([0.3, 1.0, 2.5, 50.0]))
def test_rules(seed: int, limit: float) -> None:
    grads, second = some(seed)
    g, v = ([torch.as_tensor(x) for x in xs] for xs in (grads, second))
    flat, root = np.concatenate([x.ravel() for x in grads]), np.sqrt(np.concatenate([x.ravel() for x in second]))
    norm, usual = np.linalg.norm(flat), np.linalg.norm(root)

    def scaled(most: float) -> list[Any]:
        return [x * min(1.0, most / norm) for x in grads]

    def unless(too_large: bool) -> list[Any]:
        return [x * (0.0 if too_large else 1.0) for x in grads]

    assert_close(ops.grad_norm(g).item(), float(norm))
    check(ops.clip_value(g, limit), [np.clip(x, -limit, limit) for x in grads])
    check(ops.clip_norm(g, limit), scaled(limit))
    clipped = [np.clip(x, -limit * np.sqrt(s), limit * np.sqrt(s)) for x, s in zip(grads, second)]
    check(ops.clip_momentum(g, v, limit), clipped)
    check(ops.clip_momentum_norm(g, v, limit), scaled(limit * usual))
    check(ops.ignore_value(g, limit), unless(bool((np.abs(flat) > limit).any())))
    check(ops.ignore_norm(g, limit), unless(bool(norm > limit)))
    check(ops.ignore_momentum(g, v, limit), unless(bool((np.abs(flat) > limit * root).any())))
    check(ops.ignore_momentum_norm(g, v, limit), unless(bool(norm > limit * usual)))
    check(ops.second_moment(g, v, 0.9), [0.9 * s + 0.1 * x**2 for x, s in zip(grads, second)])


def test_clip_of_zero_gradients_is_zero() -> None:
    (out,) = ops.clip_norm([torch.zeros(3)], 1.0)
    assert torch.equal(out, torch.zeros(3))


@few
@given(seeds, st.integers(1, 4))
def test_pcgrad(seed: int, tasks: int) -> None:
    rng = np.random.default_rng(seed)
    grads, uniform = rng.normal(size=(tasks, 5)), rng.random((tasks, tasks))
    expected = []
    for i in range(tasks):
        g = grads[i].copy()
        for j in np.argsort(uniform[i]):
            if j != i and g @ grads[j] < 0:
                g = g - (g @ grads[j]) / (grads[j] @ grads[j]) * grads[j]
        expected.append(g)
    assert_close(ops.pcgrad(torch.as_tensor(grads), torch.as_tensor(uniform)), torch.as_tensor(np.array(expected)))


def test_pcgrad_of_two_tasks_leaves_no_conflict() -> None:
    grads = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    out = ops.pcgrad(grads, torch.rand(2, 2))
    assert ((out * grads.flip(0)).sum(-1) >= -1e-6).all()


# ------------------------------------------------------------ distances

words = st.lists(st.integers(0, 2), max_size=5)


@settings(max_examples=60)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_levenshtein(pairs: list[tuple[list[int], list[int]]]) -> None:
    def padded(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([row + [9] * (5 - len(row)) for row in rows])

    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    lengths = [torch.tensor([len(x) for x in xs]) for xs in (a, b)]
    ours = ops.levenshtein(padded(a), padded(b), *lengths)
    assert ours.tolist() == [reference.levenshtein(x, y) for x, y in pairs]


def test_levenshtein_with_prices() -> None:
    a = torch.tensor([[1, 2, 3]])
    assert ops.levenshtein(a, a).item() == 0
    assert ops.levenshtein(a, torch.tensor([[2, 3]])).item() == 1
    half = torch.full((1, 3, 3), 0.25)
    assert_close(ops.levenshtein(a, a + 5, cost=half).item(), 0.75)


@pytest.mark.parametrize("weighted", [False, True])
def test_hamming(weighted: bool) -> None:
    a, b = torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.tensor([[0, 0, 1], [0, 0, 0]])
    weight = torch.tensor([1.0, 2.0, 3.0]) if weighted else 1.0
    assert ops.hamming(a, b, weight).tolist() == ([2.0, 6.0] if weighted else [1.0, 3.0])
