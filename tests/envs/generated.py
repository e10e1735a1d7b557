"""Environments whose spaces are drawn at random from a seed; without torch, so that a worker can have them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium import spaces

Dice = np.random.Generator
WORDS = ("tool", "thrust", "a", "Z", "b/c", "10", "9", "goal", "Arm", "x y", "é")
KINDS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")


def pick(dice: Dice, *choices: Any) -> Any:
    return choices[int(dice.integers(len(choices)))]


def dict_of(dice: Dice, parts: list[tuple[Any, spaces.Space[Any]]]) -> spaces.Dict:
    """One of the ways in which a Dict can be written down; all but the first keep the order."""
    way = dice.integers(5)
    if way == 0:
        return spaces.Dict(dict(parts))
    if way == 1:
        return spaces.Dict(parts)
    if way == 2:
        return spaces.Dict(OrderedDict(parts))
    if way == 3 and all(key.isidentifier() for key, _ in parts):
        return spaces.Dict(**dict(parts))
    grown = spaces.Dict({})
    for key, part in parts:
        grown[key] = part
    return grown


def box(dice: Dice) -> spaces.Box:
    kind, shape = np.dtype(pick(dice, *KINDS)), pick(dice, (), (1,), (3,), (2, 3), (4, 4, 1))
    low = dice.integers(0, 3, shape) - (0 if kind.kind in "bu" else 2)
    high = low + dice.integers(0 if kind.kind == "b" else 1, 2 if kind.kind == "b" else 100, shape)
    if kind.kind == "b":
        low, high = np.zeros(shape), np.ones(shape)
    if kind.kind == "f" and dice.random() < 0.3:
        return spaces.Box(-np.inf, np.inf, shape, kind.type)
    return spaces.Box(np.asarray(low, kind), np.asarray(high, kind), shape, kind.type)


def leaf(dice: Dice) -> spaces.Space[Any]:
    match dice.integers(5):
        case 0:
            return spaces.Discrete(int(dice.integers(1, 6)), start=int(dice.integers(-3, 4)))
        case 1:
            shape = pick(dice, (1,), (3,), (2, 2))
            start = dice.integers(-2, 3, shape) if dice.random() < 0.5 else None
            return spaces.MultiDiscrete(dice.integers(1, 5, shape), pick(dice, np.int32, np.int64), start=start)
        case 2:
            return spaces.MultiBinary(pick(dice, 1, 4, (2, 3)))
        case _:
            return box(dice)


def space(dice: Dice, depth: int) -> spaces.Space[Any]:
    """A leaf, or a Dict or Tuple of others."""
    if depth == 0:
        return leaf(dice)
    count = int(dice.integers(1, 5))
    if dice.random() < 0.3:
        return spaces.Tuple([space(dice, int(dice.integers(depth))) for _ in range(count)])
    keys = [str(key) for key in dice.permutation(WORDS)[:count]]
    return dict_of(dice, [(key, space(dice, int(dice.integers(depth)))) for key in keys])


def mask_of(dice: Dice, actions: spaces.Space[Any]) -> spaces.Space[Any] | None:
    """The space of the masks of an action, some of its parts left out; None where nothing can be masked."""
    match actions:
        case spaces.Discrete():
            return spaces.MultiBinary(int(actions.n))
        case spaces.MultiDiscrete():
            return pick(dice, spaces.MultiBinary, lambda n: spaces.Box(0, 1, (n,), np.float32))(int(actions.nvec.sum()))
        case spaces.Dict() | spaces.Tuple():
            whole = isinstance(actions, spaces.Tuple)
            items = enumerate(actions.spaces) if whole else actions.spaces.items()
            parts = [(str(k), mask_of(dice, part)) for k, part in items]
            kept = [(k, part) for k, part in parts if part is not None and dice.random() < 0.8]
            if whole and len(kept) == len(actions.spaces):
                return spaces.Tuple([part for _, part in kept])
            return dict_of(dice, [kept[i] for i in dice.permutation(len(kept))]) if kept else None
    return None


class Generated(gymnasium.Env[Any, Any]):
    """Shows random values, pays a number that every bit of an action decides, and refuses what is illegal."""

    def __init__(self, draw: int, depth: int = 3) -> None:
        dice = np.random.default_rng(draw)
        self.action_space = space(dice, pick(dice, 0, depth, depth))
        self.mask = mask_of(dice, self.action_space) if draw % 2 else None
        seen = space(dice, depth)
        while self.mask is not None and not isinstance(seen, spaces.Dict):
            seen = space(dice, depth)
        self.in_info = isinstance(self.mask, spaces.MultiBinary) and dice.random() < 0.5
        if isinstance(seen, spaces.Dict) and self.mask is not None and not self.in_info:
            parts = [*seen.spaces.items(), ("action_mask", self.mask)]
            seen = dict_of(dice, [parts[i] for i in dice.permutation(len(parts))])
        self.observation_space = seen

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        obs = self.observation_space.sample()
        if self.mask is None:
            return obs, {}
        self.legal = legal(self.action_space, self.mask, self.np_random)
        if self.in_info:
            return obs, {"action_mask": self.legal}
        return {**obs, "action_mask": self.legal}, {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 31)))
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self.mask is not None:
            check(self.action_space, self.legal, action)
        worth = float(digest(action) % 10_007)
        obs, info = self._seen()
        return obs, worth, bool(self.np_random.random() < 0.1), False, info


def legal(actions: spaces.Space[Any], mask: spaces.Space[Any], dice: Dice) -> Any:
    """A mask that leaves something to do."""
    if isinstance(mask, spaces.Dict):
        return {k: legal(part_of(actions, k), part, dice) for k, part in mask.spaces.items()}
    if isinstance(mask, spaces.Tuple):
        return tuple(legal(part_of(actions, str(i)), part, dice) for i, part in enumerate(mask.spaces))
    rows = []
    for n in np.ravel(getattr(actions, "nvec", getattr(actions, "n", None))):
        row = dice.integers(0, 2, n)
        row[dice.integers(n)] = 1
        rows.append(row)
    return np.concatenate(rows).astype(mask.dtype)


def part_of(actions: Any, key: str) -> spaces.Space[Any]:
    found: spaces.Space[Any] = actions[int(key)] if isinstance(actions, spaces.Tuple) else actions[key]
    return found


def check(actions: Any, mask: Any, action: Any) -> None:
    """Refuses illegal actions, as a board game would."""
    if isinstance(mask, dict):
        for key, part in mask.items():
            check(part_of(actions, key), part, action[int(key)] if isinstance(action, tuple) else action[key])
    elif isinstance(mask, tuple):
        for own, part, taken in zip(actions, mask, action, strict=True):
            check(own, part, taken)
    else:
        counts = np.ravel(getattr(actions, "nvec", getattr(actions, "n", None)))
        ends = np.cumsum([0, *counts])[:-1]
        if not mask[ends + np.ravel(action) - np.ravel(actions.start)].all():
            raise ValueError(f"illegal: {action} under {mask}")


def digest(action: Any) -> int:
    """A number of names, dtypes, shapes and bytes, whatever the order of keys."""
    if isinstance(action, dict):
        return crc32(repr([(key, digest(action[key])) for key in sorted(action)]).encode())
    if isinstance(action, tuple):
        return crc32(repr([digest(part) for part in action]).encode())
    array = np.asarray(action)
    return crc32(array.tobytes(), crc32(f"{array.dtype} {array.shape}".encode()))


def generated(slot: int, draw: int) -> Generated:
    return Generated(draw)


class Turned(gymnasium.Env[Any, Any]):
    """A Dict whose keys are not sorted, turned round in every second slot."""

    action_space = spaces.Discrete(2)

    def __init__(self, slot: int) -> None:
        keys = "ba" if slot % 2 == 0 else "ab"
        self.observation_space = spaces.Dict([(key, spaces.Discrete(3)) for key in keys])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return {"a": 1, "b": 2}, {}


def turned(slot: int, by: int = 0) -> Turned:
    return Turned(slot * by)
