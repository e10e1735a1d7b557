"""Running sums of the numbers in vector infos, one per key and slot; numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ganglion.envs.arrays import Array

NUMBERS = (int, float, np.integer, np.floating, np.bool_)


class Sums:
    """key -> the sum over a slot's running episode, and how many numbers it is made of."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.keys: list[str] = []
        self.total = np.zeros((0, slots))  # a row per key
        self.count = np.zeros((0, slots))
        self._usual: tuple[str, ...] = ()  # an info of these keys, in this order, is numbers for every slot

    def clear(self, which: Array) -> None:
        """Forgets what these slots have, [B] bool."""
        self.total[:, which] = 0.0
        self.count[:, which] = 0.0

    def add(self, info: Mapping[str, Any], which: Array | None) -> None:
        """Adds the plain numbers of an info, of these slots or (None) of all; anything else is passed over."""
        if which is None and self._usual and tuple(info) == self._usual:
            self.total += np.array(list(info.values()), np.float64)
            self.count += 1.0
            return
        usual = True
        for key, value in info.items():
            given = info.get(f"_{key}")
            if type(value) is not np.ndarray or value.ndim != 1 or key.startswith("_"):
                usual = False
            else:
                usual &= given is None and value.dtype.kind in "biuf"
                self._add(key, value, which if given is None else given if which is None else which & given)
        self._usual = tuple(info) if usual and list(info) == self.keys else ()

    def _add(self, key: str, value: Array, rows: Array | None) -> None:
        rows = np.ones(self.slots, np.bool_) if rows is None else rows
        if value.dtype.kind == "O":
            there = np.array([isinstance(x, NUMBERS) for x in value])
            value = np.array([float(x) if ok else 0.0 for x, ok in zip(value, there, strict=True)])
            rows = rows & there
        if value.dtype.kind in "biuf":
            at = self._row(key)
            np.add(self.total[at], value, out=self.total[at], where=rows)
            self.count[at] += rows

    def _row(self, key: str) -> int:
        if key not in self.keys:
            self.keys.append(key)
            self.total, self.count = (np.vstack([x, np.zeros(self.slots)]) for x in (self.total, self.count))
        return self.keys.index(key)

    def means(self, slot: int) -> dict[str, float]:
        """A slot's averages."""
        total, count = self.total[:, slot].tolist(), self.count[:, slot].tolist()
        return {key: t / n for key, t, n in zip(self.keys, total, count, strict=True) if n}

    def plain(self) -> list[dict[str, list[float]]]:
        """Per slot, key -> [sum, count]."""
        slots = zip(self.total.T.tolist(), self.count.T.tolist(), strict=True)
        return [{key: [t, n] for key, t, n in zip(self.keys, *pair, strict=True) if n} for pair in slots]

    def restore(self, plain: Sequence[Mapping[str, Sequence[float]]]) -> None:
        """What `plain` gave."""
        self.__init__(self.slots)  # type: ignore[misc]
        for slot, sums in enumerate(plain):
            for key, (total, count) in sums.items():
                at = self._row(key)
                self.total[at, slot], self.count[at, slot] = total, count
