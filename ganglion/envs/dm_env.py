"""Environments of DeepMind's dm_env (dm_control and others) as Gymnasium's.

    class Cheetah(DmEnv):
        def make(self, seed):
            return suite.load("cheetah", "run", task_kwargs={"random": seed})

    gymnasium.register("Cheetah-v0", entry_point="my_module:Cheetah")

The package dm_env need not be installed here; its specs are read by what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class DmEnv(gymnasium.Env[Any, Any]):
    """A dm_env environment inside a Gymnasium one. It takes its seed when it is made: each seeded reset makes one."""

    metadata = {"render_modes": []}

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.inner = self.make(0)
        self.observation_space = space_of(self.inner.observation_spec())
        self.action_space = space_of(self.inner.action_spec())

    def make(self, seed: int) -> Any:
        """The environment for a seed; `self.options` are what gymnasium.make was given."""
        raise NotImplementedError(f"{type(self).__name__} makes no environment")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.inner.close()
            self.inner = self.make(seed)
        return value_of(self.observation_space, self.inner.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """An end with a discount of 0 is terminal; with another one time ran out."""
        now = self.inner.step(action)
        last, lives = bool(now.last()), now.discount is None or float(now.discount) > 0
        obs = value_of(self.observation_space, now.observation)
        return obs, float(now.reward or 0.0), last and not lives, last and lives, {}

    def close(self) -> None:
        self.inner.close()


def space_of(spec: Any) -> spaces.Space[Any]:
    """A spec, or a mapping or list of specs, as a space."""
    match spec:
        case Mapping():
            return spaces.Dict([(name, space_of(part)) for name, part in spec.items()])
        case list() | tuple():
            return spaces.Tuple([space_of(part) for part in spec])
    choices = said(spec, "num_values", None)
    if choices is not None:
        return spaces.Discrete(int(choices))
    dtype = np.dtype(spec.dtype)
    kind: Any = np.float32 if dtype.kind == "f" else np.uint8 if dtype == np.uint8 else np.int64
    whole = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    low, high = said(spec, "minimum", whole[0]), said(spec, "maximum", whole[1])
    bounds = [np.broadcast_to(np.asarray(bound, kind), spec.shape or (1,)) for bound in (low, high)]
    return spaces.Box(bounds[0], bounds[1], dtype=kind)


def said(spec: Any, name: str, default: Any) -> Any:
    """What a spec says of itself: plain ones have no bounds, choices have a count."""
    try:
        return attrgetter(name)(spec)
    except AttributeError:
        return default


def value_of(space: Any, value: Any) -> Any:
    """What was observed, as the space has it: single numbers are arrays of one."""
    if type(space) is spaces.Dict:
        return {name: value_of(part, value[name]) for name, part in space.spaces.items()}
    if type(space) is spaces.Tuple:
        return tuple(value_of(part, own) for part, own in zip(space.spaces, value, strict=True))
    if type(space) is spaces.Box:
        return np.asarray(value, space.dtype).reshape(space.shape)
    return int(value)
