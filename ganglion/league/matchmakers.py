"""Who plays whom next, as kinds of leagues.

Where nobody has been snapshotted yet, a main player plays itself and an exploiter a main player.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from ganglion.config import NonNegative, register
from ganglion.league.matchmaking import Array, pfsp, pick, solve, uniform
from ganglion.league.players import League
from ganglion.league.settings import Dice, LeagueSettings

Weight = Literal["squared", "variance", "linear", "capped"]


def present(league: League, name: str, dice: Dice) -> str:
    """Of those that learn: itself for a main player, a main player for an exploiter."""
    mains = league.named("main")
    return name if name in mains else mains[pick(uniform(len(mains)), dice())]


def weighed(league: League, name: str, among: Sequence[str], weight: str, dice: Dice) -> str:
    return among[pick(pfsp(league.payoff.win_rates(name, among), weight), dice())]


@register("matchmaker", "self")
class SelfPlay(LeagueSettings):
    """Naive self-play: always what is learned now."""

    def opponent(self, league: League, name: str, dice: Dice) -> str:
        return present(league, name, dice)


@register("matchmaker", "uniform")
class Uniform(LeagueSettings):
    """Fictitious self-play: all snapshots equally often."""

    def opponent(self, league: League, name: str, dice: Dice) -> str:
        past = league.past
        return past[pick(uniform(len(past)), dice())] if past else present(league, name, dice)


@register("matchmaker", "pfsp")
class PFSP(LeagueSettings):
    """Snapshots by how often they are beaten."""

    weight: Weight = "squared"

    def opponent(self, league: League, name: str, dice: Dice) -> str:
        past = league.past
        return weighed(league, name, past, self.weight, dice) if past else present(league, name, dice)


@register("matchmaker", "psro")
class PSRO(LeagueSettings):
    """Snapshots by their shares in an equilibrium of the game between them (Lanctot et al. 2017)."""

    measured: int = Field(default=100, ge=1, le=1_000_000)  # they fill the table of that game

    def opponent(self, league: League, name: str, dice: Dice) -> str:
        past = league.past
        if not past:
            return present(league, name, dice)
        return past[pick(solved(league.payoff.margins(past).tobytes(), len(past)), dice())]


@lru_cache(maxsize=8)
def solved(margins: bytes, count: int) -> Array:
    """The shares of an equilibrium; margins between snapshots change only when one is made."""
    return solve(np.frombuffer(margins).reshape(count, count), 2_000)[0]


@register("matchmaker", "league")
class AlphaStar(LeagueSettings):
    """The league of AlphaStar: each role has opponents of its own."""

    weight: Weight = "squared"
    pfsp: NonNegative = 0.5  # shares of the main player's three branches
    self_play: NonNegative = 0.35
    verification: NonNegative = 0.15
    trouble: float = Field(0.2, ge=0, le=1)  # at or below it an exploiter turns to a main player's earlier selves
    exploited: float = Field(0.3, ge=0, le=1)  # below it a main player verifies itself on exploiters' snapshots

    def opponent(self, league: League, name: str, dice: Dice) -> str:
        past, role = league.past, league.players[name].role
        if not past:
            return present(league, name, dice)
        if role == "main":
            return self.for_main(league, name, past, dice)
        if role == "main_exploiter":
            return self.for_main_exploiter(league, name, dice)
        return weighed(league, name, past, self.weight, dice)

    def for_main(self, league: League, name: str, past: Sequence[str], dice: Dice) -> str:
        """Earlier players by PFSP, itself, or those that it has forgotten how to beat."""
        branch = dice() * (self.pfsp + self.self_play + self.verification)
        if branch < self.pfsp:
            return weighed(league, name, past, self.weight, dice)
        if branch >= self.pfsp + self.self_play:
            own = [n for n in past if league.players[n].parent == name]
            exploiters = league.snapshots_of("main_exploiter")
            for among, least in ((exploiters, self.exploited), (own, league.cfg.strong)):
                if among and league.payoff.win_rates(name, among).min() < least:
                    return weighed(league, name, among, self.weight, dice)
        return name

    def for_main_exploiter(self, league: League, name: str, dice: Dice) -> str:
        """A main player, or its earlier selves where that one is too strong to learn from."""
        main = present(league, name, dice)
        own = [n for n in league.past if league.players[n].parent == main]
        if not own or league.payoff.win_rate(name, main) > self.trouble:
            return main
        return weighed(league, name, own, "variance", dice)
