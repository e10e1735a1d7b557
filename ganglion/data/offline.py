"""Learning from a dataset alone, `run.mode: offline`: its rows fill the algorithm's own replay, and updates follow
without a step. The environment is there to be scored in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from ganglion import ops
from ganglion.buffers.limiter import Ready
from ganglion.config import RunConfig, register
from ganglion.config.model import Folded
from ganglion.core import Acted, Buffer, EnvSpec, Faults, LogData, Past, Processor, Progress, Recipe, Row, State, Step
from ganglion.data import files
from ganglion.data.dataset import Dataset, fitted, rows_between
from ganglion.data.load import load_all
from ganglion.errors import UserError
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agents, build_env, build_evaluator
from ganglion.runtime.engine import Engine
from ganglion.runtime.learner import Learner
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer

AT_ONCE = 4_096  # rows that are handed on together


class DatasetSource:
    """The Source of an offline run: hands on the rows of a dataset once, before the first update."""

    def __init__(self, data: Dataset, learner: Learner, processor: Processor) -> None:
        self.data, self.spec, self.learner, self.processor = data, data.spec, learner, processor
        self.loaded = False
        self.mark = files.fingerprint(data.rows)

    @property
    def faults(self) -> Faults:
        return Faults("", 0)

    def step(self, at: Progress) -> LogData:
        """All rows, shaped as the algorithm's processor says."""
        if self.loaded:
            raise UserError(
                f"data.path: {self.data.steps} steps are too few for one item of {self.learner.agent.player}."
            )
        rows, count = self.data.rows, len(self.data.rows.reward)
        for first in range(0, count, AT_ONCE):
            last = min(first + AT_ONCE, count)
            ahead = min(last, count - 1)
            past = Past(self.memory(1), rows.start[ahead : ahead + 1])
            self.learner.push(self.shaped(first, last), (ops.select(rows.obs, ahead), past), at)
        self.loaded = True
        return LogData("collect", at, {})

    def shaped(self, first: int, last: int) -> Row:
        """Some rows, as steps of an environment would have become them."""
        own = rows_between(self.data.rows, first, last)
        later = [min(t + 1, len(self.data.rows.reward) - 1) for t in range(first, last)]
        after = ops.take(self.data.rows, torch.tensor(later))
        none = torch.zeros_like(own.reward)
        before = Step(own.obs, none, torch.zeros_like(own.valid), torch.zeros_like(own.valid), own.valid)
        came = Step(after.obs, own.reward, own.terminated, own.truncated, after.valid)
        past = Past(self.memory(last - first), own.start)
        return self.processor(before, past, Acted(own.action, {}, ()), came)

    def memory(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Nobody remembers what a memory held when rows were collected: it starts empty in each."""
        return tuple(x.expand(rows, *x.shape[1:]).cpu() for x in self.learner.agent.algo.model.initial(1))

    def numbers(self) -> Mapping[str, float]:
        return {}

    def summary(self) -> Mapping[str, str]:
        lost = f", without {len(self.data.skipped)} damaged blocks" if self.data.skipped else ""
        return {"Data": f"{self.data.steps:,} steps in {len(self.data.lengths()):,} episodes{lost}"}

    def close(self) -> None:
        """Nothing is open."""

    def state(self) -> State:
        return State({}, {"loaded": self.loaded, "dataset": self.mark})

    def restore(self, state: State) -> None:
        if state.scalars["dataset"] != self.mark:
            raise UserError("data.path: the dataset is not the one that the run was trained on.")
        self.loaded = bool(state.scalars["loaded"])


@register("mode", "offline")
class OfflineMode:
    """Learns from a dataset; no environment but to be scored in."""

    together: ClassVar[bool] = True

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        torch.set_num_threads(cfg.run.threads)
        data = fitted(load_all(cfg.data.path, cfg.data.damaged == "skip"), environment(cfg))
        made = build_agents(cfg, data.spec, engine)
        agent = made[0][1]
        recipe = cfg.algo.recipe(data.spec)
        learner = Learner(agent, storage(cfg, recipe, data, agent), Ready(), cfg.run.seed)
        source = DatasetSource(data, learner, recipe.processor.build(data.spec, agent.device))
        seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
        return Trainer(source, learner, build_evaluator(cfg, made, cfg.eval.episodes, seed), cfg.train.budget)


def environment(cfg: RunConfig) -> EnvSpec:
    """What the environment says of itself."""
    env = build_env(cfg, 1)
    env.close()
    if env.spec.turns or len(env.spec.agents) > 1:
        raise UserError(f"run.mode: offline learns for one agent, and {env.spec.name} has {len(env.spec.agents)}.")
    return env.spec


def storage(cfg: RunConfig, recipe: Recipe, data: Dataset, agent: Agent) -> Buffer:
    """The algorithm's own replay, as large as the dataset."""
    match recipe.buffer:
        case Folded(own, fold) if "capacity" in type(own).model_fields and not fold.rollouts and not own.rated:
            room = len(data.rows.reward) + fold.reach + 1  # what is pushed last is complete, too
            sized = own.model_copy(update={"capacity": room})
            return replace(recipe.buffer, cfg=sized).build(data.spec, agent.device)
    raise UserError(
        f"algo.kind: {cfg.algo.kind} learns from what it has just done, or needs what it said of it. "
        "Offline: algorithms with a replay of transitions, such as bc, iql, td3_bc, cql, sac, td3, dqn."
    )
