"""Matches that other processes play, each accounted for: begun, and then finished, lost with who played it, or under
way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ganglion.core import State, read_count

LABEL = ":"  # between the number of a match and its opponent


@dataclass
class RemoteMatch:
    """A match that an explorer plays."""

    player: str
    opponent: str
    explorer: int
    index: int  # among the matches that this explorer plays at a time
    games: int = 0  # that have been reported of it


class MatchBook:
    """What was begun, and what has become of it. A game is counted once: with the message that brought it."""

    def __init__(self) -> None:
        self.under_way: dict[int, RemoteMatch] = {}
        self.over: dict[int, RemoteMatch] = {}  # finished, while last games of it may still be played
        self.begun = self.finished = self.lost = self.games = self.strange = 0

    def begin(self, player: str, opponent: str, explorer: int, index: int) -> str:
        """Its label, by which its games are reported."""
        number, self.begun = self.begun, self.begun + 1
        self.under_way[number] = RemoteMatch(player, opponent, explorer, index)
        return f"{number}{LABEL}{opponent}"

    def report(self, label: str) -> str | None:
        """A game of a match: its opponent. None where there is no such match: it does not count."""
        number, _, opponent = label.partition(LABEL)
        match = self.under_way.get(int(number)) or self.over.get(int(number))
        if match is None:
            self.strange += 1
            return None
        match.games += 1
        self.games += 1
        return opponent

    def finish(self, label: str) -> None:
        number = int(label.partition(LABEL)[0])
        match = self.under_way.pop(number, None)
        if match is not None:
            self.finished += 1
            place = match.explorer, match.index
            self.over = {k: old for k, old in self.over.items() if (old.explorer, old.index) != place} | {number: match}

    def lose(self, explorer: int) -> None:
        """An explorer has ended: what it played is lost, but for games that were reported."""
        for number in [number for number, match in self.under_way.items() if match.explorer == explorer]:
            del self.under_way[number]
            self.lost += 1
        self.over = {number: match for number, match in self.over.items() if match.explorer != explorer}

    def numbers(self) -> Mapping[str, float]:
        counts = {"matches_begun": self.begun, "matches_finished": self.finished, "matches_lost": self.lost}
        counts |= {"matches_under_way": len(self.under_way), "games_refused": self.strange}
        return {f"league/{name}": float(count) for name, count in counts.items()}

    def line(self) -> str:
        return (
            f"{self.begun:,} begun, {self.finished:,} finished, {self.lost:,} lost, {len(self.under_way):,} under way"
        )

    def state(self) -> State:
        """Without what is under way: that is lost with the run's processes, and counted so."""
        lost = self.lost + len(self.under_way)
        counts = {"begun": self.begun, "finished": self.finished, "lost": lost, "games": self.games}
        return State({}, {**counts, "strange": self.strange})

    def restore(self, state: State) -> None:
        self.under_way, self.over = {}, {}
        self.begun, self.finished, self.lost, self.games, self.strange = (
            read_count(state.scalars[name]) for name in ("begun", "finished", "lost", "games", "strange")
        )
