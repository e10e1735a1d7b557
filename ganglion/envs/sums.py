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
        self.held: dict[str, tuple[Array, Array]] = {}

    def clear(self, which: Array) -> None:
        """Forgets what these slots have, [B] bool."""
        for pair in self.held.values():
            for array in pair:
                array[which] = 0.0

    def add(self, info: Mapping[str, Any], which: Array | None) -> None:
        """Adds the plain numbers of an info, of these slots or (None) of all; anything else is passed over."""
        for key, value in info.items():
            if type(value) is not np.ndarray or value.ndim != 1 or key.startswith("_"):
                continue
            given = info.get(f"_{key}")
            rows = which if given is None else given if which is None else which & given
            if value.dtype.kind == "O":
                there = np.array([isinstance(x, NUMBERS) for x in value])
                value = np.array([float(x) if ok else 0.0 for x, ok in zip(value, there, strict=True)])
                rows = there if rows is None else rows & there
            if value.dtype.kind in "biuf":
                self._add(key, value, rows)

    def _add(self, key: str, value: Array, rows: Array | None) -> None:
        if key not in self.held:
            self.held[key] = np.zeros(self.slots), np.zeros(self.slots)
        total, count = self.held[key]
        if rows is None:
            total += value
            count += 1.0
        else:
            np.add(total, value, out=total, where=rows)
            count += rows

    def means(self, slot: int) -> dict[str, float]:
        """A slot's averages."""
        return {k: float(total[slot] / count[slot]) for k, (total, count) in self.held.items() if count[slot]}

    def plain(self) -> list[dict[str, list[float]]]:
        """Per slot, key -> [sum, count]."""
        pairs = {key: (total.tolist(), count.tolist()) for key, (total, count) in self.held.items()}
        return [{k: [t[slot], n[slot]] for k, (t, n) in pairs.items() if n[slot]} for slot in range(self.slots)]

    def restore(self, plain: Sequence[Mapping[str, Sequence[float]]]) -> None:
        """What `plain` gave."""
        self.held = {key: (np.zeros(self.slots), np.zeros(self.slots)) for sums in plain for key in sums}
        for slot, sums in enumerate(plain):
            for key, pair in sums.items():
                for array, x in zip(self.held[key], pair, strict=True):
                    array[slot] = x
