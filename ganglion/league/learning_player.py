"""A player of a league that learns, and the matches that it plays."""

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
    """A match that is being played: against whom, by which algorithm, and how many games of it are left."""

    opponent: str
    index: int  # of the algorithm, in `Opponents.algos`
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


class LearningPlayer:
    """A learner, its opponents and its matches. Copy i of its game belongs to match i mod `len(matches)`."""

    def __init__(self, agent: Agent, away: Seat, opponents: Opponents, kind_of: Mapping[str, int], copies: int) -> None:
        """`away`: the opponents' seat. `kind_of`: which of the opponents' algorithms are of a player's kind."""
        self.agent, self.away, self.opponents, self.kind_of, self.copies = agent, away, opponents, kind_of, copies
        self.name = agent.player
        self.matches: list[Match] = []
        self.who = [""] * len(opponents.algos)  # which player each algorithm holds
        self.first = {name: tensor.clone() for name, tensor in agent.state().tensors.items()}  # as it began

    def begin_anew(self) -> None:
        """The weights, and all that learning has gathered beside rows, as they were at first."""
        for name, part in self.agent.algo.parts().items():
            part.restore(under(State(self.first), name))

    # ------------------------------------------------------------ matches

    def playing(self, dead: torch.Tensor) -> list[int]:
        """Which algorithm plays each copy's running or coming game; `dead` [slots]: between two."""
        past = self.away.past
        return torch.where(past.start | dead, self.opponents.next, past.carried[0])[0, : self.copies].tolist()

    def start(self, index: int, opponent: str, player: Contender, games: int, playing: Sequence[int]) -> bool:
        """Begins a match, if an algorithm of the opponent's kind is free: no game is played by it."""
        parent, weights = player
        count = len(self.opponents.kinds[0])
        first = self.kind_of[parent] * count
        taken = {*playing, *(other.index for other in self.matches)}
        free = [k for k in range(first, first + count) if k not in taken]
        if not free:
            return False
        self.opponents.load(free[0], weights)
        self.who[free[0]] = opponent
        self.matches[index] = Match(opponent, free[0], games)
        self.tell_slots()
        return True

    def tell_slots(self) -> None:
        """Which algorithm plays the coming game of each slot."""
        indices = [self.matches[k % self.copies % len(self.matches)].index for k in range(self.away.count)]
        self.opponents.next.copy_(torch.tensor([indices]))

    # ------------------------------------------------------------ results

    def results(self, episodes: Iterable[Episode], playing: Sequence[int], first: int) -> list[Result]:
        """Games that ended; slots count from `first`. `playing`: the algorithms when the first step of the block
        was made. A copy's second game in it is played by the one that comes next."""
        ended: list[list[Episode]] = [[] for _ in range(self.count)]
        for episode in episodes:
            ended[episode.slot - first].append(episode)
        coming = self.opponents.next[0].tolist()
        found = []
        for copy in range(self.copies):
            for number in range(len(ended[copy])):
                index = coming[copy] if number else playing[copy]
                match = self.matches[copy % len(self.matches)]
                match.left = max(match.left - 1, 0)
                found.append(result_of(ended, copy, number, self.copies, self.who[index]))
        return found

    @property
    def count(self) -> int:
        """Of its slots and its opponents'."""
        return self.copies + self.away.count

    # ------------------------------------------------------------ state

    def state(self) -> State:
        rows: Json = [[match.opponent, match.index, match.left] for match in self.matches]
        return State({}, {"matches": rows, "who": list(self.who), "knobs": list(self.opponents.played_with)})

    def restore(self, state: State) -> None:
        own, count = state.scalars, len(self.who)
        knobs = [{str(name): read_number(x) for name, x in each.items()} for each in own["knobs"]]
        if not len(own["who"]) == len(knobs) == count:
            raise ValueError(f"it has {len(knobs)} opponents at a time, this league {count}")
        self.who, self.opponents.played_with = [str(name) for name in own["who"]], knobs
        self.matches = [Match(str(n), read_count(k, count - 1), read_count(left)) for n, k, left in own["matches"]]
        if self.matches:
            self.tell_slots()
