"""Evaluation beside training: an Evaluator in an actor of its own, and the stage that waits for what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from ganglion import ops
from ganglion.config import Every, RunConfig
from ganglion.core import Episode, LogData, Progress, State, Stop
from ganglion.errors import ClusterLostError
from ganglion.fleet.ray_actor import EvaluatorActor, ProcessDiedError
from ganglion.fleet.ray_fleet import CLOSING, RayFleet, deaths, end_actors, explained
from ganglion.fleet.remote_explorer import away, numbers
from ganglion.fleet.wire import pack_weights, unpack_weights
from ganglion.record.stages import Evaluated, Now
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agents, build_env, build_evaluator
from ganglion.runtime.randomness import derive

log = logging.getLogger(__name__)
LOOK = 0.05  # seconds between two looks at an evaluation that is under way


class RemoteEvaluator:
    """Scores weights on a world of its own: the same seeded episodes each time."""

    def __init__(self, cfg: RunConfig) -> None:
        cfg = away(cfg)
        env = build_env(cfg)  # with all its slots: some algorithms refuse fewer than they learn from
        made = build_agents(cfg, env.spec)
        self.agent = made[0][1]
        env.close()
        seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
        self.evaluator = build_evaluator(cfg, made, cfg.eval.episodes, seed)

    def score(self, parcel: Any) -> tuple[list[list[Any]], dict[str, float]]:
        self.agent.obey(unpack_weights(parcel))
        episodes, metrics = self.evaluator.run()
        return [[e.slot, float(e.total), float(e.length), numbers(e.info), e.many] for e in episodes], dict(metrics)


class Evaluation(NamedTuple):
    """An evaluation under way: of which agent, and when it was asked for."""

    call: Any
    parcel: Any
    at: Progress
    agent: State
    sound: bool  # all of it finite


class EvaluatedRemotely(Evaluated):
    """Asks for scores at an interval and passes them on when they come, dated when they were asked for. One is under
    way at a time; what falls due meanwhile is asked for next."""

    def __init__(self, fleet: RayFleet, agent: Agent, every: Every, now: Now, sound: Callable[[], bool]) -> None:
        super().__init__(self.refuse, every, now, sound)
        self.ray, self.talk, self.brief, self.agent = fleet.ray, fleet.talk, fleet.brief, agent
        self.actor: Any = None
        self.asked_for: Evaluation | None = None
        self.looked = 0.0

    def refuse(self) -> tuple[Sequence[Episode], Mapping[str, float]]:
        raise RuntimeError("an evaluation beside training is asked for, not run")

    def before(self) -> Iterator[LogData]:
        now = self.now()
        self.asked |= self.due.due(now) and now.fraction < 1
        if self.asked_for is not None and monotonic() - self.looked > LOOK:
            self.looked = monotonic()
            if self.ready(self.asked_for.call):
                yield self.tell()
        if self.asked and self.asked_for is None:
            self.asked = False
            self.ask()

    def after(self, stop: Stop) -> Iterator[LogData]:
        if self.asked_for is not None and stop.finished:
            yield self.tell()
        if stop.finished and self.due.every.unit != "never" and self.last != self.now().opt_steps:
            self.ask()
            yield self.tell()

    def ask(self) -> None:
        """Sends the agent of now to be scored; a copy stays here, to be saved if it is the best."""
        at, sound = self.now(), self.sound()
        parcel = pack_weights(self.agent.command(at))
        state = self.agent.state()
        kept = state._replace(tensors=ops.map_tree(lambda x: x.clone(), dict(state.tensors)))
        self.asked_for = Evaluation(self.talk(lambda: self.call(parcel)), parcel, at, kept, sound)
        self.last = at.opt_steps

    def call(self, parcel: Any) -> Any:
        if self.actor is None:
            self.actor = self.ray.remote(num_cpus=0)(EvaluatorActor).remote(list(self.brief))
        return self.actor.score.remote(parcel)

    def ready(self, call: Any) -> bool:
        return bool(self.talk(lambda: self.ray.wait([call], timeout=0))[0])

    def tell(self) -> LogData:
        """The score that was asked for; asked once more of another actor where this one has died."""
        assert self.asked_for is not None
        asked, self.asked_for = self.asked_for, None
        try:
            played, metrics = self.talk(lambda: self.ray.get(asked.call), inf)
        except deaths(self.ray, ProcessDiedError) as error:
            self.talk.look()
            log.warning("the evaluator ended: started anew")
            self.actor = self.actor if isinstance(error, ProcessDiedError) else None
            played, metrics = self.talk(lambda: self.ray.get(self.call(asked.parcel)), inf)
        except self.ray.exceptions.RayTaskError as error:
            raise explained(error, "the evaluator") from error
        self.judged = asked
        better = self.improves(metrics["eval/return_mean"], asked.sound)
        episodes = tuple(Episode(*episode) for episode in played)
        return LogData("evaluate", asked.at, {**metrics, "eval/best": float(better)}, episodes)

    def close(self) -> None:
        if self.actor is not None:
            with suppress(ClusterLostError):
                self.talk(lambda: end_actors(self.ray, [self.actor]), CLOSING)
