"""The Source of a league: learners play matches against opponents that a matchmaker chooses, and what comes of them
decides who is snapshotted and who begins anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from ganglion.core import Episode, Faults, LogData, Progress, State, Weights, join, read_count, read_number, under
from ganglion.league.corner import Contender, Corner, Match, Result
from ganglion.league.games import Games
from ganglion.league.players import League
from ganglion.league.settings import LeagueSettings
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.randomness import Stream

NOBODY = Match("", -1, 0)


class Matches:
    """An Explorer whose opponents change, and the league that says who they are."""

    def __init__(
        self, explorer: Explorer, corners: Sequence[Corner], cfg: LeagueSettings, seed: int, games: Games
    ) -> None:
        """`games` are played where snapshots are measured."""
        self.explorer, self.corners, self.cfg, self.games = explorer, corners, cfg, games
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
        for corner in self.corners:
            if not corner.tables:
                self.begin(corner, at)
        playing = [corner.playing(corner.away.own(dead).to(corner.agent.device)) for corner in self.corners]
        log = self.explorer.step(at)
        if not log.episodes:
            return log
        episodes, first = [], 0
        for corner, chairs in zip(self.corners, playing, strict=True):
            found = corner.results(self.of(corner, log.episodes, first), chairs, first)
            first += corner.count
            if found:
                self.settle(corner, found, log.at)
                episodes.append(summed(corner.name, found))
        at = log.at._replace(episodes=at.episodes + sum(episode.many for episode in episodes))
        return LogData("collect", at, log.metrics, tuple(episodes))

    @staticmethod
    def of(corner: Corner, episodes: Sequence[Episode], first: int) -> list[Episode]:
        return [episode for episode in episodes if first <= episode.slot < first + corner.count]

    # ------------------------------------------------------------ matches

    def begin(self, corner: Corner, at: Progress) -> None:
        """All tables are free, and so are all chairs but those taken here."""
        corner.tables = [NOBODY] * self.cfg.tables
        for table in range(self.cfg.tables):
            self.match(corner, table, (), at)

    def match(self, corner: Corner, table: int, playing: Sequence[int], at: Progress) -> None:
        """A new match at a table. An opponent that learns plays as it is now, until the match is over."""
        before = self.stream.generator.get_state()
        name = self.cfg.opponent(self.league, corner.name, self.dice)
        if not corner.seat(table, name, self.contender(name, at), self.cfg.games, playing):
            self.stream.generator.set_state(before)  # chosen again when a chair is free

    def weights_of(self, name: str, at: Progress) -> Weights:
        return next(corner.agent.command(at) for corner in self.corners if corner.name == name)

    def settle(self, corner: Corner, found: Sequence[Result], at: Progress) -> None:
        """What games say, and what follows from it."""
        games: dict[str, list[Result]] = {}
        for result in found:
            games.setdefault(result.opponent, []).append(result)
        for opponent, own in games.items():
            self.league.report(corner.name, opponent, [r.score for r in own], [r.margin for r in own])
        if self.league.due(corner.name):
            self.snapshot(corner, at)
        over = [k for k, table in enumerate(corner.tables) if table.left <= 0]
        if over:
            now = self.explorer.begin()
            playing = corner.playing(~corner.away.own(now.valid).to(corner.agent.device))
            for table in over:
                self.match(corner, table, playing, at)

    def snapshot(self, corner: Corner, at: Progress) -> None:
        """A historical player, as its parent is now; it may begin anew itself."""
        weights = corner.agent.command(at)
        past = self.league.past
        name, anew = self.league.snapshot(corner.name, self.dice)
        self.frozen[name] = weights
        for other in past if self.cfg.measured else ():
            found = self.games.play(self.contender(name), self.contender(other), self.cfg.measured)
            self.league.rate(name, other, [r.score for r in found], [r.margin for r in found])
        if anew:
            corner.begin_anew()

    def contender(self, name: str, at: Progress | None = None) -> Contender:
        """Whose algorithm a player plays with, and its weights: of now, where it learns."""
        weights = self.frozen[name] if name in self.frozen else self.weights_of(name, at or Progress())
        return Contender(self.league.players[name].parent or name, weights)

    # ------------------------------------------------------------ the rest of a Source

    def numbers(self) -> Mapping[str, float]:
        told = {"games": float(self.league.games), "snapshots": float(len(self.frozen))}
        for corner in self.corners:
            told |= self.league.ratings.numbers(corner.name)
        return {**{f"league/{name}": value for name, value in told.items()}, **self.explorer.numbers()}

    def summary(self) -> Mapping[str, str]:
        return {"League": f"{self.league.games:,} games, {len(self.frozen)} snapshots"}

    def close(self) -> None:
        self.explorer.close()
        self.games.close()

    def state(self) -> State:
        frozen = {f"frozen/{name}": frozen_state(weights) for name, weights in self.frozen.items()}
        corners = {f"corners/{corner.name}": corner.state() for corner in self.corners}
        own = {"league": self.league.state(), "dice": self.stream.state(), "explorer": self.explorer.state()}
        return join({**own, **corners, **frozen})

    def restore(self, state: State) -> None:
        self.league.restore(under(state, "league"))
        self.stream.restore(under(state, "dice"))
        self.explorer.restore(under(state, "explorer"))
        for corner in self.corners:
            corner.restore(under(state, f"corners/{corner.name}"))
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
