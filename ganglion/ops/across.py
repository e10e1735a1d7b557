"""Means over the rows of several learners. Alone, which is the rule, nothing here costs an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class Learners(NamedTuple):
    """Those who make one update together, each from rows of its own."""

    size: int
    rank: int  # which of them this is
    add: Callable[[Tensor], Tensor]  # the sum of what each of them says


_learners: Learners | None = None


@contextmanager
def across(learners: Learners) -> Iterator[None]:
    """Within it, means are over the rows of all learners, who must all ask for the same means in the same order."""
    global _learners
    before, _learners = _learners, learners
    try:
        yield
    finally:
        _learners = before


def several() -> bool:
    """Whether there are others."""
    return _learners is not None


def least(x: Tensor) -> Tensor:
    """The least of what each learner says, 0-d; alone, its own."""
    if _learners is None:
        return x
    said = x.new_zeros(_learners.size)
    said[_learners.rank] = x
    return _learners.add(said).min()


def mean(total: Tensor, count: Tensor) -> Tensor:
    """total / count, of all learners; 0 where there are no rows.

    The gradient reaches this learner's rows alone, times the number of learners: the average of all gradients is then
    the gradient of the whole mean, and what of a loss is no mean counts once. A mean that is used again row by row
    (`normalise`) is to be taken of what has no gradient.
    """
    if _learners is not None:
        whole = _learners.add(torch.stack([total.detach(), count.to(total.dtype)]))
        total, count = whole[0] + _learners.size * (total - total.detach()), whole[1]
    return total / count.clamp(min=1)
