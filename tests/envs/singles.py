"""Small gymnasium environments, and functions that make one: without torch, so that a worker can have them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Everything(gymnasium.Env[Any, Any]):
    """Every kind of space at once; it remembers the actions it was given and repeats them in its observation."""

    observation_space = spaces.Dict(
        {
            "real": spaces.Box(-1.0, 1.0, (3,), np.float64),
            "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "one": spaces.Discrete(5, start=2),
            "many": spaces.MultiDiscrete([3, 4], start=[1, 0]),
            "bits": spaces.MultiBinary(4),
            "pair": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,), np.float32))),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-0.5, 0.5, (2,), np.float32))),
            "many": spaces.MultiDiscrete([3, 4], start=[1, 0]),
            "bits": spaces.MultiBinary(4),
        }
    )

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def _obs(self) -> dict[str, Any]:
        rng = self.np_random
        return {
            "real": rng.uniform(-1, 1, 3),
            "image": rng.integers(0, 256, (4, 4, 1), dtype=np.uint8),
            "one": int(rng.integers(2, 7)),
            "many": rng.integers([1, 0], [4, 4]),
            "bits": rng.integers(0, 2, 4, dtype=np.int8),
            "pair": (int(rng.integers(2)), rng.random(2, np.float32)),
            "action_mask": np.array([1, *rng.integers(0, 2, 2)], np.int8),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.last = self._obs()
        return self.last, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.seen.append(action)
        self.last = self._obs()
        return self.last, 0.5, bool(self.np_random.random() < 0.2), False, {}


class Reused(gymnasium.Env[Any, Any]):
    """Hands out the same array every time, changed in place; numbers, text and arrays in its info."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, np.inf], np.float32))

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.array = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.array[:] = self.np_random.integers(1000), 0
        return self.array, {"at_reset": 1.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float32 and action.shape == (2,)
        self.array += np.array([0, 1], np.float32)
        t = int(self.array[1])
        info = {"t": t, "half": np.float32(t / 2), "name": "x", "array": action, "_hidden": 3, "solved": t > 3}
        return self.array, float(action[0]), t == self.length, t == self.length and t % 2 == 0, info


class Fresh(Reused):
    """The same with arrays of their own: gymnasium's same-step mode cannot keep the last observation of the other."""

    def reset(self, **rest: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**rest)
        return obs.copy(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return obs.copy(), *rest


class InfoMask(gymnasium.Env[Any, Any]):
    """Legal actions in info, as board games do it; the observation counts steps."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(4)

    def _info(self) -> dict[str, Any]:
        self.mask = np.array([True, *(self.np_random.random(3) < 0.5)])
        return {"action_mask": self.mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return 0, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0 if self.mask[action] else -1.0
        self.t += 1
        return self.t, reward, self.t == 6, False, self._info()


def everything(slot: int) -> Everything:
    return Everything()


def masks(slot: int) -> InfoMask:
    return InfoMask()


def info(slot: int) -> Reused:
    return Reused()


class Lives(Reused):
    """Every fourth step costs a life, which is an ending inside the game; the third life is the last."""

    def __init__(self) -> None:
        super().__init__(length=14)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            return self.array, {}  # the next life
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, over, _, info = super().step(action)
        lost = not over and int(obs[1]) % 4 == 0
        return obs, reward, over or lost, False, {**info, **({"_goes_on": True} if lost else {})}


def lives(slot: int) -> Lives:
    return Lives()


class Talkative(Reused):
    """More numbers in its info than there is room for."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, over, cut, _ = super().step(action)
        return obs, reward, over, cut, {f"a long name of a number {i}": i / 3 for i in range(500)}


def talkative(slot: int) -> Talkative:
    return Talkative()
