"""All who are in a league, with their weights: whoever chooses, plays or snapshots asks here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ganglion.core import Progress, State, Weights, join, read_count, read_number, under
from ganglion.league.games import Games
from ganglion.league.learning_player import Contender, Result
from ganglion.league.players import League
from ganglion.league.settings import LeagueSettings
from ganglion.runtime.randomness import Stream

Now = Callable[[str, Progress], Weights]  # of a player that learns


class Members:
    """The league and the weights of its snapshots."""

    def __init__(self, cfg: LeagueSettings, seed: int, games: Games, now: Now) -> None:
        """`games` are played where snapshots are measured; `now` has the weights of who learns."""
        self.cfg, self.league, self.games, self.now = cfg, League(cfg), games, now
        self.frozen: dict[str, Weights] = {}  # of historical players
        self.stream = Stream(seed, "league", torch.device("cpu"))

    def dice(self) -> float:
        return float(self.stream.uniform(dtype=torch.float64))

    def opponent(self, name: str) -> str:
        """Whom a learning player plays next."""
        return self.cfg.opponent(self.league, name, self.dice)

    def contender(self, name: str, at: Progress | None = None) -> Contender:
        """Whose algorithm a player plays with, and its weights: of now, where it learns."""
        weights = self.frozen[name] if name in self.frozen else self.now(name, at or Progress())
        return Contender(self.league.players[name].parent or name, weights)

    def report(self, name: str, found: Sequence[Result]) -> None:
        """What games of a learner say of both sides."""
        games: dict[str, list[Result]] = {}
        for result in found:
            games.setdefault(result.opponent, []).append(result)
        for opponent, own in games.items():
            self.league.report(name, opponent, [r.score for r in own], [r.margin for r in own])

    def snapshot(self, name: str, weights: Weights) -> bool:
        """A historical player, as its parent is now; whether the parent is to begin anew."""
        past = self.league.past
        made, anew = self.league.snapshot(name, self.dice)
        self.frozen[made] = weights
        for other in past if self.cfg.measured else ():
            found = self.games.play(self.contender(made), self.contender(other), self.cfg.measured)
            self.league.rate(made, other, [r.score for r in found], [r.margin for r in found])
        return anew

    def numbers(self, learners: Sequence[str]) -> dict[str, float]:
        told = {"games": float(self.league.games), "snapshots": float(len(self.frozen))}
        for name in learners:
            told |= self.league.ratings.numbers(name)
        return {f"league/{name}": value for name, value in told.items()}

    def summary(self) -> Mapping[str, str]:
        return {"League": f"{self.league.games:,} games, {len(self.frozen)} snapshots"}

    def state(self) -> State:
        frozen = {f"frozen/{name}": frozen_state(weights) for name, weights in self.frozen.items()}
        return join({"league": self.league.state(), "dice": self.stream.state(), **frozen})

    def restore(self, state: State) -> None:
        self.stream.restore(under(state, "dice"))
        self.take_members(state)

    def take_members(self, state: State) -> None:
        """Who is in the league, and the snapshots."""
        self.league.restore(under(state, "league"))
        self.frozen = {name: read_frozen(under(state, f"frozen/{name}")) for name in self.league.past}


def frozen_state(weights: Weights) -> State:
    return State(weights.tensors, {"version": weights.version, "knobs": dict(weights.knobs)})


def read_frozen(state: State) -> Weights:
    knobs = {str(name): read_number(value) for name, value in state.scalars["knobs"].items()}
    return Weights(read_count(state.scalars["version"]), knobs, state.tensors)
