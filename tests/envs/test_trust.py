"""Plain actions are looked at once, by us: environments are not asked again, and wrong ones are refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from ganglion.envs.gym import GymEnv
from ganglion.envs.gym_make import Checked, CheckedEach, trusting
from ganglion.envs.vector import VectorGymEnv
from ganglion.errors import UserError


def raw(slot: int = 0) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1").unwrapped


def vector() -> VectorGymEnv:
    return VectorGymEnv(gymnasium.make_vec("CartPole-v1", 3, "vector_entry_point"), "CartPole-v1")


@pytest.mark.parametrize("make", [lambda: GymEnv(raw, 3), vector])
@pytest.mark.parametrize("wrong", [[0, 2, 1], [0, -1, 1]])
def test_wrong_actions_are_refused(make: Any, wrong: list[int]) -> None:
    env = make()
    env.reset(0)
    env.step(torch.tensor([0, 1, 1]))
    with pytest.raises(UserError, match=r"not all within Discrete\(2\)"):
        env.step(torch.tensor(wrong))
    env.close()


def test_an_environment_is_the_same_in_all_but_that() -> None:
    plain, trusted = raw(), raw()
    trusting(trusted)
    assert type(trusted.action_space) is Checked and trusted.action_space == plain.action_space
    assert isinstance(vector().env.action_space, CheckedEach)
    for env in (plain, trusted):
        env.reset(seed=3)
    for action in (0, 1, 1, 0):
        one, two = plain.step(action), trusted.step(action)
        assert (one[0] == two[0]).all() and one[1:] == two[1:]


def test_behind_a_wrapper_it_goes_on_asking() -> None:
    env = gymnasium.wrappers.TransformAction(raw(), lambda action: action + 5, gymnasium.spaces.Discrete(2))
    trusting(env)
    assert type(env.unwrapped.action_space) is gymnasium.spaces.Discrete
    env.reset(seed=0)
    with pytest.raises(AssertionError):
        env.step(1)
