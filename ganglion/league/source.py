"""The Source of a league: learners play matches against opponents that a matchmaker chooses, and what comes of them
decides who is snapshotted and who begins anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from ganglion.core import Episode, Faults, LogData, Progress, State, Weights, join, read_count, read_number, under
from ganglion.league.games import Games
from ganglion.league.learning_player import Contender, LearningPlayer, Match, Result
from ganglion.league.players import League
from ganglion.league.settings import LeagueSettings
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.randomness import Stream

NOBODY = Match("", -1, 0)


class LeagueSource:
    """An Explorer whose opponents change, and the league that says who they are."""

    def __init__(
        self, explorer: Explorer, players: Sequence[LearningPlayer], cfg: LeagueSettings, seed: int, games: Games
    ) -> None:
        """`games` are played where snapshots are measured."""
        self.explorer, self.players, self.cfg, self.games = explorer, players, cfg, games
        self.spec, self.league = explorer.spec, League(cfg)
        self.frozen: dict[str, Weights] = {}  # of historical players
        self.stream = Stream(seed, "league", torch.device("cpu"))

    def dice(self) -> float:
        return float(self.stream.uniform(dtype=torch.float64))

    # ------------------------------------------------------------ as a Source

    @property
    def faults(self) -> Faults:
        return self.explorer.faults

    def step(self, at: Progress) -> LogData:
        """A block of steps; then results, snapshots and new matches."""
        now = self.explorer.begin()
        dead = ~now.valid
        for player in self.players:
            if not player.matches:
                self.begin(player, at)
        playing = [player.playing(player.away.own(dead).to(player.agent.device)) for player in self.players]
        log = self.explorer.step(at)
        if not log.episodes:
            return log
        episodes, first = [], 0
        for player, against in zip(self.players, playing, strict=True):
            found = player.results(self.of(player, log.episodes, first), against, first)
            first += player.count
            if found:
                self.settle(player, found, log.at)
                episodes.append(summed(player.name, found))
        at = log.at._replace(episodes=at.episodes + sum(episode.many for episode in episodes))
        return LogData("collect", at, log.metrics, tuple(episodes))

    @staticmethod
    def of(player: LearningPlayer, episodes: Sequence[Episode], first: int) -> list[Episode]:
        return [episode for episode in episodes if first <= episode.slot < first + player.count]

    # ------------------------------------------------------------ matches

    def begin(self, player: LearningPlayer, at: Progress) -> None:
        """The first matches."""
        player.matches = [NOBODY] * self.cfg.matches
        for index in range(self.cfg.matches):
            self.match(player, index, (), at)

    def match(self, player: LearningPlayer, index: int, playing: Sequence[int], at: Progress) -> None:
        """A new match in place of one that is over. An opponent that learns keeps its weights of now until the end."""
        before = self.stream.generator.get_state()
        name = self.cfg.opponent(self.league, player.name, self.dice)
        if not player.start(index, name, self.contender(name, at), self.cfg.games, playing):
            self.stream.generator.set_state(before)  # chosen again when an algorithm is free

    def weights_of(self, name: str, at: Progress) -> Weights:
        return next(player.agent.command(at) for player in self.players if player.name == name)

    def settle(self, player: LearningPlayer, found: Sequence[Result], at: Progress) -> None:
        """What games say, and what follows from it."""
        games: dict[str, list[Result]] = {}
        for result in found:
            games.setdefault(result.opponent, []).append(result)
        for opponent, own in games.items():
            self.league.report(player.name, opponent, [r.score for r in own], [r.margin for r in own])
        if self.league.due(player.name):
            self.snapshot(player, at)
        over = [k for k, match in enumerate(player.matches) if match.left <= 0]
        if over:
            now = self.explorer.begin()
            playing = player.playing(~player.away.own(now.valid).to(player.agent.device))
            for index in over:
                self.match(player, index, playing, at)

    def snapshot(self, player: LearningPlayer, at: Progress) -> None:
        """A historical player, as its parent is now; it may begin anew itself."""
        weights = player.agent.command(at)
        past = self.league.past
        name, anew = self.league.snapshot(player.name, self.dice)
        self.frozen[name] = weights
        for other in past if self.cfg.measured else ():
            found = self.games.play(self.contender(name), self.contender(other), self.cfg.measured)
            self.league.rate(name, other, [r.score for r in found], [r.margin for r in found])
        if anew:
            player.begin_anew()

    def contender(self, name: str, at: Progress | None = None) -> Contender:
        """Whose algorithm a player plays with, and its weights: of now, where it learns."""
        weights = self.frozen[name] if name in self.frozen else self.weights_of(name, at or Progress())
        return Contender(self.league.players[name].parent or name, weights)

    # ------------------------------------------------------------ the rest of a Source

    def numbers(self) -> Mapping[str, float]:
        told = {"games": float(self.league.games), "snapshots": float(len(self.frozen))}
        for player in self.players:
            told |= self.league.ratings.numbers(player.name)
        return {**{f"league/{name}": value for name, value in told.items()}, **self.explorer.numbers()}

    def summary(self) -> Mapping[str, str]:
        return {"League": f"{self.league.games:,} games, {len(self.frozen)} snapshots"}

    def close(self) -> None:
        self.explorer.close()
        self.games.close()

    def state(self) -> State:
        frozen = {f"frozen/{name}": frozen_state(weights) for name, weights in self.frozen.items()}
        players = {f"players/{player.name}": player.state() for player in self.players}
        own = {"league": self.league.state(), "dice": self.stream.state(), "explorer": self.explorer.state()}
        return join({**own, **players, **frozen})

    def restore(self, state: State) -> None:
        self.league.restore(under(state, "league"))
        self.stream.restore(under(state, "dice"))
        self.explorer.restore(under(state, "explorer"))
        for player in self.players:
            player.restore(under(state, f"players/{player.name}"))
        self.frozen = {name: read_frozen(under(state, f"frozen/{name}")) for name in self.league.past}


def summed(player: str, found: Sequence[Result]) -> Episode:
    """Games that ended together, as one episode."""
    scores = {"win": fmean(r.score == 1.0 for r in found), "draw": fmean(r.score == 0.5 for r in found)}
    length = fmean(r.length for r in found)
    return Episode(-1, fmean(r.total for r in found), length, scores, len(found), player)


def frozen_state(weights: Weights) -> State:
    return State(weights.tensors, {"version": weights.version, "knobs": dict(weights.knobs)})


def read_frozen(state: State) -> Weights:
    knobs = {str(name): read_number(value) for name, value in state.scalars["knobs"].items()}
    return Weights(read_count(state.scalars["version"]), knobs, state.tensors)
