"""Environments of the old gym (four values from step, seed(), a bare observation from reset) as gymnasium's.

    class Mine(OldGym):
        world = TheOldClass

    gymnasium.register("Mine-v0", entry_point="my_module:Mine")

The package gym need not be installed; its spaces are read by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

from ganglion.errors import UserError


class OldGym(gymnasium.Env[Any, Any]):
    """An old environment inside a new one; a subclass names it as `world`."""

    world: ClassVar[Callable[..., Any]]
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None, **options: Any) -> None:
        self.old = type(self).world(**options)
        self.render_mode = render_mode
        self.observation_space = converted(self.old.observation_space)
        self.action_space = converted(self.old.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        extra = {}
        if seed is not None and callable(getattr(self.old, "seed", None)):
            self.old.seed(seed)
        elif seed is not None and "seed" in inspect.signature(self.old.reset).parameters:
            extra["seed"] = seed
        found = self.old.reset(**extra)
        both = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)
        return (found[0], found[1]) if both else (found, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        found = self.old.step(action)
        if len(found) == 5:
            return found
        obs, reward, ended, info = found
        truncated = bool(info.get("TimeLimit.truncated", False))  # how the old gym said that time had run out
        return obs, float(reward), bool(ended) and not truncated, truncated, info

    def render(self) -> Any:
        return self.old.render(mode="rgb_array")

    def close(self) -> None:
        self.old.close()


def converted(space: Any) -> spaces.Space[Any]:
    """A space of the old gym as gymnasium's."""
    if isinstance(space, spaces.Space):
        return space
    match type(space).__name__:
        case "Box":
            return spaces.Box(space.low, space.high, space.shape, space.dtype)
        case "Discrete":
            return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(space.nvec)
        case "MultiBinary":
            return spaces.MultiBinary(space.n)
        case "Dict":
            return spaces.Dict({key: converted(part) for key, part in space.spaces.items()})
        case "Tuple":
            return spaces.Tuple([converted(part) for part in space.spaces])
    raise UserError(f"env: the old space {type(space).__name__} is not supported")
