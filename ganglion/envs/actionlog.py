"""What was done since the longest running episode began: enough to replay every running episode; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ganglion.envs.arrays import Array


class ActionLog:
    """The latest actions of some slots, as long as the longest of their running episodes."""

    def __init__(self) -> None:
        self.rows: list[list[Array]] = []  # one list of columns, [B, ...] each, per step
        self.room = 256

    def append(self, columns: list[Array], lengths: Callable[[], Sequence[int]]) -> None:
        """Adds a step, and now and then forgets what lies before the longest running episode."""
        self.rows.append(columns)
        if len(self.rows) >= self.room:
            longest = max(lengths()) + 1  # a failed episode is one longer than it got
            del self.rows[: max(0, len(self.rows) - longest)]
            self.room = 2 * longest + 256

    def tail(self, leaf: int, slot: int, count: int) -> list[Array]:
        """The last `count` actions of a slot."""
        return [row[leaf][slot] for row in self.rows[len(self.rows) - count :]]

    def columns(self, slots: Sequence[int], counts: Sequence[int], empty: Sequence[Array]) -> list[Array]:
        """The last actions of some slots, so many of each, slot after slot."""
        found = []
        for leaf, none in enumerate(empty):
            rows = [a for slot, count in zip(slots, counts, strict=True) for a in self.tail(leaf, slot, count)]
            found.append(np.stack(rows) if rows else none)
        return found

    def refill(self, columns: Sequence[Array], counts: Sequence[int]) -> None:
        """Holds replayed actions alone, each slot's at its end; `columns` have them slot after slot."""
        ends = np.cumsum(counts)
        self.rows, self.room = [], 2 * max(counts, default=0) + 256
        for back in range(max(counts, default=0), 0, -1):
            rows = np.maximum(ends - back, 0)  # slots with shorter episodes get rows nobody will read
            self.rows.append([column[rows] for column in columns])


class Place(NamedTuple):
    """Where some slots are: each in the middle of an episode, at its end, or in an episode that is lost."""

    seed: int
    episode: list[int]
    ended: list[bool]
    cut: list[int]  # slots whose running episode cannot be continued
    counts: list[int]  # actions taken since the episode began, 0 where it has ended or is cut
    columns: list[Array]  # those actions, slot after slot
