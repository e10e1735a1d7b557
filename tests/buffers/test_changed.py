"""A saved buffer taken up under other settings: refused, or right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ganglion.buffers import PrioritisedConfig, ReplayConfig, RolloutConfig
from ganglion.core import Box, Discrete, EnvSpec, Progress
from ganglion.errors import UserError
from tests.buffers.naive import feed, random_rows

CPU, SPEC = torch.device("cpu"), EnvSpec(Box((1,)), Discrete(2), 2)


def filled(cfg: ReplayConfig, n: int = 1) -> Any:
    buffer = cfg.folded(n, 0.9, False).build(SPEC, CPU)
    feed(buffer, random_rows(2, 30, seed=1)[0])
    return buffer


@pytest.mark.parametrize("capacity", [40, 80])
@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
def test_another_capacity_is_refused(kind: type[ReplayConfig], capacity: int):
    state = filled(kind(capacity=60)).state()
    with pytest.raises(UserError, match=r"algo\.replay\.capacity"):
        kind(capacity=capacity).folded(1, 0.9, False).build(SPEC, CPU).restore(state)


@pytest.mark.parametrize("kinds", [(ReplayConfig, PrioritisedConfig), (PrioritisedConfig, ReplayConfig)])
def test_another_kind_is_refused(kinds: tuple[type[ReplayConfig], type[ReplayConfig]]):
    state = filled(kinds[0](capacity=60)).state()
    with pytest.raises(UserError, match=r"algo\.replay\.kind"):
        kinds[1](capacity=60).folded(1, 0.9, False).build(SPEC, CPU).restore(state)


@pytest.mark.parametrize("horizon", [4, 16])
def test_another_horizon_is_refused(horizon: int):
    """A shorter one would learn from rows of an earlier rollout as well."""
    buffer = RolloutConfig().rollouts(0.9, 8).build(SPEC, CPU)
    feed(buffer, random_rows(2, 5, seed=1)[0])
    with pytest.raises(UserError, match=r"algo\.horizon"):
        RolloutConfig().rollouts(0.9, horizon).build(SPEC, CPU).restore(buffer.state())


def test_a_longer_fold_draws_no_row_whose_later_rows_are_not_there():
    state = filled(PrioritisedConfig(capacity=40), n=1).state()
    longer = PrioritisedConfig(capacity=40).folded(6, 0.9, False).build(SPEC, CPU)
    longer.restore(state)
    index = longer.take(torch.rand(400, dtype=torch.float64), Progress()).index
    newest = longer.ring.pushed - 1
    age = (newest - index // 2) % longer.ring.length
    assert age.min() >= longer.fold.reach
