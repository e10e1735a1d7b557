"""Gymnasium's vector environments: every autoreset mode gives the rows of the contract."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ganglion.core import Discrete
from ganglion.envs import GymConfig, GymEnv, VectorGymEnv
from ganglion.errors import UserError
from tests.envs.worlds import Everything, Fresh, InfoMask, random_action, same_step

WORLDS: dict[str, Any] = {
    "cartpole": lambda: gymnasium.make("CartPole-v1"),
    "everything": Everything,
    "masks": InfoMask,
    "info": Fresh,
}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", WORLDS)
def test_every_mode_gives_the_same_rows(name: str, mode: AutoresetMode) -> None:
    make = WORLDS[name]
    plain = GymEnv(lambda slot: make(), 3)
    env = VectorGymEnv(SyncVectorEnv([make] * 3, autoreset_mode=mode), name)
    assert env.spec.obs == plain.spec.obs and env.spec.action == plain.spec.action
    assert same_step(env.reset(5), plain.reset(5))
    ended = 0
    for t in range(90):
        action = random_action(plain.spec.action, 3, t)
        a, b = env.step(action), plain.step(action)
        if mode is AutoresetMode.SAME_STEP and name == "masks":  # nobody acts at a last observation: its mask is moot
            a.obs["action_mask"][~a.valid] = b.obs["action_mask"][~b.valid]
        assert same_step(a, b), t
        ended += int((~a.valid).sum())
    assert ended > 5
    assert env.episodes() == plain.episodes()


class SameStepOnly(SyncVectorEnv):
    """A same-step environment whose slots cannot be reset alone."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert not options
        return super().reset(seed=seed)


def test_a_slot_that_cannot_be_held_loses_its_first_step_and_no_more() -> None:
    env = VectorGymEnv(SameStepOnly([Fresh] * 2, autoreset_mode=AutoresetMode.SAME_STEP), masked=False)
    env.reset(0)
    rows = [env.step(torch.ones(2, 2)) for _ in range(12)]
    assert [r.obs[0, 1].item() for r in rows] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]  # 0 is never shown again
    assert [bool(r.valid[0]) for r in rows] == [True] * 4 + [False] + [True] * 4 + [False] + [True] * 2
    assert rows[5].reward[0] == 0 and not rows[5].terminated.any()
    assert rows[4].terminated.all()


def test_a_vector_that_nobody_resets_is_refused() -> None:
    with pytest.raises(UserError, match="neither resets"):
        VectorGymEnv(SyncVectorEnv([Fresh] * 2, autoreset_mode=AutoresetMode.DISABLED), masked=False)


def test_cartpoles_own_vector() -> None:
    env = GymConfig(id="CartPole-v1", slots=4, vector=True, time_limit=30).build()
    assert env.promise == "state" and env.spec.action == Discrete(2)
    first = env.reset(1)
    assert first.valid.all() and (first.obs.abs() <= 0.05).all()
    step, lengths, length = first, [], np.zeros(4, int)
    for t in range(150):
        was = step.valid
        step = env.step(random_action(env.spec.action, 4, t))
        assert (step.obs[~was].abs() <= 0.05).all() and not step.reward[~was].any()
        assert (step.reward[was] == 1).all()
        length = np.where(was, length + 1, 0)
        lengths += [int(length[i]) for i in np.flatnonzero(~step.valid.numpy())]
    episodes = env.episodes()
    assert [e.length for e in episodes] == lengths and max(lengths) <= 30
    assert all(e.total == e.length for e in episodes)
