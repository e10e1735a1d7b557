"""The score of a league's first player: against all snapshots, as it plays in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from ganglion.core import Env, Episode, Progress
from ganglion.league.games import Games
from ganglion.league.learning_player import Contender
from ganglion.league.players import League
from ganglion.runtime.evaluator import Evaluator, never, score


class Playable(Protocol):
    """What the evaluator asks of a league's Source."""

    games: Games

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def league(self) -> League: ...

    def contender(self, name: str, at: Progress | None = None) -> Contender: ...


class LeagueEvaluator(Evaluator):
    """So many games of the first player, shared out over all snapshots; against itself while there are none."""

    def __init__(self, source: Playable, episodes: int) -> None:
        self.source, self.wanted = source, episodes
        self.env: Env | None = None

    def run(self, asked: Callable[[], bool] = never) -> tuple[list[Episode], Mapping[str, float]]:
        """Its episodes, and their statistics."""
        name = self.source.names[0]
        opponents = self.source.league.past or [name]
        each = -(-self.wanted // len(opponents))
        me, played = self.source.contender(name), []
        for opponent in opponents:
            played += self.source.games.play(me, self.source.contender(opponent), each, asked)
        self.env = self.source.games.env
        episodes = [Episode(-1, game.total, game.length, {}, 1, name) for game in played]
        return episodes, {**score(episodes), "eval/win_rate": fmean(game.score for game in played)}

    def close(self) -> None:
        """The games belong to the source."""
