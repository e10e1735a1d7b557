"""A game that refuses illegal moves: every kind of action, its mask in every form, right and wrong."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.envs.generated import check, legal

ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([3, 2]),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32))),
    "dict": spaces.Dict([("tool", spaces.Discrete(3)), ("thrust", spaces.Box(-1.0, 1.0, (2,), np.float32))]),
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "bits": spaces.MultiBinary(3),
}
FORMS: dict[str, spaces.Space[Any]] = {
    "four": spaces.MultiBinary(4),
    "five": spaces.Box(0, 1, (5,), np.int8),
    "three": spaces.MultiBinary(3),
    "pair": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiBinary(2))),
    "first": spaces.Dict([("0", spaces.MultiBinary(3))]),
    "tool": spaces.Dict([("tool", spaces.MultiBinary(3))]),
    "other": spaces.Dict([("spoon", spaces.MultiBinary(3))]),
    "number": spaces.Discrete(4),
}


class Hybrid(gymnasium.Env[Any, Any]):
    """`form` of a mask for `action`, in the observation or in info. What fits is obeyed; what does not is all ones."""

    def __init__(self, action: str, form: str, fits: bool, where: str = "obs") -> None:
        self.action_space, self.form, self.fits, self.where = ACTIONS[action], FORMS[form], fits, where
        seen = [("board", spaces.Box(0.0, 1.0, (2,), np.float32))]
        self.observation_space = spaces.Dict([("action_mask", self.form), *seen] if where == "obs" else seen)

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        board = {"board": self.np_random.random(2, np.float32)}
        self.mask = legal(self.action_space, self.form, self.np_random) if self.fits else ones(self.form)
        mask = {"action_mask": self.mask}
        return ({**mask, **board}, {}) if self.where == "obs" else (board, mask)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fits:
            check(self.action_space, self.mask, action)
        self.t += 1
        obs, info = self._seen()
        return obs, 1.0, self.t > 5 + int(self.np_random.integers(5)), False, info


def ones(form: Any) -> Any:
    """The mask that forbids nothing."""
    if isinstance(form, spaces.Dict):
        return {key: ones(part) for key, part in form.spaces.items()}
    if isinstance(form, spaces.Tuple):
        return tuple(map(ones, form.spaces))
    return 1 if isinstance(form, spaces.Discrete) else np.ones(form.shape, form.dtype)
