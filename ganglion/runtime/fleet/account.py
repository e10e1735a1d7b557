"""The account of what came from Explorers elsewhere: counted, not guessed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic
from typing import NamedTuple

from ganglion.core import Origin, State

log = logging.getLogger(__name__)
WINDOW = 1_000  # numbers that an explorer's next item may be ahead of the one that is due
TOLD, AGAIN = 10, 60.0  # refusals that are warned about one by one; seconds after which one more is


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
        self.refused = 0  # no items of this run: damaged, forged, or another's
        self.in_flight = 0  # asked of an explorer that ended before it handed them over
        self.restarts = 0
        self.next: dict[Source, int] = {}
        self.places: set[Source] = set()  # that were given to explorers
        self.warned = 0.0  # when, of a refusal
        self.newest = -1  # version of the weights that were published last

    def admit(self, source: Source) -> None:
        """From now on its items are taken."""
        self.places.add(source)

    def take(self, origin: Origin, fault: str = "") -> bool:
        """Counts an item in; False: it has been here before, or is refused, for its fault or since no explorer of this
        run can have sent it. The number of one that is refused for its fault is used up."""
        source = Source(origin.player, origin.explorer, origin.incarnation)
        expected = self.next.get(source, 0)
        if source not in self.places:
            return self.refuse(f"{origin}: this place was given to nobody")
        if origin.sequence >= expected + WINDOW or origin.version > self.newest:
            return self.refuse(f"{origin}: number {expected} is due, and {self.newest} the newest version of weights")
        if origin.sequence < expected:
            self.duplicated += 1
            return False
        self.lost += origin.sequence - expected
        self.next[source] = origin.sequence + 1
        if fault:
            return self.refuse(f"{origin}: {fault}")
        self.received += 1
        return True

    def refuse(self, why: str) -> bool:
        """Counts what is not taken: False, as an answer to whether it is."""
        self.refused += 1
        if self.refused <= TOLD or monotonic() - self.warned > AGAIN:
            self.warned = monotonic()
            more = "" if self.refused < TOLD else f" ({self.refused} so far; most are only counted, as fleet/refused)"
            log.warning("refused an item, %s%s", why, more)
        return False

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
        """Counts an item in, before anyone has looked into it; False: it is not to be taken."""
        return super().take(origin)

    def take(self, origin: Origin, fault: str = "") -> bool:
        if fault:
            self.received -= 1
            return self.refuse(f"{origin}: {fault}")
        return True
