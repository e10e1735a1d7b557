"""CartPole whose every step takes a millisecond more: an environment that is the bottleneck."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Slow(CartPoleEnv):
    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return super().step(action)


gymnasium.register("SlowCartPole-v0", Slow, max_episode_steps=500)
