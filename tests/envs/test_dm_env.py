"""The adapter of dm_env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ganglion.envs.configs import GymConfig
from ganglion.envs.dm_env import DmEnv

dm_env = pytest.importorskip("dm_env", reason="dm_env is not installed: pip install dm_env")


class Walk(dm_env.Environment):  # type: ignore[misc]
    """A walk on a line: it ends beyond 2 for good, and after six steps by time."""

    def __init__(self, seed: int) -> None:
        self.dice = np.random.default_rng(seed)

    def observation_spec(self) -> Any:
        from dm_env import specs

        return {"place": specs.Array((2,), np.float64), "height": specs.BoundedArray((), np.float64, 0, 1)}

    def action_spec(self) -> Any:
        from dm_env import specs

        return specs.BoundedArray((1,), np.float64, -1, 1)

    def reset(self) -> Any:
        self.place, self.count = self.dice.normal(size=2) / 10, 0
        return dm_env.restart(self.seen())

    def step(self, action: Any) -> Any:
        self.place, self.count = self.place + action[0], self.count + 1
        if abs(self.place[0]) > 2:
            return dm_env.termination(1.0, self.seen())
        make = dm_env.truncation if self.count == 6 else dm_env.transition
        return make(0.5, self.seen())

    def seen(self) -> dict[str, Any]:
        return {"place": self.place, "height": 0.25}


class WalkEnv(DmEnv):
    def make(self, seed: int) -> Any:
        return Walk(seed)


def test_ends_are_told_apart() -> None:
    gymnasium.register("DmWalk-v0", entry_point=WalkEnv)
    env = GymConfig(id="DmWalk-v0", slots=2, workers=0).build()
    step = env.reset(0)
    assert step.obs["place"].dtype == torch.float32 and step.obs["height"].tolist() == [[0.25], [0.25]]
    first = step.obs["place"].clone()
    for _ in range(6):
        step = env.step(torch.tensor([[0.9], [0.0]]))
        if step.terminated[0]:
            assert not step.truncated[0] and step.reward[0] == 1.0
            break
    else:
        raise AssertionError("it never ended")
    while not step.truncated[1]:
        step = env.step(torch.tensor([[0.0], [0.0]]))
    assert not step.terminated[1]
    assert torch.equal(env.reset(0).obs["place"], first)
    env.close()


def test_highway_is_known_by_its_name() -> None:
    pytest.importorskip("highway_env", reason="highway-env is not installed: pip install 'ganglion[highway]'")
    env = GymConfig(id="highway-fast-v0", slots=1, workers=0).build()
    step = env.reset(0)
    assert step.obs.shape == (1, 5, 5) and env.step(torch.tensor([1])).reward.isfinite().all()
    env.close()


def test_choices() -> None:
    from dm_env import specs

    from ganglion.envs.dm_env import space_of

    assert space_of(specs.DiscreteArray(4)) == gymnasium.spaces.Discrete(4)
    pixels = space_of(specs.BoundedArray((8, 8, 3), np.uint8, 0, 255))
    assert pixels == gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
