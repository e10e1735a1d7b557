"""Rules on gradients, and distances, at the edges; the table holds their references."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ganglion import ops


def test_clip_of_zero_gradients_is_zero() -> None:
    (out,) = ops.clip_norm([torch.zeros(3)], 1.0)
    assert torch.equal(out, torch.zeros(3))


def test_pcgrad_of_two_tasks_leaves_no_conflict() -> None:
    grads = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    out = ops.pcgrad(grads, torch.rand(2, 2))
    assert ((out * grads.flip(0)).sum(-1) >= -1e-6).all()


# ------------------------------------------------------------ distances


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
