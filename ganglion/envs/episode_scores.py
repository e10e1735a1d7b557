"""Scores of running episodes, slot by slot: rewards and the numbers in vector infos; numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ganglion.envs.gym_arrays import Array

NUMBERS = (int, float, np.integer, np.floating, np.bool_)
LATER = 64  # arrays that are kept back to be added together, in their order: sums are what they would have been


class EpisodeScores:
    """The return and length of every slot's running episode, and per info key a sum and how many it is made of."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.keys = [""]  # a row each; the first is the reward's
        self._total = np.zeros((1, slots))
        self._count = np.zeros((1, slots))
        self._usual: tuple[str, ...] | None = None  # an info of these keys, in this order, is numbers for every slot
        self._kept: list[Array] = []

    def add_all(self, reward: Array, info: Mapping[str, Any]) -> None:
        """Adds a step of every slot. Its arrays must not change afterwards."""
        if tuple(info) != self._usual:
            self.add(reward, info, np.ones(self.slots, np.bool_))
            return
        self._kept += reward, *info.values()
        if len(self._kept) >= LATER:
            self._catch_up()

    def add(self, reward: Array, info: Mapping[str, Any], which: Array) -> None:
        """Adds a step of some slots, [B] bool; anything in the info but numbers is passed over."""
        self._catch_up()
        self._add("", reward, which)
        self.add_info(info, which)

    def add_info(self, info: Mapping[str, Any], which: Array) -> None:
        usual = True
        for key, value in info.items():
            given = info.get(f"_{key}")
            if type(value) is not np.ndarray or value.ndim != 1 or key.startswith("_"):
                usual = False
            else:
                usual &= given is None and value.dtype.kind in "biuf"
                self._add(key, value, which if given is None else which & given)
        self._usual = tuple(info) if usual and list(info) == self.keys[1:] else None

    def _add(self, key: str, value: Array, rows: Array) -> None:
        if value.dtype.kind == "O":
            there = np.array([isinstance(x, NUMBERS) for x in value])
            value = np.array([float(x) if ok else 0.0 for x, ok in zip(value, there, strict=True)])
            rows = rows & there
        if value.dtype.kind in "biuf":
            at = self._row(key)
            np.add(self._total[at], value, out=self._total[at], where=rows)
            self._count[at] += rows

    def _row(self, key: str) -> int:
        if key not in self.keys:
            self.keys.append(key)
            self._total, self._count = (np.vstack([x, np.zeros(self.slots)]) for x in (self._total, self._count))
        return self.keys.index(key)

    def _catch_up(self) -> None:
        if kept := self._kept:
            steps = np.concatenate([*self._total, *kept], dtype=np.float64).reshape(-1, *self._total.shape)
            self._total, self._kept = np.add.accumulate(steps)[-1].copy(), []  # in their order, as a sum might not be
            self._count += len(steps) - 1

    # ------------------------------------------------------------ what it came to

    def clear(self, which: Array) -> None:
        """Forgets what these slots have, [B] bool."""
        self._catch_up()
        self._total[:, which] = 0.0
        self._count[:, which] = 0.0

    @property
    def total(self) -> Array:
        """The running returns, [B]."""
        self._catch_up()
        return self._total[0]

    @property
    def length(self) -> Array:
        """Steps taken since the running episodes began, [B]."""
        self._catch_up()
        return self._count[0].astype(np.int64)

    def means(self, slot: int) -> dict[str, float]:
        """A slot's averages of what the infos said."""
        self._catch_up()
        total, count = self._total[:, slot].tolist(), self._count[:, slot].tolist()
        return {key: t / n for key, t, n in zip(self.keys[1:], total[1:], count[1:], strict=True) if n}

    def sums(self) -> list[dict[str, list[float]]]:
        """Per slot, info key -> [sum, count]."""
        self._catch_up()
        slots = zip(self._total[1:].T.tolist(), self._count[1:].T.tolist(), strict=True)
        return [{key: [t, n] for key, t, n in zip(self.keys[1:], *pair, strict=True) if n} for pair in slots]

    def restore(self, total: Array, length: Array, sums: Sequence[Mapping[str, Sequence[float]]]) -> None:
        """What total, length and sums said, to scores that are new."""
        self._total[0], self._count[0] = total, length
        for slot, pairs in enumerate(sums):
            for key, (t, n) in pairs.items():
                at = self._row(key)
                self._total[at, slot], self._count[at, slot] = t, n
