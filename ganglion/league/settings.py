"""The settings that every kind of league has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from ganglion.config import AlgoConfig, Config, Count, MatchmakerConfig, NonNegative

if TYPE_CHECKING:
    from ganglion.config import RunConfig
    from ganglion.league.players import League
    from ganglion.runtime.engine import Engine
    from ganglion.runtime.trainer import Trainer

Dice = Callable[[], float]  # numbers in [0, 1)
Role = Literal["main", "main_exploiter", "league_exploiter"]


class LeaguePlayer(Config):
    """A player of a league that learns."""

    shorthand: ClassVar[str] = "role"
    role: Role = "main"
    algo: AlgoConfig | None = None  # None: as `algo` says


class LeagueSettings(MatchmakerConfig):
    """Players that learn against opponents chosen among all that have been in the league. A kind of league extends it
    by `opponent`."""

    players: Mapping[str, LeaguePlayer]
    matches: int = Field(default=4, ge=1, le=256)  # that a player plays at a time, each against one opponent
    games: int = Field(default=64, ge=1, le=1_000_000)  # of a match, after which an opponent is chosen anew
    phase: Count = Field(default=10_000, ge=1)  # games between two looks at whether to snapshot a player
    patience: int = Field(default=2, ge=1, le=1_000_000)  # phases after which it is snapshotted in any case
    strong: float = Field(default=0.7, ge=0, le=1)  # the win rate against all that makes a player trained enough
    mutation: float = Field(default=0.25, ge=0, le=1)  # probability that a league exploiter begins anew then
    decay: float = Field(default=0.99, gt=0, le=1)  # by which each result of a pair makes its older ones count less
    least: NonNegative = 8.0  # games, decayed, without which a win rate is 0.5
    measured: int = Field(default=0, ge=0, le=1_000_000)  # games of each new snapshot against every other one

    @field_validator("players")
    @classmethod
    def _fit(cls, players: Mapping[str, LeaguePlayer]) -> Mapping[str, LeaguePlayer]:
        for name in players:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or re.search(r"-[0-9]+$", name):
                raise ValueError(f"{name[:80]!r} should be letters, digits, _ and -, and not end like a snapshot (-1)")
        if not any(player.role == "main" for player in players.values()):
            raise ValueError("should have one of the role 'main': exploiters have nobody to play")
        return players

    def build(self, cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        """A Trainer that has not begun."""
        if cfg.run.mode == "ray":
            from ganglion.league.build_ray import build_ray_league

            return build_ray_league(cfg, self)
        from ganglion.league.build import build_league  # with torch, which is not needed to read configs

        return build_league(cfg, self, engine)

    def opponent(self, league: League, name: str, dice: Dice) -> str:
        """Whom a learning player plays next."""
        raise NotImplementedError(f"{type(self).__name__} has no opponent")
