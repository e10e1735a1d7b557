"""The block of memory that a pool and its workers share: what lies where, and spaces as JSON; numpy only.

Every process works the layout out for itself from the spaces; the pool's travels as an outline, by which a worker
whose own is another is refused.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ganglion.envs.gym_arrays import Array, Leaf, action_leaves, leaves, named
from ganglion.envs.slots import Views, part
from ganglion.errors import UserError

LINE = 64  # bytes of a cache line: no two arrays share one
INFO = 4096  # bytes of JSON for one episode's info


class PoolForm(NamedTuple):
    """What the layout follows from."""

    obs: spaces.Space[Any]
    action: spaces.Space[Any]
    masked: int
    slots: int
    workers: int


class Block(NamedTuple):
    """The shared arrays: of B slots, the numbers that workers and pool agree by, and the scores of episodes."""

    obs: list[Array]
    masks: Array
    reward: Array
    flags: Array  # [5, B]: terminated, truncated, valid, lost, goes_on
    actions: list[Array]
    asked: Array  # [workers] the step a worker is asked for
    begun: Array  # [workers] the step it has begun
    ready: Array  # [workers] the step whose rows can be taken; negative where a message about it is on the pipe
    asleep: Array  # [2, workers] who waits by the pipe for a byte: workers, and the pool for each of them
    sequence: Array  # [B] the step a slot's row belongs to
    scored: Array  # [B] an episode has ended, and what follows is its score
    total: Array
    length: Array
    info: Array  # [B, INFO] JSON, its size in the first two bytes

    def views(self, first: int, count: int) -> Views:
        """What a worker's slots are written into."""
        return part(self, slice(first, first + count))


def lay(form: PoolForm, memory: Any = None) -> tuple[Block | None, int]:
    """The arrays over a piece of memory, or None without one, and the bytes they take."""
    slots, workers = form.slots, form.workers
    end = 0

    def place(shape: tuple[int, ...], dtype: Any) -> Array:
        nonlocal end
        start, end = end, end + -(-prod(shape) * np.dtype(dtype).itemsize // LINE) * LINE
        return np.zeros(0) if memory is None else np.ndarray(shape, dtype, memory, start)

    def each(parts: list[Leaf]) -> list[Array]:
        return [place((slots, *leaf.shape), leaf.dtype) for leaf in parts]

    block = Block(
        each(leaves(form.obs)),
        place((slots, form.masked), np.bool_),
        place((slots,), np.float64),
        place((5, slots), np.bool_),
        each(action_leaves(form.action)),
        place((workers,), np.int64),
        place((workers,), np.int64),
        place((workers,), np.int64),
        place((2, workers), np.int64),
        place((slots,), np.int64),
        place((slots,), np.bool_),
        place((slots,), np.float64),
        place((slots,), np.int64),
        place((slots, INFO), np.uint8),
    )
    return (None if memory is None else block), max(end, LINE)


def outline(form: PoolForm) -> dict[str, list[Any]]:
    """What lies where, in plain values: each leaf's path, shape and dtype, in their order."""
    parts = {"observation": leaves(form.obs), "action": action_leaves(form.action)}
    return {name: [[list(x.path), list(x.shape), np.dtype(x.dtype).name] for x in own] for name, own in parts.items()}


def check_outline(first: int, ours: dict[str, list[Any]], pools: dict[str, list[Any]]) -> None:
    """Refuses a worker that would read and write another leaf than the pool means."""
    for name, own in ours.items():
        if own != pools[name]:
            a, b = next(pair for pair in zip_longest(own, pools[name]) if pair[0] != pair[1])
            raise UserError(
                f"env: the {name} space of slot {first} is laid out otherwise than the pool's: {a} in place of {b}. "
                "Every environment that is made should declare the same spaces, keys in the same order."
            )


# ------------------------------------------------------------ spaces as JSON


def encode(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space in plain values."""
    match space:
        case spaces.Dict():
            return {"dict": [[named(key), encode(part)] for key, part in space.spaces.items()]}
        case spaces.Tuple():
            return {"tuple": [encode(part) for part in space.spaces]}
        case spaces.Discrete():
            return {"discrete": [int(space.n), int(space.start)]}
        case spaces.MultiDiscrete():
            return {"multidiscrete": [_pack(space.nvec), _pack(space.start), str(space.dtype)]}
        case spaces.MultiBinary():
            return {"multibinary": list(space.shape)}
        case spaces.Box():
            return {"box": [_pack(space.low), _pack(space.high), list(space.shape), str(space.dtype)]}
    leaves(space)  # refuses it by name
    raise AssertionError(space)


def decode(plain: dict[str, Any]) -> spaces.Space[Any]:
    """The space that was encoded."""
    ((kind, value),) = plain.items()
    match kind:
        case "dict":
            return spaces.Dict([(key, decode(part)) for key, part in value])  # pairs keep their order; a dict is sorted
        case "tuple":
            return spaces.Tuple([decode(part) for part in value])
        case "discrete":
            return spaces.Discrete(value[0], start=value[1])
        case "multidiscrete":
            return spaces.MultiDiscrete(_unpack(value[0]), np.dtype(value[2]), start=_unpack(value[1]))
        case "multibinary":
            return spaces.MultiBinary(value[0] if len(value) == 1 else value)
        case "box":
            dtype: Any = np.dtype(value[3]).type
            shape = tuple(value[2])
            return spaces.Box(_unpack(value[0]), _unpack(value[1]), shape, dtype)
    raise UserError(f"a worker sent a space of an unknown kind, {kind!r}")


def _pack(array: Array) -> list[Any]:
    """An array as its dtype, shape and bytes; those of one number where all are the same."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    return [str(array.dtype), list(array.shape), b64encode(flat.tobytes()).decode()]


def _unpack(packed: list[Any]) -> Array:
    dtype, shape, text = packed
    flat = np.frombuffer(b64decode(text), dtype)
    return flat.reshape(shape) if flat.size == prod(shape) else np.broadcast_to(flat, shape).copy()
