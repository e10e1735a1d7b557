"""Whole rollouts and whole learning phases as one event each: for worlds made of tensors, where a step costs less than
its bookkeeping. On a GPU each is one captured graph; on a CPU a few steps are one compiled graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import (
    Acted,
    Buffer,
    Draw,
    Episode,
    Knobs,
    Limiter,
    LogData,
    Noise,
    Past,
    Processor,
    Progress,
    Row,
    Step,
    Update,
)  # fmt: skip
from ganglion.envs.world import TorchEnv, World
from ganglion.fast import Wrap
from ganglion.runtime.agent import Agent, enter
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.learner import Learner


class Walked(NamedTuple):
    """What several steps of all slots left: their rows, where the slots are now, and the episodes that ended."""

    rows: Row  # [T, B, ...]
    world: World
    step: Step
    past: Past
    ended: Tensor  # [3]: how many, and the sums of their totals and lengths
    valid: Tensor  # [] rows that count as steps


class Strider(Explorer):
    """An Explorer that takes `stride` steps at once, in a world made of tensors and into a rollout."""

    env: TorchEnv
    sink: Phase

    def __init__(
        self, agent: Agent, env: TorchEnv, processor: Processor, sink: Phase, seed: int, stride: int, wrap: Wrap,
        wrap_turn: Wrap | None = None,
    ) -> None:  # fmt: skip
        super().__init__(agent, env, processor, sink, seed)
        self.stride = stride
        self.fast_walk, self.fast_turn = wrap(self.walk), wrap_turn(self.turn) if wrap_turn else self.turn

    def step(self, at: Progress) -> LogData:
        """`stride` actions of every slot; one where the fast form is not on, or would not end with the rollout."""
        if not self.agent.swap.on or self.sink.buffer.room() % self.stride:
            return super().step(at)
        before, past = self.begin()
        noise = self.noise.stretch(self.stride)
        with torch.no_grad():
            walked: Walked = self.fast_walk(self.env.now(), before, past, self.agent.knobs(at), noise)
        self.env.keep(walked.world)
        self.now = walked.step, walked.past
        self.sink.push(walked.rows, (walked.step.obs, walked.past), at)
        valid, count, total, length = torch.cat([walked.valid[None], walked.ended]).tolist()
        episodes = at.episodes + int(count)
        now = at._replace(env_steps=at.env_steps + int(valid), episodes=episodes)
        ended = (Episode(-1, total / count, length / count, {}, int(count)),) if count else ()
        return LogData("collect", now, {}, ended)

    def walk(self, world: World, before: Step, past: Past, knobs: Knobs, noise: Noise) -> Walked:
        """Several steps as one function of tensors."""
        rows, ended = [], torch.zeros_like(world.total).repeat(3, 1)
        for uniform, normal in zip(noise.uniform.split(1), noise.normal.split(1), strict=True):
            row, world, after, past, ended = self.fast_turn(world, before, past, knobs, Noise(uniform, normal), ended)
            rows.append(row)
            before = after
        whole: Row = ops.concat(rows)
        return Walked(whole, world, before, past, ended.sum(1), whole.valid.sum(dtype=torch.float64))

    def turn(
        self, world: World, before: Step, past: Past, knobs: Knobs, noise: Noise, ended: Tensor
    ) -> tuple[Row, World, Step, Past, Tensor]:
        """One step."""
        acted: Acted = self.agent.explore(before.obs, past, knobs, noise)
        world, after = self.env.turn(world, acted.action)
        told = Acted(enter(acted.action), enter(acted.extras), acted.memory)
        row = self.processor(enter(before), past, told, enter(after))
        score = torch.stack((torch.ones_like(world.total), world.total, world.length.to(world.total.dtype)))
        ended = ended + score.masked_fill(~world.ended, 0.0)  # [3, B]
        return row, world, after, Past(acted.memory, ~before.valid[None]), ended


class Phase(Learner):
    """A Learner whose learning phase is one event: prepared, planned and learned from in one function."""

    def __init__(
        self, agent: Agent, buffer: Buffer, limiter: Limiter, seed: int, wrap: Wrap | None,
        wrap_update: Wrap | None = None,
    ) -> None:  # fmt: skip
        super().__init__(agent, buffer, limiter, seed)
        self.fast_phase = wrap and wrap(self.phase)  # None: update by update
        self.fast_update = wrap_update(agent.update) if wrap_update else agent.update
        self.rows = self.updates = 0  # of a phase, known after the first, which is made update by update
        self.whole = False

    def step(self, at: Progress) -> LogData:
        """All updates of an item; one where a phase had begun without it, or may end early."""
        if self.fast_phase is None or self.mini is not None or not self.whole or not self.agent.swap.on:
            return super().step(at)
        item = self.buffer.take(torch.empty(0), at)
        noise = self.stream.noise(self.agent.draws.plan, self.rows)
        metrics = self.fast_phase(item, noise, self.agent.knobs(at))
        self.finish()
        return LogData("learn", at._replace(opt_steps=at.opt_steps + self.updates), metrics)

    def begin(self, at: Progress) -> None:
        super().begin(at)
        self.rows = ops.leaves(self.mini)[0].shape[1]
        self.updates = 0 if self.table is None else len(self.table)

    def over(self, update: Update) -> bool:
        algo = self.agent.algo
        alone = algo.draws().learn == Draw() and not algo.sync_every and not algo.late_every
        self.whole = self.updates > 0 and alone and algo.enough(update) is None
        return super().over(update)

    def phase(self, item: Any, noise: Noise, knobs: Knobs) -> dict[str, Tensor]:
        """The updates of one item; the averages of their metrics."""
        algo = self.agent.algo
        mini, none = algo.prepare(item), Noise(noise.uniform[:0], noise.normal[:0])
        seen: dict[str, list[Tensor]] = {}
        for rows in algo.plan(self.rows, noise).unbind():
            for name, value in self.fast_update(mini, rows, knobs, none).metrics.items():
                seen.setdefault(name, []).append(value)
        return {name: torch.stack(values).mean() for name, values in seen.items()}
