"""Sequences of a feed-forward model: each row is bootstrapped from its own next observation, as single rows are."""

from __future__ import annotations

import pytest
import torch

from ganglion import ops
from ganglion.buffers import ReplayConfig
from ganglion.core import Box, Discrete, EnvSpec, Progress
from ganglion.errors import UserError
from tests.buffers.naive import feed, random_rows


@pytest.mark.parametrize(("sequence", "recurrent"), [(None, False), (None, True), (4, True)])
def test_a_burn_in_must_leave_something_to_learn_from(sequence: int | None, recurrent: bool) -> None:
    length = sequence or (16 if recurrent else 1)
    ReplayConfig(sequence=sequence, burn_in=length - 1).folded(1, 0.9, recurrent)
    with pytest.raises(UserError, match="burn_in"):
        ReplayConfig(sequence=sequence, burn_in=length).folded(1, 0.9, recurrent)


@pytest.mark.parametrize("n", [1, 3])
def test_rows_of_a_sequence_are_the_rows_one_by_one(n: int) -> None:
    rows, _ = random_rows(2, 40, seed=1)
    cpu, spec = torch.device("cpu"), EnvSpec(Box((1,)), Discrete(2), 2)
    single = ReplayConfig(capacity=80).folded(n, 0.9, False).build(spec, cpu)
    several = ReplayConfig(capacity=80, sequence=5).folded(n, 0.9, False).build(spec, cpu)
    feed(single, rows)
    feed(several, rows)
    first = torch.arange(0, 40)[None]
    weight = torch.ones(1, 40)
    long = several.gather(first, weight, Progress()).data
    after = ops.at(long.next_obs, long.ahead)
    for k in range(5):
        one = single.gather(first + 2 * k, weight, Progress()).data
        assert torch.equal(long.reward[k], one.reward[0])
        assert torch.equal(after[k], ops.at(one.next_obs, one.ahead)[0])
