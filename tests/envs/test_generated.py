"""Any spaces in any order: `env.workers` 0, 1 and 2 see the same rows, and every action arrives as it was chosen."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any

import pytest
import torch
from gymnasium import spaces

from ganglion.core import Env
from ganglion.envs import GymEnv
from ganglion.envs.check.slots_env import Observed, SlotsChooser, drive, mapped, outline, replayed, same, typed
from ganglion.envs.gym_arrays import leaves
from ganglion.envs.pool import Pool, PoolEnv
from ganglion.envs.pool_layout import decode
from ganglion.errors import UserError
from tests.envs.generated import Generated, Turned
from tests.envs.worlds import copied

DRAWS = 100 if os.environ.get("GANGLION_SOAK") == "1" else 8
STEPS, SLOTS = 25, 3


def built(draw: int, workers: int) -> GymEnv:
    if not workers:
        return GymEnv(lambda slot: Generated(draw), SLOTS)
    return PoolEnv(Pool("tests.envs.generated:generated", {"draw": draw}, SLOTS, workers, spare=False))


def seen(env: Env, draw: int) -> list[Observed]:
    """Random legal actions; of a Box of bytes as reals, as an algorithm chooses them, to be rounded."""
    choose = SlotsChooser(env.spec.action, SLOTS, draw)

    def reals(x: torch.Tensor) -> torch.Tensor:
        return x.float() + 0.6 if x.dtype == torch.uint8 else x

    return list(islice(drive(env, draw, lambda before: mapped(reals, choose(before))), STEPS))


@pytest.mark.parametrize("draw", range(DRAWS))
def test_workers_change_nothing(draw: int) -> None:
    here = built(draw, 0)
    rows = seen(here, draw)
    assert here.faults.count == 0, here.faults.fresh[0]["traceback"]  # legal actions, of the right dtypes
    assert typed(here, rows).verdict == "pass"
    state, scores = copied(here.state()), here.episodes()
    for workers in (1, 2):
        there = built(draw, workers)
        try:
            assert outline(there.spec.obs) == outline(here.spec.obs)
            assert outline(there.spec.action) == outline(here.spec.action)
            again = list(islice(drive(there, draw, replayed(rows)), STEPS))
            assert all(same(a.step, b.step) for a, b in zip(rows, again, strict=True))
            assert there.faults.count == 0 and there.episodes() == scores
            also = copied(there.state())
            assert also.scalars["actions"] == state.scalars["actions"]
            assert all(torch.equal(also.tensors[name], tensor) for name, tensor in state.tensors.items())
        finally:
            there.close()


def test_leaves_are_compared_when_a_pool_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both sides make of the spaces must be the same, whoever is wrong."""

    def in_order(plain: dict[str, Any]) -> Any:
        space = decode(plain)
        return spaces.Dict(dict(space.spaces)) if isinstance(space, spaces.Dict) else space  # gymnasium sorts it

    monkeypatch.setattr("ganglion.envs.pool_process.decode", in_order)
    with pytest.raises(UserError, match=r"the observation space of slot 0 is laid out otherwise than the pool's.*'b'"):
        Pool("tests.envs.generated:turned", {}, 2, 1, spare=False)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_slots_with_their_keys_in_another_order_are_refused(workers: int) -> None:
    with pytest.raises(UserError, match=r"env\.per_slot: all slots need the same"):
        if workers:
            Pool("tests.envs.generated:turned", {"by": 1}, 2, workers, spare=False)
        else:
            GymEnv(Turned, 2)


def test_keys_that_would_be_one_are_refused() -> None:
    for keys in ((1, "1"), ("a/b", "a.b")):
        space: Any = spaces.Dict([(key, spaces.Discrete(2)) for key in keys])
        with pytest.raises(UserError, match="two keys that are both named"):
            leaves(space)
