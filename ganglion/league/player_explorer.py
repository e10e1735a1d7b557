"""An explorer of one learning player of a league, in a process of its own: it plays the matches that it is given, and
brings rows and results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from ganglion.config import RunConfig
from ganglion.core import Origin, Progress, State, Weights, under
from ganglion.fleet.explorer_process import read_brief, tell
from ganglion.fleet.ray_actor import Brief
from ganglion.fleet.remote_explorer import ExplorerPlace, ItemSize, Sender, away, lighten
from ganglion.fleet.wire import Bytes, pack, unpack
from ganglion.league.build import build_opponents, build_seat, kinds_of
from ganglion.league.league_env import LeagueEnv, home_spec, places
from ganglion.league.learning_player import Contender, LearningPlayer, Match, Result
from ganglion.league.ray_actors import serve_calls
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agent, build_engine, build_env
from ganglion.runtime.explorer import Explorer, Nowhere

OWN = "own"  # the prefix of the player's own weights in an order
NOBODY = Match("", -1, 0)


class PlayerExplorer:
    """The world of one learning player: it plays every agent in turn, its opponents the others."""

    def __init__(self, cfg: RunConfig, player: str, rows: int, place: ExplorerPlace) -> None:
        league: Any = cfg.league
        self.cfg = away(cfg)
        kinds, engine, seed = kinds_of(self.cfg, league), build_engine(self.cfg), place.seed(cfg.run.seed)
        env = LeagueEnv(build_env(self.cfg), 1)
        home, own = home_spec(env.spec, 1), kinds.configs[kinds.of[player]]
        here, there = places(env.spec, 1, 0)
        agent = build_agent(own, home, engine, player)
        agent.algo.share = place.explorer, max(cfg.fleet.explorers, place.explorer + 1)
        self.sender = Sender(ItemSize(rows), Origin(player, *place, sequence=0, version=-1))
        opponents = build_opponents(league.matches, kinds, home, there.stop - there.start, engine)
        own = own.model_copy(update={"run": own.run.model_copy(update={"seed": seed})})
        seats = [
            build_seat(own, agent, self.sender, home, here),
            build_seat(own, Agent(opponents, engine, f"{player}:opponents"), Nowhere(), home, there),
        ]
        self.player = LearningPlayer(agent, seats[1], opponents, kinds.of, home.slots)
        lighten(agent)
        self.player.matches = [NOBODY] * league.matches
        self.explorer, self.version = Explorer(env, seats, seed), -1
        self.waiting: dict[int, tuple[str, int, Contender]] = {}  # matches for which no algorithm is free yet

    def collect(self, order: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Bytes]:
        """Plays until there is an item: what came of it, and the rows."""
        self.take(order, State(tensors))
        found, steps = list[Result](), 0
        while not self.sender.full:
            for index in list(self.waiting):
                self.start(index)
            playing, first = self.playing(), self.sender.empty
            log = self.explorer.step(Progress())
            steps += log.at.env_steps
            found += self.player.results(log.episodes, playing, 0)
            if first:
                self.sender.origin = self.sender.origin._replace(version=self.version)
        parcel, origin = self.sender.seal([], {"seconds": 0.0})
        return self.told(origin, found, steps), parcel

    def playing(self) -> list[int]:
        dead = ~self.explorer.begin().valid
        return self.player.playing(self.player.away.own(dead).to(self.player.agent.device))

    def take(self, order: Mapping[str, Any], state: State) -> None:
        """Newer weights, and matches in place of those that are over."""
        if order["own"] is not None:
            version, knobs = order["own"]
            self.player.agent.obey(Weights(version, knobs, under(state, OWN).tensors))
            self.version = version
        for index, label, games, parent, knobs in order["matches"]:
            weights = Weights(0, knobs, under(state, f"match-{index}").tensors)
            self.waiting[index] = label, games, Contender(parent, weights)
            self.start(index)

    def start(self, index: int) -> None:
        """Begins a match that waits, where an algorithm is free."""
        label, games, contender = self.waiting[index]
        if self.player.start(index, label, contender, games, self.playing()):
            del self.waiting[index]

    def told(self, origin: Origin, found: Sequence[Result], steps: int) -> dict[str, Any]:
        faults = self.explorer.faults
        failures, faults.fresh, faults.logged = faults.fresh, [], []
        over = [
            [k, match.opponent]
            for k, match in enumerate(self.player.matches)
            if match.left <= 0 and match.index >= 0 and k not in self.waiting
        ]
        results = [list(result) for result in found]
        return {"origin": list(origin), "results": results, "over": over, "steps": steps, "failures": failures}


class ExplorerCalls:
    """What the process of an explorer is asked."""

    def __init__(self, cfg: RunConfig) -> None:
        self.cfg = cfg
        self.made: PlayerExplorer | None = None

    def __call__(self, asked: Mapping[str, Any], body: Any) -> tuple[dict[str, Any], Bytes | None]:
        if asked["do"] == "explore":
            player, rows, *place = asked["begin"]
            self.made = PlayerExplorer(self.cfg, player, rows, ExplorerPlace(*place))
            return {"pid": os.getpid()}, None
        assert self.made is not None
        return self.made.collect(*unpack(body))


def explore(brief: Brief, line: Connection) -> None:
    """The loop of the process."""
    do = ExplorerCalls(read_brief(brief))
    tell(line, {})
    serve_calls(line, do)


def order_of(own: Weights | None, matches: Sequence[tuple[int, str, int, Contender]]) -> Bytes:
    """What an explorer is told before it collects: weights of its player, where they are newer; and new matches."""
    tensors: dict[str, Tensor] = {f"{OWN}/{name}": x for name, x in own.tensors.items()} if own else {}
    rows = []
    for index, label, games, (parent, weights) in matches:
        tensors |= {f"match-{index}/{name}": x for name, x in weights.tensors.items()}
        rows.append([index, label, games, parent, dict(weights.knobs)])
    return pack({"own": [own.version, dict(own.knobs)] if own else None, "matches": rows}, tensors)
