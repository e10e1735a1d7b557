"""Environments that do not repeat under a seed, though they could: what they need for it. Numpy and gymnasium only."""

from __future__ import annotations

from typing import Any

import gymnasium


class NewWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """BipedalWalker in a new Box2D world for each episode: in the old one traces of the last episode remain, and the
    same seed and actions come to lead elsewhere. Gymnasium's LunarLander does the same."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import Box2D

        walker: Any = self.env.unwrapped
        walker._destroy()
        walker.world = Box2D.b2World()
        return self.env.reset(seed=seed, options=options)


def repaired(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, with its repair around it where it needs one."""
    return NewWorld(env) if type(env.unwrapped).__name__ == "BipedalWalker" else env
