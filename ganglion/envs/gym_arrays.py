"""Gymnasium spaces as flat lists of numpy arrays, one per leaf, [B, ...]; numpy only, so that workers need no torch.

The order of leaves is the space's own: a Dict's keys, a Tuple's places. Inside Ganglion every Discrete counts from 0
(`start` is taken off here and put back here), reals are float32, bytes stay bytes, and bits are int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from ganglion.errors import UserError

MASK = "action_mask"  # the one key with a meaning: which actions are legal

Array = NDArray[Any]


class Leaf(NamedTuple):
    """One array of a space: where it hangs, what it looks like inside Ganglion, and the space it came from."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DTypeLike
    start: Array | None  # what the outside counts from; None: 0
    space: spaces.Space[Any]


def named(key: Any) -> str:
    """What a Dict's key is called inside: without the slash, which parts names in saved states."""
    return str(key).replace("/", ".")


def leaves(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> list[Leaf]:
    """The leaves of a space, in order."""
    match space:
        case spaces.Dict():
            check_keys(space, path)
            return [leaf for key, part in space.spaces.items() for leaf in leaves(part, (*path, named(key)))]
        case spaces.Tuple():
            return [leaf for i, part in enumerate(space.spaces) for leaf in leaves(part, (*path, str(i)))]
        case spaces.Discrete():
            return [Leaf(path, (), np.int64, np.asarray(space.start, np.int64) if space.start else None, space)]
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box():
            return [_array_leaf(space, path)]
    raise UserError(
        f"env: the space {type(space).__name__} at {'/'.join(path) or 'the top'} is not supported; "
        "accepted are Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple; a wrapper may change it (env.wrappers)"
    )


def check_keys(space: spaces.Dict, path: tuple[str, ...]) -> None:
    """Refuses two keys that would be one inside: 1 and "1", "a/b" and "a.b"."""
    keys = sorted(map(named, space.spaces))
    for key, other in zip(keys, keys[1:], strict=False):
        if key == other:
            raise UserError(f"env: the Dict at {'/'.join(path) or 'the top'} has two keys that are both named {key!r}")


def action_leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """The leaves of an action space: every Box is chosen in reals, and rounded only for the environment."""
    return [leaf._replace(dtype=np.float32) if isinstance(leaf.space, spaces.Box) else leaf for leaf in leaves(space)]


def _array_leaf(space: spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box, path: tuple[str, ...]) -> Leaf:
    if path[:1] == (MASK,):
        return Leaf(path, (int(np.prod(space.shape)),), np.bool_, None, space)
    if isinstance(space, spaces.Box):
        return Leaf(path, space.shape, np.uint8 if space.dtype == np.uint8 else np.float32, None, space)
    start = None
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        start = space.start.reshape(-1).astype(np.int64)
    return Leaf(path, (int(np.prod(space.shape)),), np.int64, start, space)


def flatten(space: spaces.Space[Any], value: Any) -> list[Any]:
    """A value of the space as a list, in the order of its leaves."""
    if isinstance(space, spaces.Dict):
        return [x for key, part in space.spaces.items() for x in flatten(part, value[key])]
    if isinstance(space, spaces.Tuple):
        return [x for part, item in zip(space.spaces, value, strict=True) for x in flatten(part, item)]
    return [value]


Write = Callable[[int, Any], None]
Change = Callable[[Array], Array]


class MisfitError(UserError):
    """What an environment returned is not what its spaces promise."""


def batch(space: spaces.Space[Any], slots: int, arrays: list[Array] | None = None) -> tuple[list[Array], Write]:
    """Zeroed arrays for a batch of values, or those given, and a function that writes one slot's value into them."""
    parts = leaves(space)
    arrays = [np.zeros((slots, *leaf.shape), leaf.dtype) for leaf in parts] if arrays is None else arrays
    if len(arrays) == 1 and isinstance(space, spaces.Box):
        return arrays, _box_write(parts[0], arrays[0])  # the common case, at the price of one assignment

    def write(slot: int, value: Any) -> None:
        fit = [fitted(leaf, x) for leaf, x in zip(parts, flatten(space, value), strict=True)]
        for array, x in zip(arrays, fit, strict=True):  # all or none: a misfit leaves what was there
            array[slot] = x

    return arrays, write


def _box_write(leaf: Leaf, array: Array) -> Write:
    shape, fine = leaf.shape, {np.dtype(leaf.dtype), leaf.space.dtype}

    def write(slot: int, value: Any) -> None:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype not in fine:
            value = fitted(leaf, value)
        array[slot] = value

    return write


def fitted(leaf: Leaf, value: Any) -> Any:
    """One leaf's value as it is kept inside: its shape, counted from 0. Refused where it could only be guessed at."""
    array = np.asarray(value)
    at = f" {'/'.join(leaf.path)}" if leaf.path else ""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and np.dtype(leaf.dtype).kind not in "fb"):
        raise MisfitError(
            f"observation{at}: {leaf.space.dtype} was expected, got {array.dtype} ({type(value).__name__})"
        )
    if array.shape != (leaf.space.shape or ()) and not (leaf.shape == () and array.size == 1):
        raise MisfitError(f"observation{at}: shape {leaf.space.shape or ()} was expected, got {array.shape}")
    own = array.reshape(leaf.shape)
    return own if leaf.start is None else own - leaf.start


def inward(leaf: Leaf, array: Array) -> Array:
    """A vector environment's batch of one leaf as Ganglion's own: shifted, its dtype and shape, its own memory."""
    own = np.array(array, leaf.dtype, order="C").reshape(len(array), *leaf.shape)  # laid out alike, step by step
    return own if leaf.start is None else own - leaf.start


# ------------------------------------------------------------ actions


def outward(leaf: Leaf) -> Change:
    """What makes a batch of one leaf's actions as the environment wants them: shifted, clipped, its own dtype."""
    space = leaf.space
    if isinstance(space, spaces.Box):
        return _clipped(space)

    def shifted(array: Array) -> Array:
        moved = array if leaf.start is None else array + leaf.start
        if leaf.shape == ():
            return moved  # int64 is what a Discrete takes
        return moved.astype(space.dtype, copy=False).reshape(-1, *(space.shape or ()))

    return shifted


def _clipped(space: spaces.Box) -> Change:
    low, high, shape, kind = space.low, space.high, space.shape, space.dtype  # asked for once, not at every step
    assert kind is not None
    whole = kind.kind in "biu"

    def clipped(array: Array) -> Array:
        within: Array = np.minimum(np.maximum(array, low), high)  # np.clip, at a third of its price
        if whole:
            within = np.rint(within)
        if within.dtype != kind:
            within = within.astype(kind)
        return within if within.shape[1:] == shape else within.reshape(-1, *shape)

    return clipped


def _composite(space: spaces.Space[Any], columns: Any) -> list[Any]:
    """One action per slot from outward columns, as lists."""
    if isinstance(space, spaces.Dict):
        named = {key: _composite(part, columns) for key, part in space.spaces.items()}
        return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
    if isinstance(space, spaces.Tuple):
        return list(zip(*[_composite(part, columns) for part in space.spaces], strict=True))
    column: list[Any] = next(columns)
    return column


class Acts:
    """Turns columns, one array [B, ...] per leaf of the action space, into one action per slot."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.leaves = action_leaves(space)
        self.changes = [outward(leaf) for leaf in self.leaves]
        self.single = not isinstance(space, (spaces.Dict, spaces.Tuple))
        self.plain = isinstance(space, spaces.Discrete) and space.start == 0  # nothing to convert
        self.count = int(space.n) if isinstance(space, spaces.Discrete) else 0  # of a Discrete: its actions

    def outward(self, columns: Sequence[Array]) -> list[Array]:
        """Columns as the environment's own batch: shifted, clipped, its dtype."""
        return [change(column) for change, column in zip(self.changes, columns, strict=True)]

    def each(self, columns: Sequence[Array]) -> list[Any]:
        """One action per slot."""
        if self.plain:
            return list(columns[0])
        if self.single:
            return list(self.changes[0](columns[0]))
        return _composite(self.space, iter([list(column) for column in self.outward(columns)]))
