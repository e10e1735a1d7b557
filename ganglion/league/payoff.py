"""What players won against each other: decayed counts of games, and the win rates that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ganglion.core import State, read_number

Array = NDArray[np.float64]


class Payoff:
    """Games won, drawn and lost of each player (down) against each (across). Every new result of a pair makes the
    older ones of that pair count `decay` times as much; a draw is half a win. A pair with fewer than `least` games
    has a win rate of 0.5."""

    def __init__(self, decay: float = 0.99, least: float = 8.0) -> None:
        self.decay, self.least = decay, least
        self.names: list[str] = []
        self.won = np.zeros((0, 0))
        self.drawn = np.zeros((0, 0))
        self.games = np.zeros((0, 0))

    def add(self, name: str) -> None:
        """A player that has played no games."""
        if name in self.names:
            raise ValueError(f"{name!r} is in the payoff already")
        self.names.append(name)
        self.won, self.drawn, self.games = (np.pad(x, (0, 1)) for x in (self.won, self.drawn, self.games))

    def report(self, first: str, second: str, score: float) -> None:
        """One game: 1 where the first has won, 0.5 drawn, 0 lost. A player's games against itself say nothing."""
        if score not in (0.0, 0.5, 1.0):
            raise ValueError(f"a score is 0, 0.5 or 1, not {score!r}")
        i, j = self.names.index(first), self.names.index(second)
        if i == j:
            return
        for one, other, won in ((i, j, score == 1.0), (j, i, score == 0.0)):
            for table, now in ((self.won, won), (self.drawn, score == 0.5), (self.games, True)):
                table[one, other] = self.decay * table[one, other] + now

    def win_rate(self, first: str, second: str) -> float:
        return float(self.table()[self.names.index(first), self.names.index(second)])

    def win_rates(self, player: str, opponents: Sequence[str]) -> Array:
        row = self.table()[self.names.index(player)]
        return row[[self.names.index(name) for name in opponents]]

    def table(self) -> Array:
        """The win rates of all pairs, [players, players]."""
        known = self.games >= self.least
        return np.where(known, (self.won + 0.5 * self.drawn) / np.where(known, self.games, 1.0), 0.5)

    def forget(self, name: str) -> None:
        """A player begins anew: its games were another's."""
        i = self.names.index(name)
        for table in (self.won, self.drawn, self.games):
            table[i, :] = table[:, i] = 0.0

    def state(self) -> State:
        tables = {"won": self.won.tolist(), "drawn": self.drawn.tolist(), "games": self.games.tolist()}
        return State({}, {"names": list(self.names), **tables})

    def restore(self, state: State) -> None:
        names = [str(name) for name in state.scalars["names"]]
        if len(set(names)) < len(names):
            raise ValueError("a payoff names each player once")
        self.names = names
        self.won, self.drawn, self.games = (read_table(state, name, len(names)) for name in ("won", "drawn", "games"))


def read_table(state: State, name: str, size: int) -> Array:
    """A square table of a state that was read, checked."""
    rows = [[read_number(x) for x in row] for row in state.scalars[name]]
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(f"{name} should be a table of {size} x {size}")
    return np.array(rows, dtype=np.float64).reshape(size, size)
