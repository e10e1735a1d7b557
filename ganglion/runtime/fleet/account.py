"""The account of what came from Explorers elsewhere: counted, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ganglion.core import Origin, State


class Source(NamedTuple):
    """One life of one explorer."""

    player: str
    explorer: int
    incarnation: int


class Account:
    """Items received, lost, duplicated, stale, refused, and in flight when their explorer ended."""

    def __init__(self) -> None:
        self.received = 0  # taken over, each once
        self.lost = 0  # numbers that were passed over: handed over, and never seen
        self.duplicated = 0  # came again, and were not taken
        self.stale = 0  # received, and too old to learn from
        self.rows_dropped = 0  # of these
        self.refused = 0  # no items: damaged, or not ours
        self.in_flight = 0  # asked of an explorer that ended before it handed them over
        self.restarts = 0
        self.next: dict[Source, int] = {}

    def take(self, origin: Origin) -> bool:
        """Counts an item in; False: it has been here before."""
        source = Source(origin.player, origin.explorer, origin.incarnation)
        expected = self.next.get(source, 0)
        if origin.sequence < expected:
            self.duplicated += 1
            return False
        self.lost += origin.sequence - expected
        self.next[source] = origin.sequence + 1
        self.received += 1
        return True

    def ended(self, in_flight: int) -> None:
        """An explorer ended, with so many items asked of it and not handed over."""
        self.restarts += 1
        self.in_flight += in_flight

    def numbers(self) -> Mapping[str, float]:
        names = ("received", "lost", "duplicated", "stale", "rows_dropped", "refused", "in_flight", "restarts")
        return {f"fleet/{name}": float(getattr(self, name)) for name in names}

    def line(self) -> str:
        """All of it, in a line."""
        counts = f"{self.lost} lost, {self.duplicated} duplicated, {self.stale} stale, {self.in_flight} in flight"
        counts += f", {self.refused} refused" if self.refused else ""
        return f"{self.received:,} items: {counts}; {self.restarts} explorers started anew"

    def state(self) -> State:
        return State({}, {name.removeprefix("fleet/"): int(value) for name, value in self.numbers().items()})

    def restore(self, state: State) -> None:
        """Counts go on; a resumed run has explorers of new incarnations, which begin at 0."""
        for name, value in state.scalars.items():
            setattr(self, name, int(value))


class Arrivals(Account):
    """An account that is kept where items arrive: learners take them later, each only some of them."""

    def arrive(self, origin: Origin) -> bool:
        """Counts an item in; False: it has been here before."""
        return super().take(origin)

    def take(self, origin: Origin) -> bool:
        return True
