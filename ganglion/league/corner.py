"""A learner of a league, and the matches that it plays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch

from ganglion.core import Episode, Json, State, Weights, read_count, read_number, under
from ganglion.league.opponents import Opponents
from ganglion.runtime.agent import Agent
from ganglion.runtime.explorer import Seat


@dataclass
class Match:
    """A match that is being played: against whom, from which chair, and how many games of it are left."""

    opponent: str
    chair: int
    left: int


class Contender(NamedTuple):
    """Somebody who can play: whose algorithm it plays with, and its weights."""

    parent: str
    weights: Weights


class Result(NamedTuple):
    """A game of a learner."""

    opponent: str
    score: float  # 1 won, 0.5 drawn, 0 lost
    margin: float  # by how much its return exceeds the mean of the others'
    total: float
    length: float


def result_of(ended: Sequence[Sequence[Episode]], copy: int, number: int, copies: int, opponent: str) -> Result:
    """A game of a copy; `ended`: the episodes of the learner's slots, then of the others' in it, [copies] each."""
    own, others = ended[copy][number], [ended[k][number].total for k in range(copy + copies, len(ended), copies)]
    margin = own.total - fmean(others)
    return Result(opponent, 0.5 * (1 + (margin > 0) - (margin < 0)), margin, own.total, own.length)


class Corner:
    """A learner, the opponents that sit with it, and its tables. Copy i of its game belongs to table i mod tables."""

    def __init__(self, agent: Agent, away: Seat, opponents: Opponents, kind_of: Mapping[str, int], copies: int) -> None:
        """`away`: the opponents' seat. `kind_of`: which chairs are made for a learning player's algorithm."""
        self.agent, self.away, self.opponents, self.kind_of, self.copies = agent, away, opponents, kind_of, copies
        self.name = agent.player
        self.tables: list[Match] = []
        self.who = [""] * len(opponents.chairs)  # sits where
        self.first = {name: tensor.clone() for name, tensor in agent.state().tensors.items()}  # as it began

    def begin_anew(self) -> None:
        """The weights, and all that learning has gathered beside rows, as they were at first."""
        for name, part in self.agent.algo.parts().items():
            part.restore(under(State(self.first), name))

    # ------------------------------------------------------------ tables

    def playing(self, dead: torch.Tensor) -> list[int]:
        """The chair from which each copy's running or coming game is played; `dead` [slots]: between two."""
        past = self.away.past
        return torch.where(past.start | dead, self.opponents.next, past.carried[0])[0, : self.copies].tolist()

    def seat(self, table: int, opponent: str, player: Contender, games: int, playing: Sequence[int]) -> bool:
        """Begins a match, where a chair is free: nobody plays from it."""
        parent, weights = player
        count = len(self.opponents.kinds[0])
        first = self.kind_of[parent] * count
        taken = {*playing, *(other.chair for other in self.tables)}
        free = [k for k in range(first, first + count) if k not in taken]
        if not free:
            return False
        self.opponents.sit(free[0], weights)
        self.who[free[0]] = opponent
        self.tables[table] = Match(opponent, free[0], games)
        self.tell_slots()
        return True

    def tell_slots(self) -> None:
        """From which chairs their coming games are played."""
        chairs = [self.tables[k % self.copies % len(self.tables)].chair for k in range(self.away.count)]
        self.opponents.next.copy_(torch.tensor([chairs]))

    # ------------------------------------------------------------ results

    def results(self, episodes: Iterable[Episode], playing: Sequence[int], first: int) -> list[Result]:
        """Games that ended; slots count from `first`. `playing`: the chairs when the first step of the block was
        made. A copy's second game in it is played from the chair that comes next."""
        ended: list[list[Episode]] = [[] for _ in range(self.count)]
        for episode in episodes:
            ended[episode.slot - first].append(episode)
        coming = self.opponents.next[0].tolist()
        found = []
        for copy in range(self.copies):
            for number in range(len(ended[copy])):
                chair = coming[copy] if number else playing[copy]
                table = self.tables[copy % len(self.tables)]
                table.left = max(table.left - 1, 0)
                found.append(result_of(ended, copy, number, self.copies, self.who[chair]))
        return found

    @property
    def count(self) -> int:
        """Of its slots and its opponents'."""
        return self.copies + self.away.count

    # ------------------------------------------------------------ state

    def state(self) -> State:
        rows: Json = [[table.opponent, table.chair, table.left] for table in self.tables]
        return State({}, {"tables": rows, "who": list(self.who), "knobs": list(self.opponents.played_with)})

    def restore(self, state: State) -> None:
        own, chairs = state.scalars, len(self.who)
        knobs = [{str(name): read_number(x) for name, x in each.items()} for each in own["knobs"]]
        if not len(own["who"]) == len(knobs) == chairs:
            raise ValueError(f"it has {len(knobs)} chairs, this league {chairs}")
        self.who, self.opponents.played_with = [str(name) for name in own["who"]], knobs
        self.tables = [Match(str(n), read_count(c, chairs - 1), read_count(left)) for n, c, left in own["tables"]]
        if self.tables:
            self.tell_slots()
