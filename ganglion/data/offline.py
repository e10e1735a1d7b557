"""Learning from a dataset: alone, `run.mode: offline`, or beside an environment.

Its rows fill the algorithm's own replay, and updates follow. Offline, the environment is there to be scored in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ganglion import ops
from ganglion.buffers import ReplayConfig
from ganglion.buffers.demonstrated import DEMO, TO_GO
from ganglion.buffers.limiter import Ready
from ganglion.buffers.mixed import Mixed
from ganglion.config import RunConfig, register
from ganglion.config.model import Fold, Folded
from ganglion.core import (
    Acted,
    EnvSpec,
    Faults,
    Limiter,
    LogData,
    Past,
    Processor,
    Progress,
    Recipe,
    Row,
    Source,
    State,
    Step,
    join,
    under,
)  # fmt: skip
from ganglion.data import files
from ganglion.data.dataset import returns_to_go, rows_between
from ganglion.data.load import Stored, stored
from ganglion.data.loader import Filled, Loader, StandIn
from ganglion.errors import UserError
from ganglion.faults import close_all
from ganglion.mapped import Mapped
from ganglion.record.tensor_file import digest
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agents, build_env, build_evaluator, build_seat, stride_of
from ganglion.runtime.engine import Engine
from ganglion.runtime.evaluator import Evaluator
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.learner import Learner
from ganglion.runtime.players import Player
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer

AT_ONCE = 4_096  # rows that are handed on together


class DatasetSource:
    """The Source of an offline run: hands on the rows of datasets once, before the first update."""

    def __init__(self, data: Sequence[Stored], learner: Learner, sink: Filled, processor: Processor) -> None:
        """`sink`: where rows go."""
        self.data, self.spec, self.learner, self.sink, self.processor = data, data[0].spec, learner, sink, processor
        self.loaded = False
        self.mark = ""  # of every byte, once they are loaded
        self.steps = self.episodes = 0

    @property
    def faults(self) -> Faults:
        return Faults("", 0)

    def step(self, at: Progress) -> LogData:
        """All rows, shaped as the algorithm's processor says."""
        if self.loaded:
            raise UserError(f"data.path: {self.steps} steps are too few for one item of {self.learner.agent.player}.")
        self.fill(at, new=True)
        return LogData("collect", at, {})

    def fill(self, at: Progress, new: bool) -> None:
        """Block after block; rows that are `new` are seen by normalisers."""
        marks, counts = list[str](), list[int]()
        self.steps = self.episodes = 0
        for data in self.data:
            count = 0
            for rows in data.blocks():
                marks.append(files.fingerprint(rows))
                self.steps += int(rows.valid.sum())
                self.episodes += int(rows.start.sum())
                count += len(rows.reward)
                self.push(rows, at, new)
            counts.append(count)
        self.loaded, self.mark = True, digest(*(mark.encode() for mark in marks))
        if not sum(counts):
            raise UserError(f"data.path: no block of it is whole. The first: {self.data[0].lost[0]}")
        self.sink.loaded(counts)

    def push(self, rows: Row, at: Progress, new: bool) -> None:
        count, to_go = len(rows.reward), returns_to_go(rows)
        for first in range(0, count, AT_ONCE):
            last = min(first + AT_ONCE, count)
            ahead = min(last, count - 1)
            past = Past(self.memory(1), rows.start[ahead : ahead + 1])
            shaped = self.shaped(rows, first, last, to_go)
            if new and self.learner.watches:
                self.learner.agent.observe(ops.to_device(shaped, self.learner.agent.device))
            self.sink.push(shaped, (ops.select(rows.obs, ahead), past), at)

    def shaped(self, rows: Row, first: int, last: int, to_go: torch.Tensor) -> Row:
        """Some rows, as steps of an environment would have become them."""
        own = rows_between(rows, first, last)
        later = [min(t + 1, len(rows.reward) - 1) for t in range(first, last)]
        after = ops.take(rows, torch.tensor(later))
        none = torch.zeros_like(own.reward)
        before = Step(own.obs, none, torch.zeros_like(own.valid), torch.zeros_like(own.valid), own.valid)
        came = Step(after.obs, own.reward, own.terminated, own.truncated, after.valid)
        past = Past(self.memory(last - first), own.start)
        extras = {DEMO: torch.ones_like(own.reward), TO_GO: to_go[first:last].to(own.reward)}
        return self.processor(before, past, Acted(own.action, extras, ()), came)

    def memory(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Nobody remembers what a memory held when rows were collected: it starts empty in each."""
        return tuple(x.expand(rows, *x.shape[1:]).cpu() for x in self.learner.agent.algo.model.initial(1))

    def numbers(self) -> Mapping[str, float]:
        return {}

    def summary(self) -> Mapping[str, str]:
        lost = sum(len(data.lost) for data in self.data)
        without = f", without {lost} damaged blocks" if lost else ""
        return {"Data": f"{self.steps:,} steps in {self.episodes:,} episodes{without}"}

    def close(self) -> None:
        self.sink.close()

    def state(self) -> State:
        return State({}, {"loaded": self.loaded, "dataset": self.mark})

    def restore(self, state: State) -> None:
        """Loads the rows again; the buffers that hold them are restored after."""
        if state.scalars["loaded"]:
            self.fill(Progress(), new=False)
            if state.scalars["dataset"] != self.mark:
                raise UserError("data.path: the dataset is not the one that the run was trained on.")


@register("mode", "offline")
class OfflineMode:
    """Learns from a dataset; no environment but to be scored in."""

    together: ClassVar[bool] = True

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        torch.set_num_threads(cfg.run.threads)
        data = opened(cfg, environment(cfg))
        made = build_agents(cfg, data[0].spec, engine)
        agent = made[0][1]
        recipe = cfg.algo.recipe(data[0].spec)
        kept = storage(cfg, recipe, data, agent)
        learner = Learner(agent, kept, Ready(), cfg.run.seed)
        source = DatasetSource(data, learner, kept, recipe.processor.build(data[0].spec, agent.device))
        return Trainer(source, learner, evaluator(cfg, made), cfg.train.budget)


@register("mode", "with_data")
class WithDataMode:
    """Learns from an environment and a dataset together: `run.mode` local with `data.path`."""

    together: ClassVar[bool] = False

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        torch.set_num_threads(cfg.run.threads)
        env = build_env(cfg)
        alone(env.spec)
        data = opened(cfg, env.spec)
        made = build_agents(cfg, env.spec, engine)
        (player, agent), recipe = made[0], cfg.algo.recipe(env.spec)
        batch = resized(cfg, recipe)[0].batch
        shown = min(max(round(cfg.data.share * batch), 1), batch - 1)
        kept = storage(cfg, recipe, data, agent, shown)
        instead = StandIn(kept.replay, derive(cfg.run.seed, "instead"), agent.device, batch - shown)
        own = Folded(*resized(cfg, recipe, batch=batch - shown)).build(env.spec, agent.device)
        limiter = Pretrained(recipe.limiter.build(env.spec, agent.device), cfg.data.pretrain)
        learner = Learner(agent, Mixed(own, kept, instead), limiter, cfg.run.seed, env.spec.slots)
        seat = build_seat(player, agent, env.spec, learner, cfg.run.seed)
        explorer = Explorer(env, [seat], cfg.run.seed, stride_of(agent.engine, learner))
        replayed = DatasetSource(data, learner, kept, recipe.processor.build(data[0].spec, agent.device))
        return Trainer(Both(replayed, explorer), learner, evaluator(cfg, made), cfg.train.budget)


class Both:
    """A Source of two: a dataset, which comes first, and an environment."""

    def __init__(self, data: DatasetSource, explorer: Source) -> None:
        self.data, self.explorer, self.spec = data, explorer, explorer.spec

    @property
    def faults(self) -> Faults:
        return self.explorer.faults

    def step(self, at: Progress) -> LogData:
        return self.explorer.step(at) if self.data.loaded else self.data.step(at)

    def numbers(self) -> Mapping[str, float]:
        return self.explorer.numbers()

    def summary(self) -> Mapping[str, str]:
        return {**self.data.summary(), **self.explorer.summary()}

    def close(self) -> None:
        close_all([self.data, self.explorer])

    def state(self) -> State:
        return join({"data": self.data.state(), "explorer": self.explorer.state()})

    def restore(self, state: State) -> None:
        self.data.restore(under(state, "data"))
        self.explorer.restore(under(state, "explorer"))


@dataclass(frozen=True)
class Pretrained:
    """Owes some updates before the first step, and then what another limiter says."""

    inner: Limiter
    updates: int

    @property
    def opt_interval(self) -> float:
        return self.inner.opt_interval

    def owes(self, at: Progress, ready: bool) -> bool:
        if at.opt_steps < self.updates:
            return ready
        return self.inner.owes(at._replace(opt_steps=at.opt_steps - self.updates), ready)


# ------------------------------------------------------------ from a config to the parts


def environment(cfg: RunConfig) -> EnvSpec:
    """What the environment says of itself."""
    env = build_env(cfg, 1)
    env.close()
    alone(env.spec)
    return env.spec


def alone(spec: EnvSpec) -> None:
    """Refuses games of several."""
    if spec.turns or len(spec.agents) > 1:
        raise UserError(f"data.path: learning from data is for one agent, and {spec.name} has {len(spec.agents)}.")


def opened(cfg: RunConfig, spec: EnvSpec) -> list[Stored]:
    """The datasets of a run, as rows of its environment: one slot of it."""
    one = replace(spec, slots=1, frame=None)
    return [stored(path, one, cfg.data.damaged == "skip") for path in cfg.data.path]


def evaluator(cfg: RunConfig, made: Sequence[tuple[Player, Agent]]) -> Evaluator:
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    return build_evaluator(cfg, made, cfg.eval.episodes, seed)


def resized(cfg: RunConfig, recipe: Recipe, **sizes: int) -> tuple[ReplayConfig, Fold]:
    """The settings of the algorithm's own replay, of other sizes."""
    match recipe.buffer:
        case Folded(ReplayConfig() as own, fold) if not fold.rollouts and not own.rated:
            return own.model_copy(update=sizes), fold
    raise UserError(
        f"algo.kind: {cfg.algo.kind} learns from what it has just done, or needs what it said of it. "
        "From data learn algorithms with a replay of transitions, such as bc, iql, td3_bc, cql, sac, td3, dqn."
    )


def storage(cfg: RunConfig, recipe: Recipe, data: Sequence[Stored], agent: Agent, batch: int = 0) -> Filled:
    """The algorithm's own replay, as large as the datasets: on the learner's device, in memory, or on the disk."""
    own, fold = resized(cfg, recipe)
    room = sum(each.rows for each in data) + fold.reach + 1  # what is pushed last is complete, too
    own = own.model_copy(update={"capacity": room, "batch": batch or own.batch})
    device = agent.device if cfg.data.store == "device" else torch.device("cpu")
    replay = own.build(data[0].spec, device, fold)
    if cfg.data.store == "disk":
        replay.ring.zeros = Mapped("data.store")
    if (
        type(own) is not ReplayConfig or own.relabel is not None or own.episodes
    ):  # it follows from what was learned, or is changed
        if cfg.data.weights:
            told = f"kind replay, not {own.kind}" if own.relabel is None else "relabel none"
            raise UserError(f"data.weights: needs algo.replay.{told}; only plain rows are drawn by weight.")
        return Filled(replay)
    workers = cfg.data.workers if cfg.data.workers is not None else 0 if cfg.data.store == "device" else 2
    return Loader(replay, cfg.run.seed, agent.device, workers, weights=cfg.data.weights)
