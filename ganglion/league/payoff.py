"""What players won against each other: decayed counts of games, and the win rates that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ganglion.core import State, read_number

Array = NDArray[np.float64]
TABLES = ("won", "drawn", "games", "met", "gain")


class Payoff:
    """Games won, drawn and lost of each player (down) against each (across). Every new result of a pair makes the
    older ones of that pair count `decay` times as much; a draw is half a win. A pair with fewer than `least` games
    has a win rate of 0.5. `met` and `gain`, the games and the sums of their margins, are not decayed."""

    def __init__(self, decay: float = 0.99, least: float = 8.0) -> None:
        self.decay, self.least = decay, least
        self.names: list[str] = []
        self.take(*(np.zeros((0, 0)) for _ in TABLES))

    def take(self, won: Array, drawn: Array, games: Array, met: Array, gain: Array) -> None:
        self.won, self.drawn, self.games, self.met, self.gain = won, drawn, games, met, gain

    def tables(self) -> tuple[Array, ...]:
        return self.won, self.drawn, self.games, self.met, self.gain

    def add(self, name: str) -> None:
        """A player that has played no games."""
        if name in self.names:
            raise ValueError(f"{name!r} is in the payoff already")
        self.names.append(name)
        self.take(*(np.pad(table, (0, 1)) for table in self.tables()))

    def report(self, first: str, second: str, scores: Sequence[float], margins: Sequence[float] = ()) -> None:
        """Games in their order: 1 where the first has won, 0.5 drawn, 0 lost; and by how much it won, where that is
        known. A player's games against itself say nothing."""
        score = np.asarray(scores, dtype=np.float64)
        if not np.isin(score, (0.0, 0.5, 1.0)).all():
            raise ValueError(f"a score is 0, 0.5 or 1, not {scores!r}"[:200])
        i, j, count = self.names.index(first), self.names.index(second), len(score)
        if i == j:
            return
        kept, shares, margin = self.decay**count, self.decay ** np.arange(count - 1, -1, -1), sum(margins)
        for one, other, won, sign in ((i, j, score == 1.0, 1), (j, i, score == 0.0, -1)):
            for table, now in ((self.won, won), (self.drawn, score == 0.5), (self.games, np.ones(count))):
                table[one, other] = kept * table[one, other] + now @ shares
            self.met[one, other] += count
            self.gain[one, other] += sign * margin

    def win_rate(self, first: str, second: str) -> float:
        return float(self.table()[self.names.index(first), self.names.index(second)])

    def win_rates(self, player: str, opponents: Sequence[str]) -> Array:
        row = self.table()[self.names.index(player)]
        return row[[self.names.index(name) for name in opponents]]

    def table(self) -> Array:
        """The win rates of all pairs, [players, players]."""
        known = self.games >= self.least
        return np.where(known, (self.won + 0.5 * self.drawn) / np.where(known, self.games, 1.0), 0.5)

    def margins(self, names: Sequence[str]) -> Array:
        """By how much each of some players has won against each, on average; 0 where they have not met."""
        rows = [self.names.index(name) for name in names]
        return (self.gain / np.maximum(self.met, 1.0))[np.ix_(rows, rows)]

    def forget(self, name: str) -> None:
        """A player begins anew: its games were another's."""
        i = self.names.index(name)
        for table in self.tables():
            table[i, :] = table[:, i] = 0.0

    def state(self) -> State:
        tables = {name: table.tolist() for name, table in zip(TABLES, self.tables(), strict=True)}
        return State({}, {"names": list(self.names), **tables})

    def restore(self, state: State) -> None:
        names = [str(name) for name in state.scalars["names"]]
        if len(set(names)) < len(names):
            raise ValueError("a payoff names each player once")
        self.names = names
        self.take(*(read_table(state, name, len(names)) for name in TABLES))


def read_table(state: State, name: str, size: int) -> Array:
    """A square table of a state that was read, checked."""
    rows = [[read_number(x) for x in row] for row in state.scalars[name]]
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(f"{name} should be a table of {size} x {size}")
    return np.array(rows, dtype=np.float64).reshape(size, size)
