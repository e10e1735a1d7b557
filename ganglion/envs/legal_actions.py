"""Action masks as environments give them: their parts, and random actions that they allow; numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import spaces

from ganglion.envs.gym_arrays import MASK, Array
from ganglion.errors import UserError


def mask_of(obs: Any, info: Any) -> Any:
    """The action mask of a row, wherever it is: an array, or a tree of them; None where there is none."""
    found = [place[MASK] for place in (obs, info) if isinstance(place, Mapping) and place.get(MASK) is not None]
    return found[0] if found else None


def entries(mask: Any) -> int:
    """How many entries a mask in info has."""
    with suppress(ValueError):  # of several lengths
        array = np.asarray(mask)
        if array.dtype.kind in "biuf":
            return array.size
    raise UserError(
        f"env: info[{MASK!r}] should be one array, got {type(mask).__name__}; for the parts of a Dict or Tuple action, "
        f"masks belong into a Dict observation, under the key {MASK!r}"
    )


def part_of(mask: Any, key: Any) -> Any:
    """The mask of one part of a Dict or Tuple action; None where it has none."""
    if isinstance(mask, Mapping):
        return mask.get(key, mask.get(str(key)))
    return mask[key] if isinstance(mask, tuple | list) and isinstance(key, int) and key < len(mask) else None


def parts(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[Any, spaces.Space[Any]]]:
    """The parts of an action with their keys, or places."""
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))


def choices(space: spaces.Space[Any], mask: Any) -> Iterator[Array]:
    """The mask of every single choice that an action holds and a mask speaks of, [n] each."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in parts(space):
            yield from choices(part, part_of(mask, key))
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and mask is not None:
        sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        flat = np.ravel(mask)
        if flat.size == sizes.sum():
            yield from np.split(flat, np.cumsum(sizes)[:-1])


def sample(space: spaces.Space[Any], mask: Any, dice: np.random.Generator) -> Any:
    """A random action that its mask allows; what no mask speaks of, or one that allows nothing, is drawn freely."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, part_of(mask, key), dice) for key, part in parts(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, part_of(mask, key), dice) for key, part in parts(space))
    drawn = space.sample()
    allowed = [np.flatnonzero(choice) for choice in choices(space, mask)]
    if not allowed or not all(legal.size for legal in allowed):
        return drawn
    taken = np.reshape([dice.choice(legal) for legal in allowed], space.shape or ())
    start: Any = space.start  # type: ignore[attr-defined]
    return (start + taken).astype(space.dtype)[()]
