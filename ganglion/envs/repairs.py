"""What some environments need to be fit for use: to repeat under a seed, to be quiet, to be quick. Numpy and gymnasium
only."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec


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


def quieten(spec: GymSpec) -> None:
    """Keeps ALE from saying its name for every game that is made."""
    if str(spec.entry_point).startswith("ale_py"):
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


class Checked(spaces.Discrete):
    """Actions that were looked at before they got here: asking again takes a third of a small environment's step."""

    def contains(self, x: Any) -> bool:
        return True


class CheckedEach(spaces.MultiDiscrete):
    """The same, of a vector environment."""

    def contains(self, x: Any) -> bool:
        return True


def trusting(env: Any) -> None:
    """Makes an environment believe that its actions are within its space: `Actions` sees to that where they are plain
    numbers, unless a wrapper makes other ones of them."""
    known: dict[type, type] = {spaces.Discrete: Checked, spaces.MultiDiscrete: CheckedEach}
    space = env.action_space
    if env is env.unwrapped and type(space) in known:
        space.__class__ = known[type(space)]
