"""The learner of one player of a league, in a process of its own: it learns from the items it is handed, and says what
its weights are by then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from statistics import fmean
from typing import Any, NamedTuple

import torch

from ganglion.config import RunConfig
from ganglion.core import EnvSpec, Origin, Packet, Progress, State, Weights, join, under
from ganglion.faults import Faults
from ganglion.fleet.build import item_rows
from ganglion.fleet.explorer_process import read_brief, tell
from ganglion.fleet.items import expect
from ganglion.fleet.ray_actor import Brief
from ganglion.fleet.receiver import Account, ExplorerLife, Receiver
from ganglion.fleet.remote_explorer import ItemSize
from ganglion.fleet.wire import Bytes, pack_state, pack_weights, unpack_state, unpack_weights
from ganglion.league.build import kinds_of
from ganglion.league.league_env import LeagueEnv, home_spec
from ganglion.league.ray_actors import serve_calls
from ganglion.runtime.build import build_agent, build_engine, build_env, build_learner


class Home(NamedTuple):
    """What a Receiver asks of an environment."""

    spec: EnvSpec
    faults: Faults


class Handed:
    """A fleet whose items are handed over one by one, by whoever calls this process."""

    lockstep = False

    def __init__(self) -> None:
        self.account = Account()
        self.packet: Packet | None = None

    def hand(self, origin: Origin, body: Any) -> None:
        self.account.admit(ExplorerLife(origin.player, origin.explorer, origin.incarnation))
        self.packet = Packet(origin, body)

    def pull(self, timeout: float) -> Packet | None:
        packet, self.packet = self.packet, None
        return packet

    def release(self) -> None:
        """Every item has memory of its own."""

    def publish(self, weights: Weights) -> None:
        """Whoever hands items over is told the weights with the answer."""

    def numbers(self) -> Mapping[str, float]:
        return {}

    def resize(self, explorers: int) -> None:
        """There are as many as there are."""

    def close(self) -> None:
        """It holds nothing."""

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        """It remembers nothing."""


class PlayerLearner:
    """A learning player's agent, its Learner, and the Receiver between items and it."""

    def __init__(self, cfg: RunConfig, name: str) -> None:
        league: Any = cfg.league
        torch.set_num_threads(cfg.run.threads)
        kinds, env = kinds_of(cfg, league), LeagueEnv(build_env(cfg), 1)
        own, spec = kinds.configs[kinds.of[name]], home_spec(env.spec, 1)
        env.close()
        self.agent = build_agent(own, spec, build_engine(own), name)
        self.learner = build_learner(own, self.agent, spec)
        self.first = {key: tensor.clone() for key, tensor in self.agent.state().tensors.items()}  # as it began
        self.rows = item_rows(own, self.learner)
        recipe, self.fleet = own.algo.recipe(spec), Handed()
        expected = expect(self.agent, recipe.processor.build(spec, self.agent.device), spec, ItemSize(self.rows))
        lag = recipe.max_lag if own.fleet.max_lag is None else own.fleet.max_lag
        self.receiver = Receiver(self.learner, self.fleet, Home(spec, Faults("", 0)), lag, expected)  # type: ignore[arg-type]
        self.at = Progress()

    def take(self, origin: Origin, body: Any, fraction: float) -> tuple[dict[str, Any], Bytes | None]:
        """Learns from an item; what came of it, and the weights where they are newer."""
        before, seen = self.at, dict[str, list[float]]()
        self.at = before._replace(fraction=fraction)
        self.fleet.hand(origin, body)
        log = self.receiver.step(self.at)
        self.at = log.at
        lag = log.metrics.get("lag", 0.0)
        while self.learner.owes(self.at):
            log = self.learner.step(self.at)
            self.at = log.at
            for metric, value in log.metrics.items():
                seen.setdefault(metric, []).append(float(value))
        made = self.at.opt_steps - before.opt_steps
        metrics = {metric: fmean(values) for metric, values in seen.items()}
        told = {"made": made, "metrics": metrics, "lag": lag, "account": dict(self.fleet.account.numbers())}
        return told, pack_weights(self.agent.command(self.at)) if made else None

    def begin_anew(self) -> Bytes:
        """The weights, and all that learning has gathered beside rows, as they were at first."""
        for name, part in self.agent.algo.parts().items():
            part.restore(under(State(self.first), name))
        return pack_weights(self.agent.command(self.at))

    def take_over(self, weights: Weights) -> None:
        """The weights that were published last, by a learner that has ended since."""
        for name, part in self.agent.algo.acting().items():
            part.restore(under(State(weights.tensors), name))
        self.at = self.at._replace(opt_steps=max(self.at.opt_steps, weights.version))

    def state(self) -> State:
        parts = {"agent": self.agent.state(), "learner": self.learner.state(), "source": self.receiver.state()}
        return join({**parts, "counters": State({}, {"at": list(self.at)})})

    def restore(self, state: State) -> None:
        self.at = Progress.read(under(state, "counters").scalars["at"])
        self.agent.restore(under(state, "agent"))
        self.receiver.restore(under(state, "source"))
        self.learner.restore(under(state, "learner"))


class LearnerCalls:
    """What the process of a learner is asked."""

    def __init__(self, cfg: RunConfig) -> None:
        self.cfg = cfg
        self.made: PlayerLearner | None = None

    def __call__(self, asked: Mapping[str, Any], body: Any) -> tuple[dict[str, Any], Bytes | None]:
        if asked["do"] == "begin":
            self.made = PlayerLearner(self.cfg, asked["begin"])
            return {"pid": os.getpid(), "rows": self.made.rows}, None
        assert self.made is not None
        match asked["do"]:
            case "take":
                return self.made.take(Origin(*asked["origin"]), bytearray(body), asked["fraction"])
            case "state":
                return {}, pack_state(self.made.state())
            case "begin_anew":
                return {}, self.made.begin_anew()
            case "agent":
                self.made.agent.restore(unpack_state(bytearray(body)))
            case "restore":
                self.made.restore(unpack_state(bytearray(body)))
            case "take_over":
                self.made.take_over(unpack_weights(bytearray(body)))
        return {}, None


def learn(brief: Brief, line: Connection) -> None:
    """The loop of the process."""
    do = LearnerCalls(read_brief(brief))
    tell(line, {})
    serve_calls(line, do)
