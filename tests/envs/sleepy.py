"""An environment whose step is mostly waiting, for workers to import by name."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBS = np.zeros(2, np.float32)


class Sleepy(gymnasium.Env[Any, Any]):
    """Waits a millisecond per step, as if for a simulator elsewhere."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return OBS.copy(), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return OBS.copy(), 1.0, False, False, {}


def register() -> None:
    """Known to gymnasium as Sleepy-v0."""
    if "Sleepy-v0" not in gymnasium.registry:
        gymnasium.register("Sleepy-v0", entry_point="tests.envs.sleepy:Sleepy", max_episode_steps=50)
