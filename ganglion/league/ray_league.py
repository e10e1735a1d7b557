"""A league on Ray: this process holds the league; each learning player has a learner process of its own, and explorer
processes that play its matches. All of these may die: the league goes on, and every match is accounted for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ganglion.config import RunConfig
from ganglion.config.files import dump, modules
from ganglion.core import EnvSpec, LogData, Progress, State, Weights, join, read_count, under
from ganglion.errors import ClusterLostError, UserError
from ganglion.faults import Faults
from ganglion.fleet.fork_server import join_fork_server, leave_fork_server
from ganglion.fleet.ray_actor import Brief, ProcessDiedError
from ganglion.fleet.ray_cluster import ClusterSettings, join_ray, leave_ray, watch_ray
from ganglion.fleet.ray_fleet import CLOSING, FUTILE, deaths, end_actors, explained
from ganglion.fleet.wire import pack_state, pack_weights, unpack_state
from ganglion.league.games import Games
from ganglion.league.learning_player import Contender, Result
from ganglion.league.match_book import MatchBook
from ganglion.league.members import Members
from ganglion.league.player_explorer import order_of
from ganglion.league.players import League
from ganglion.league.ray_actors import LeagueActor
from ganglion.league.ray_processes import PendingCall, ProcessHandle, RemotePlayerExplorer, RemotePlayerLearner
from ganglion.league.settings import LeagueSettings
from ganglion.league.source import merged, summed
from ganglion.processes import importable
from ganglion.runtime.agent import Agent

log = logging.getLogger(__name__)
PATIENCE = 0.5  # seconds that one step waits for news


def site(cfg: RunConfig, players: int) -> ClusterSettings:
    return ClusterSettings(cfg.fleet.address, cfg.fleet.host, cfg.fleet.explorers + players)


class RayLeague:
    """The Source of a league whose explorers and learners are processes elsewhere."""

    def __init__(
        self, cfg: RunConfig, league: LeagueSettings, agents: Sequence[Agent], spec: EnvSpec, faults: Faults,
        games: Games,
    ) -> None:  # fmt: skip
        """`spec`: of one explorer's world."""
        self.spec, self.faults, self.games, self.book = spec, faults, games, MatchBook()
        self.learners = [RemotePlayerLearner(agent, spec.copies, self.learner_state) for agent in agents]
        self.names: Sequence[str] = [learner.player for learner in self.learners]
        self.members = Members(league, cfg.run.seed, games, lambda name, at: self.learner(name).weights)
        count, players = cfg.fleet.explorers, len(self.names)
        self.explorers = [RemotePlayerExplorer(self.names[k % players], k, league.matches) for k in range(count)]
        self.begun, self.turn, self.items_lost = False, 0, 0
        self.fork_server = None if cfg.fleet.address else join_fork_server()
        self.ray, self.own = join_ray(site(cfg, players))
        self.talk = watch_ray(self.ray)
        socket = str(self.fork_server.path) if self.fork_server else ""
        self.brief = Brief(dump(cfg), modules(cfg), importable(), 0, ("none", 0), "", "", 0, socket)
        cpus = 1 if cfg.fleet.address else 0  # elsewhere Ray spreads them over machines
        options = {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self.kind = self.ray.remote(**options)(LeagueActor)

    @property
    def league(self) -> League:
        return self.members.league

    @property
    def frozen(self) -> dict[str, Weights]:
        return self.members.frozen

    def contender(self, name: str, at: Progress | None = None) -> Contender:
        return self.members.contender(name, at)

    def learner(self, name: str) -> RemotePlayerLearner:
        return self.learners[self.names.index(name)]

    # ------------------------------------------------------------ as a Source

    def step(self, at: Progress) -> LogData:
        """The next news: an explorer's results with its item, or what a learner has made of one."""
        return self.talk(lambda: self.news(at))

    def news(self, at: Progress) -> LogData:
        if not self.begun:
            self.begun = True
            for learner in self.learners:
                self.start_learner(learner, died=False)
        places = [place for place in (*self.learners, *self.explorers) if place.calls]
        self.turn = (self.turn + 1) % len(places)
        waiting = {place.calls[0].told: place for place in places[self.turn :] + places[: self.turn]}  # equal turns
        ready, _ = self.ray.wait(list(waiting), num_returns=1, timeout=PATIENCE)
        found = self.heard(waiting[ready[0]], at) if ready else None
        return found or LogData("collect", at, {})

    def heard(self, place: ProcessHandle, at: Progress) -> LogData | None:
        """What the first call of a place brought."""
        call = place.calls[0]
        try:
            told = self.ray.get(call.told)
        except deaths(self.ray) as error:
            self.talk.look()
            self.replace(place, error)
            return None
        except self.ray.exceptions.RayTaskError as error:
            if type(error.cause) is not ProcessDiedError:  # its own code failed
                raise explained(error, f"a process of {place.player}") from error
            self.replace(place, error.cause)
            return None
        place.calls.pop(0)
        return self.taken(place, call, told, at)

    def taken(self, place: Any, call: PendingCall, told: Mapping[str, Any], at: Progress) -> LogData | None:
        match call.what:
            case "collect":
                return self.collected(place, call, told, at)
            case "take":
                return self.learned(place, call, told, at)
            case "begin":
                place.pid = told["pid"]
                place.rows = told["rows"]
                self.go_on(place.player)
            case "explore":
                place.pid = told["pid"]
                self.go_on(place.player)
            case "begin_anew" | "weights":
                place.take(self.ray.get(call.body))
        return None

    def collected(
        self, explorer: RemotePlayerExplorer, call: PendingCall, told: Mapping[str, Any], at: Progress
    ) -> LogData:
        """Results are counted, the item goes to the learner, and the explorer plays on."""
        player, found, explorer.futile = explorer.player, list[Result](), 0
        for label, *numbers in told["results"]:
            opponent = self.book.report(label)
            if opponent is not None:
                found.append(Result(opponent, *numbers))
        for index, label in told["over"]:
            self.book.finish(label)
            explorer.free.append(index)
        self.faults.add(told["failures"])
        self.members.report(player, found)
        learner = self.learner(player)
        learner.ask("take", {"origin": told["origin"], "fraction": at.fraction}, call.body)
        if self.league.due(player) and self.members.snapshot(player, learner.weights):
            learner.ask("begin_anew", {})
        self.go_on(player)
        now = at._replace(env_steps=at.env_steps + told["steps"], episodes=at.episodes + len(found))
        return LogData("collect", now, {}, (summed(player, found),) if found else ())

    def learned(
        self, learner: RemotePlayerLearner, call: PendingCall, told: Mapping[str, Any], at: Progress
    ) -> LogData:
        """Newer weights, and what was learned."""
        learner.futile, learner.account = 0, told["account"]
        if told["made"]:
            learner.take(self.ray.get(call.body))
        self.go_on(learner.player)
        metrics = {f"{learner.player}/{name}": value for name, value in told["metrics"].items()}
        metrics[f"{learner.player}/lag"] = told["lag"]
        return LogData("learn", at._replace(opt_steps=at.opt_steps + told["made"]), metrics)

    # ------------------------------------------------------------ processes

    def go_on(self, player: str) -> None:
        """Asks the explorers of a player that wait for the next item, unless its learner has enough before it."""
        learner = self.learner(player)
        for explorer in self.explorers:
            if explorer.player != player or learner.full:
                continue
            if explorer.actor is None:
                self.start_explorer(explorer)
            elif explorer.ready:
                self.play_on(explorer, learner)

    def play_on(self, explorer: RemotePlayerExplorer, learner: RemotePlayerLearner) -> None:
        matches = []
        for index in explorer.free:
            name = self.members.opponent(explorer.player)
            label = self.book.begin(explorer.player, name, explorer.number, index)
            matches.append((index, label, self.members.cfg.games, self.contender(name)))
        own = learner.weights if learner.published > explorer.published else None
        explorer.free, explorer.published = [], learner.published
        explorer.ask("collect", {}, order_of(own, matches))

    def start_explorer(self, explorer: RemotePlayerExplorer) -> None:
        explorer.incarnation += 1
        explorer.free, explorer.published = list(range(explorer.matches)), -1
        explorer.actor = self.kind.remote(list(self.brief), explorer.role)
        place = [explorer.player, self.learner(explorer.player).rows, explorer.number, explorer.incarnation]
        explorer.ask("explore", {"begin": place})

    def start_learner(self, learner: RemotePlayerLearner, died: bool) -> None:
        """A learner process: as it was saved last, with the weights that were published last."""
        learner.actor = self.kind.remote(list(self.brief), learner.role)
        learner.ask("begin", {"begin": learner.player})
        if learner.kept is not None:
            learner.ask("restore", {}, pack_state(learner.kept))
        elif not died:  # what it begins with may be of another run
            learner.weights = learner.agent.command(Progress())
            learner.ask("agent", {}, pack_state(learner.agent.state()))
        if died:
            learner.ask("take_over", {}, pack_weights(learner.weights))

    def replace(self, place: Any, error: Exception) -> None:
        """Another process for a place whose process has died; what it had under way is lost, and counted."""
        place.deaths, place.futile = place.deaths + 1, place.futile + 1
        who = "learner" if place.role == RemotePlayerLearner.role else "explorer"
        log.warning("%s of %s ended (process %d): started anew", who, place.player, place.pid)
        if place.futile >= FUTILE:
            why = str(error).strip().splitlines()[-1][:300]
            raise UserError(f"run.mode: {who} of {place.player} died {FUTILE} times before it brought anything. {why}")
        end_actors(self.ray, [place.actor])
        lost, place.calls = place.calls, []
        if who == "explorer":
            self.book.lose(place.number)
            self.start_explorer(place)
        else:
            self.items_lost += sum(call.what == "take" for call in lost)
            self.start_learner(place, died=True)
            if any(call.what == "begin_anew" for call in lost):
                place.ask("begin_anew", {})

    def learner_state(self, learner: RemotePlayerLearner) -> State:
        """All that a learner is, after what it has been asked so far; as it was saved last where it has just died."""
        if not self.begun:
            return learner.kept or State()
        try:
            return self.talk(lambda: self.fetched(learner))
        except ClusterLostError:
            return learner.kept or State()

    def fetched(self, learner: RemotePlayerLearner) -> State:
        call = learner.ask("state", {})
        learner.calls.pop()
        try:
            return unpack_state(self.ray.get(call.body))
        except (*deaths(self.ray), self.ray.exceptions.RayTaskError):
            return learner.kept or State()

    # ------------------------------------------------------------ the rest of a Source

    def numbers(self) -> Mapping[str, float]:
        counts: dict[str, float] = {"league/items_lost": float(self.items_lost)}
        counts["league/explorers_restarted"] = float(sum(place.deaths for place in self.explorers))
        counts["league/learners_restarted"] = float(sum(place.deaths for place in self.learners))
        for learner in self.learners:
            for name, value in learner.account.items():
                counts[name] = counts.get(name, 0.0) + value
        return {**self.members.numbers(self.names), **self.book.numbers(), **counts, **self.faults.numbers()}

    def summary(self) -> Mapping[str, str]:
        return {**self.members.summary(), "Matches": self.book.line()}

    def close(self) -> None:
        """Ends all processes, and Ray where it was started here."""
        actors = [place.actor for place in (*self.learners, *self.explorers) if place.actor is not None]
        with suppress(ClusterLostError):
            self.talk(lambda: end_actors(self.ray, actors), CLOSING)
        if self.fork_server is not None:
            leave_fork_server(self.fork_server)
        self.talk.close(leave_ray if self.own else lambda: None, CLOSING)
        self.games.close()

    def state(self) -> State:
        counts = {"lives": [explorer.incarnation for explorer in self.explorers], "items_lost": self.items_lost}
        return merged(join({"matches": self.book.state(), "processes": State({}, counts)}), self.members.state())

    def restore(self, state: State) -> None:
        self.members.restore(state)
        self.book.restore(under(state, "matches"))
        counts = under(state, "processes").scalars
        self.items_lost = read_count(counts["items_lost"])
        for explorer, life in zip(self.explorers, counts["lives"], strict=False):
            explorer.incarnation = read_count(life + 1) - 1
