"""The players of a league (Vinyals et al. 2019): three kinds that learn, and what they were at earlier times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ganglion.core import Json, State, read_count
from ganglion.league.matchmaking import pfsp, pick, solve, uniform
from ganglion.league.payoff import Payoff

Role = Literal["main", "main_exploiter", "league_exploiter", "historical"]
ROLES: tuple[Role, ...] = ("main", "main_exploiter", "league_exploiter", "historical")
Matchmaker = Literal["league", "pfsp", "uniform", "self", "psro"]
Dice = Callable[[], float]  # numbers in [0, 1)


@dataclass(frozen=True)
class Rules:
    """How opponents are chosen, and when a player is snapshotted."""

    matchmaker: Matchmaker = "league"
    weight: str = "squared"
    pfsp: float = 0.5  # shares of the main player's three branches
    self_play: float = 0.35
    verification: float = 0.15
    strong: float = 0.7  # the win rate against all that makes a player trained enough, and its earlier selves beaten
    trouble: float = 0.2  # below it a main exploiter turns from a main player to its earlier selves
    exploited: float = 0.3  # a main player verifies itself on exploiters' snapshots where one is beaten less often
    phase: int = 10_000  # games between two looks at whether to snapshot
    mutation: float = 0.25  # the probability that a league exploiter is reset after a snapshot


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


@dataclass
class League:
    """Who is in the league, what is known of them, and whom each learner plays next."""

    rules: Rules = field(default_factory=Rules)
    payoff: Payoff = field(default_factory=Payoff)
    players: dict[str, Standing] = field(default_factory=dict)
    games: int = 0

    def enter(self, name: str, role: Role, parent: str = "") -> None:
        self.payoff.add(name)
        self.players[name] = Standing(name, role, parent, self.games)

    def named(self, *roles: Role) -> list[str]:
        return [name for name, player in self.players.items() if player.role in roles]

    # ------------------------------------------------------------ matchmaking

    def opponent(self, name: str, dice: Dice) -> str:
        """Whom a learner plays next; itself is its own opponent in self-play."""
        rules, past = self.rules, self.named("historical")
        if rules.matchmaker == "self" or not past:
            return self.present(name, dice)
        if rules.matchmaker == "uniform":
            return past[pick(uniform(len(past)), dice())]
        if rules.matchmaker == "pfsp":
            return self.weighed(name, past, dice)
        if rules.matchmaker == "psro":
            return self.by_equilibrium(past, dice)
        branch = {"main": self.for_main, "main_exploiter": self.for_main_exploiter}.get(self.players[name].role)
        return self.weighed(name, past, dice) if branch is None else branch(name, past, dice)

    def present(self, name: str, dice: Dice) -> str:
        """Of those that learn: itself for a main player, a main player for an exploiter."""
        mains = self.named("main")
        return name if self.players[name].role == "main" or not mains else mains[pick(uniform(len(mains)), dice())]

    def weighed(self, name: str, among: Sequence[str], dice: Dice) -> str:
        return among[pick(pfsp(self.payoff.win_rates(name, among), self.rules.weight), dice())]

    def by_equilibrium(self, past: Sequence[str], dice: Dice) -> str:
        """A snapshot by its share in an equilibrium of the game between snapshots (Lanctot et al. 2017)."""
        rates = np.stack([self.payoff.win_rates(each, past) for each in past]) - 0.5
        return past[pick(solve(rates, 2_000)[0], dice())]

    def for_main(self, name: str, past: Sequence[str], dice: Dice) -> str:
        """Earlier players by PFSP, itself, or those that it has forgotten how to beat."""
        rules, branch = self.rules, dice()
        total = rules.pfsp + rules.self_play + rules.verification
        if branch < rules.pfsp / total:
            return self.weighed(name, past, dice)
        if branch < (rules.pfsp + rules.self_play) / total:
            return name
        exploiters = [n for n in past if self.players[self.players[n].parent].role == "main_exploiter"]
        own = [n for n in past if self.players[n].parent == name]
        for among, least in ((exploiters, rules.exploited), (own, rules.strong)):
            if among and self.payoff.win_rates(name, among).min() < least:
                return self.weighed(name, among, dice)
        return name

    def for_main_exploiter(self, name: str, past: Sequence[str], dice: Dice) -> str:
        """A main player, or its earlier selves where that one is too strong to learn from."""
        main = self.present(name, dice)
        own = [n for n in past if self.players[n].parent == main]
        if not own or self.payoff.win_rate(name, main) > self.rules.trouble:
            return main
        return own[pick(pfsp(self.payoff.win_rates(name, own), "variance"), dice())]

    # ------------------------------------------------------------ results

    def report(self, name: str, opponent: str, score: float) -> None:
        """A game of a learner: 1 won, 0.5 drawn, 0 lost."""
        self.games += 1
        self.payoff.report(name, opponent, score)
        self.players[name] = replace(self.players[name], games=self.players[name].games + 1)

    def due(self, name: str) -> bool:
        """Whether a phase of games is over, and the player trained enough for a snapshot: after one phase where it
        beats all that it plays or has no snapshot yet, after two in any case."""
        player = self.players[name]
        phases = player.games // self.rules.phase
        if not player.learns or phases <= player.phases:
            return False
        past = self.named("main") if player.role == "main_exploiter" else self.named("historical")
        strong = bool(past) and bool((self.payoff.win_rates(name, past) > self.rules.strong).all())
        return strong or phases >= player.phases + 2 or not player.snapshots

    def snapshot(self, name: str, dice: Dice) -> tuple[str, bool]:
        """The name of the new historical player, and whether its parent is to begin anew (mutation): a main player
        never does, a main exploiter always, a league exploiter at times."""
        player = self.players[name]
        made = f"{name}-{player.snapshots + 1}"
        self.enter(made, "historical", name)
        again = {"main": 0.0, "main_exploiter": 1.0}.get(player.role, self.rules.mutation)
        reset = dice() < again
        after = replace(player, snapshots=player.snapshots + 1, phases=player.games // self.rules.phase)
        if reset:
            self.payoff.forget(name)
            after = replace(after, games=0, phases=0, resets=player.resets + 1)
        self.players[name] = after
        return made, reset

    # ------------------------------------------------------------ state

    def state(self) -> State:
        rows: Json = [
            [p.name, p.role, p.parent, p.born, p.games, p.phases, p.snapshots, p.resets] for p in self.players.values()
        ]
        return State({}, {"players": rows, "count": self.games, **self.payoff.state().scalars})

    def restore(self, state: State) -> None:
        self.players = {}
        for name, role, parent, *counts in state.scalars["players"]:
            if role not in ROLES:
                raise ValueError(f"{str(role)[:40]!r} is no role. Accepted: {', '.join(ROLES)}.")
            self.players[str(name)] = Standing(str(name), role, str(parent), *map(read_count, counts))
        self.games = read_count(state.scalars["count"])
        self.payoff.restore(state)
        if self.payoff.names != list(self.players):
            raise ValueError("the payoff is of other players than the league")
