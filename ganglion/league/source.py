"""The Source of a league: learners play matches against opponents that a matchmaker chooses, and what comes of them
decides who is snapshotted and who begins anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from ganglion.core import Episode, Faults, LogData, Progress, State, Weights, join, under
from ganglion.league.games import Games
from ganglion.league.learning_player import Contender, LearningPlayer, Match, Result
from ganglion.league.members import Members
from ganglion.league.players import League
from ganglion.league.settings import LeagueSettings
from ganglion.runtime.explorer import Explorer

NOBODY = Match("", -1, 0)


class LeagueSource:
    """An Explorer whose opponents change, and the league that says who they are."""

    def __init__(
        self, explorer: Explorer, players: Sequence[LearningPlayer], cfg: LeagueSettings, seed: int, games: Games
    ) -> None:
        """`games` are played where snapshots are measured."""
        self.explorer, self.players, self.cfg, self.games = explorer, players, cfg, games
        self.spec, agents = explorer.spec, {player.name: player.agent for player in players}
        self.members = Members(cfg, seed, games, lambda name, at: agents[name].command(at))

    @property
    def league(self) -> League:
        return self.members.league

    @property
    def frozen(self) -> dict[str, Weights]:
        return self.members.frozen

    @property
    def names(self) -> list[str]:
        """Of those that learn."""
        return [player.name for player in self.players]

    def contender(self, name: str, at: Progress | None = None) -> Contender:
        return self.members.contender(name, at)

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
        before = self.members.stream.generator.get_state()
        name = self.members.opponent(player.name)
        if not player.start(index, name, self.contender(name, at), self.cfg.games, playing):
            self.members.stream.generator.set_state(before)  # chosen again when an algorithm is free

    def settle(self, player: LearningPlayer, found: Sequence[Result], at: Progress) -> None:
        """What games say, and what follows from it."""
        self.members.report(player.name, found)
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
        if self.members.snapshot(player.name, player.agent.command(at)):
            player.begin_anew()

    # ------------------------------------------------------------ the rest of a Source

    def numbers(self) -> Mapping[str, float]:
        return {**self.members.numbers(self.names), **self.explorer.numbers()}

    def summary(self) -> Mapping[str, str]:
        return self.members.summary()

    def close(self) -> None:
        self.explorer.close()
        self.games.close()

    def state(self) -> State:
        players = join({player.name: player.state() for player in self.players})
        own = join({"explorer": self.explorer.state(), "players": players})
        return merged(own, self.members.state())

    def restore(self, state: State) -> None:
        self.members.restore(state)
        self.explorer.restore(under(state, "explorer"))
        for player in self.players:
            player.restore(under(state, f"players/{player.name}"))


def merged(one: State, other: State) -> State:
    """Two states whose names differ as one."""
    return State(*({**mine, **theirs} for mine, theirs in zip(one, other, strict=True)))


def summed(player: str, found: Sequence[Result]) -> Episode:
    """Games that ended together, as one episode."""
    scores = {"win": fmean(r.score == 1.0 for r in found), "draw": fmean(r.score == 0.5 for r in found)}
    length = fmean(r.length for r in found)
    return Episode(-1, fmean(r.total for r in found), length, scores, len(found), player)
