"""Games between two given players, as they play in training: on a world of its own, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ganglion.core import Env, Episode, Progress
from ganglion.errors import EvaluationStoppedError
from ganglion.league.league_env import LeagueEnv, places
from ganglion.league.learning_player import Contender, Result, result_of
from ganglion.runtime.evaluator import never
from ganglion.runtime.explorer import Explorer, Seat

MakeSeat = Callable[[str, int, slice], Seat]  # for a player of a kind (whose parent is named), on a side, of some slots


class Games:
    """An environment in which one player has one side, and another one the other."""

    def __init__(self, make_env: Callable[[], Env], make_seat: MakeSeat, seed: int) -> None:
        self.make_env, self.make_seat, self.seed = make_env, make_seat, seed
        self.env: LeagueEnv | None = None

    def play(self, home: Contender, away: Contender, games: int, asked: Callable[[], bool] = never) -> list[Result]:
        """So many games or a few more, each agent of the game as often, and their results for the first."""
        env = self.env = self.env or LeagueEnv(self.make_env(), 1)
        explorer, copies = Explorer(env, self.seats(env, home, away), self.seed), env.spec.copies
        explorer.begin()
        env.episodes()  # forget what earlier games left unfinished
        ended, quota = [list[Episode]() for _ in range(env.spec.slots)], -(-games // copies)
        while any(len(own) < quota for own in ended):
            if asked():
                raise EvaluationStoppedError
            for episode in explorer.step(Progress()).episodes:
                ended[episode.slot].append(episode)
        return [
            result_of(ended, copy, number, copies, away.parent) for number in range(quota) for copy in range(copies)
        ]

    def seats(self, env: LeagueEnv, *both: Contender) -> list[Seat]:
        """Of each its own side."""
        seats = []
        for side, (player, place) in enumerate(zip(both, places(env.spec, 1, 0), strict=True)):
            seats.append(self.make_seat(player.parent, side, place))
            seats[-1].agent.obey(player.weights)
        return seats

    def frames(self, env: LeagueEnv, home: Contender, away: Contender, games: int) -> Iterator[Any]:
        """What so many games look like, frame by frame: the first player is the first agent, the other all others."""
        explorer = Explorer(env, self.seats(env, home, away), self.seed)
        explorer.begin()
        while games > 0:
            yield env.render()
            games -= sum(episode.slot == 0 for episode in explorer.step(Progress()).episodes)
        yield env.render()

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
