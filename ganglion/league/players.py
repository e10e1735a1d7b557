"""The players of a league (Vinyals et al. 2019): three kinds that learn, and what they were at earlier times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ganglion.core import Json, State, join, read_count, under
from ganglion.league.payoff import Payoff
from ganglion.league.ratings import Ratings
from ganglion.league.settings import Dice, LeagueSettings

Role = Literal["main", "main_exploiter", "league_exploiter", "historical"]


@dataclass(frozen=True)
class Standing:
    """A player of the league."""

    name: str
    role: Role
    parent: str = ""  # of a historical one: whose snapshot it is
    born: int = 0  # the league's games when it came
    games: int = 0  # as a learner, since it began or was reset
    phases: int = 0  # since the last snapshot
    snapshots: int = 0
    resets: int = 0

    @property
    def learns(self) -> bool:
        return self.role != "historical"


class League:
    """Who is in the league, what is known of them, and when a player is snapshotted."""

    def __init__(self, cfg: LeagueSettings) -> None:
        self.cfg, self.payoff, self.ratings = cfg, Payoff(cfg.decay, cfg.least), Ratings()
        self.players: dict[str, Standing] = {}
        self.games = 0
        for name, player in cfg.players.items():
            self.enter(name, player.role)

    def enter(self, name: str, role: Role, parent: str = "") -> None:
        self.payoff.add(name)
        self.ratings.add(name, parent)
        self.players[name] = Standing(name, role, parent, self.games)

    def named(self, *roles: Role) -> list[str]:
        return [name for name, player in self.players.items() if player.role in roles]

    @property
    def past(self) -> list[str]:
        return self.named("historical")

    def snapshots_of(self, *roles: Role) -> list[str]:
        """The snapshots of all players of some roles."""
        return [name for name in self.past if self.players[self.players[name].parent].role in roles]

    # ------------------------------------------------------------ results

    def report(self, name: str, opponent: str, scores: Sequence[float], margins: Sequence[float] = ()) -> None:
        """Games of a learner in their order: 1 won, 0.5 drawn, 0 lost; and by how much."""
        self.games += len(scores)
        self.rate(name, opponent, scores, margins)
        self.players[name] = replace(self.players[name], games=self.players[name].games + len(scores))

    def rate(self, name: str, opponent: str, scores: Sequence[float], margins: Sequence[float] = ()) -> None:
        """What games say of both, whoever they are."""
        self.payoff.report(name, opponent, scores, margins)
        self.ratings.report(name, opponent, scores)

    def due(self, name: str) -> bool:
        """Whether a phase of games is over, and the player trained enough for a snapshot: after one phase where it
        beats all that it plays or has no snapshot yet, after `patience` of them in any case."""
        player = self.players[name]
        phases = player.games // self.cfg.phase
        if not player.learns or phases <= player.phases:
            return False
        past = self.named("main") if player.role == "main_exploiter" else self.past
        strong = bool(past) and bool((self.payoff.win_rates(name, past) > self.cfg.strong).all())
        return strong or phases >= player.phases + self.cfg.patience or not player.snapshots

    def snapshot(self, name: str, dice: Dice) -> tuple[str, bool]:
        """The name of the new historical player, and whether its parent is to begin anew (mutation): a main player
        never does, a main exploiter always, a league exploiter at times."""
        player = self.players[name]
        made = f"{name}-{player.snapshots + 1}"
        self.enter(made, "historical", name)
        again = {"main": 0.0, "main_exploiter": 1.0}.get(player.role, self.cfg.mutation)
        reset = dice() < again
        after = replace(player, snapshots=player.snapshots + 1, phases=player.games // self.cfg.phase)
        if reset:
            self.payoff.forget(name)
            self.ratings.add(name)
            after = replace(after, games=0, phases=0, resets=player.resets + 1)
        self.players[name] = after
        return made, reset

    # ------------------------------------------------------------ state

    def state(self) -> State:
        rows: Json = [
            [p.name, p.role, p.parent, p.born, p.games, p.phases, p.snapshots, p.resets] for p in self.players.values()
        ]
        own = State({}, {"players": rows, "count": self.games})
        return join({"own": own, "payoff": self.payoff.state(), "ratings": self.ratings.state()})

    def restore(self, state: State) -> None:
        own, found = under(state, "own").scalars, {}
        for name, role, parent, *counts in own["players"]:
            if role not in get_args(Role):
                raise ValueError(f"{str(role)[:40]!r} is no role. Accepted: {', '.join(get_args(Role))}.")
            found[str(name)] = Standing(str(name), role, str(parent), *map(read_count, counts))
        self.players, self.games = found, read_count(own["count"])
        self.payoff.restore(under(state, "payoff"))
        self.ratings.restore(under(state, "ratings"))
        if not self.payoff.names == list(self.players) == list(self.ratings.elo):
            raise ValueError("the payoff or the ratings are of other players than the league")
