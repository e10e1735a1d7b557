"""Named wrappers around single gymnasium environments, from plain values: workers need neither torch nor pydantic."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from ganglion.errors import UserError, nearest

WRAPPERS = {  # what `env.wrappers` can name -> where it is
    "rewind": "ganglion.envs.atari:Rewind",
    "sticky": "ganglion.envs.atari:Sticky",
    "noop": "ganglion.envs.atari:NoopStart",
    "skip": "ganglion.envs.atari:SkipMax",
    "life": "ganglion.envs.atari:EpisodicLife",
    "fire": "ganglion.envs.atari:FireStart",
    "warp": "ganglion.envs.atari:Warp",
    "image": "ganglion.envs.grids:Image",
    "one_hot": "ganglion.envs.grids:OneHot",
    "flat": "ganglion.envs.grids:Flat",
    "mission": "ganglion.envs.grids:Mission",
}

SETTINGS = {"sticky": (0.0, 1.0), "noop": (1, 10_000), "skip": (1, 1_000), "warp": (8, 1_024)}  # from, to

Layer = tuple[Any, ...]  # a name, and its setting where it has one


def wrapped(env: gymnasium.Env[Any, Any], layers: Sequence[Sequence[Any]]) -> gymnasium.Env[Any, Any]:
    """The environment inside these wrappers, the first innermost."""
    for name, *setting in layers:
        env = find(name)(env, *setting)
    return env


def check_setting(name: str, given: Sequence[Any]) -> None:
    """Refuses a setting that a wrapper does not take."""
    if name not in SETTINGS:
        if given:
            raise ValueError(f"{name} takes no setting")
        return
    low, high = SETTINGS[name]
    kinds = (int,) if isinstance(low, int) else (int, float)
    if not given or type(given[0]) not in kinds or not low <= given[0] <= high:
        whole = "a whole number" if isinstance(low, int) else "a number"
        raise ValueError(f"{name} takes {whole} from {low:g} to {high:g}")


def find(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """A wrapper by its name."""
    if name not in WRAPPERS:
        raise UserError(
            f"env.wrappers: unknown name {name!r}. Accepted: {', '.join(WRAPPERS)}.{nearest(name, WRAPPERS)}"
        )
    module, _, attribute = WRAPPERS[name].partition(":")
    found: Callable[..., gymnasium.Env[Any, Any]] = getattr(importlib.import_module(module), attribute)
    return found
