"""Acting, rollouts and learning phases of K trainers as one."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import RolloutBuffer, rollout_of
from ganglion.config import RunConfig
from ganglion.core import Episode, Knobs, LogData, Noise, Obs, Past, Progress, Row, State, Step, Update
from ganglion.envs.world import World
from ganglion.nn.stack import joined
from ganglion.runtime.build import STRIDE, build_env
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.joint import Drawn, Joint, Lent
from ganglion.runtime.stints import Stints
from ganglion.runtime.whole import Phase, Strider, Walked


class JointActing:
    """One action of every slot: environments are each trainer's own, all models act in one function."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.explorers = joint.explorers
        self.fast_explore = joint.wrap(joint.template.explore)
        self.draw = [explorer.noise.next for explorer in self.explorers]
        self.noise: list[Any] = [None] * joint.count
        self.given: list[Any] = [None] * joint.count
        for k, (agent, explorer) in enumerate(zip(joint.agents, self.explorers, strict=True)):
            if isinstance(explorer, Stints):
                explorer.most = 1  # all act together, step by step
            agent.fast_explore = lambda *_, k=k: self.given[k]
            setattr(explorer.noise, "next", lambda k=k: self.noise[k])  # noqa: B010

    def collect(self, who: Sequence[int]) -> list[LogData]:
        joint = self.joint
        begun = [explorer.begin() for explorer in self.explorers]
        for k in who:
            self.noise[k] = self.draw[k]()
        noise = ops.stack([own or self.noise[who[0]] for own in self.noise])
        seen = [(joint.template.here(step.obs), past) for step, past in begun]
        with torch.no_grad():
            acted = self.fast_explore(*ops.stack(seen), joint.knobs(), noise)
        self.given[:] = ops.unstack(acted)
        return [self.explorers[k].step(joint.at(k)) for k in who]


class JointWalk:
    """Several steps of every slot in a world of tensors: one function for the slots of all trainers."""

    def __init__(self, joint: Joint, cfg: RunConfig, phases: JointPhases) -> None:
        self.joint, self.phases = joint, phases
        self.explorers = joint.explorers
        envs: list[Any] = [explorer.env for explorer in self.explorers]
        self.world = World(*(joined([getattr(env, name) for env in envs]) for name in World._fields))
        template: Any = build_env(cfg)
        joint.stack.add(vars(template), "root", joined([env.root for env in envs]))
        processor = cfg.algo.recipe(template.spec).processor.build(template.spec, joint.device)
        strider = Strider(joint.template, template, processor, phases.template, cfg.run.seed, 1, lambda fn: fn)
        horizon = phases.template.buffer.room()
        self.drawn = Drawn([explorer.stream for explorer in self.explorers])
        self.now: tuple[Step, Past] | None = None  # of all slots, [K, B, ...]; None: as their explorers know
        self.stride = 1 if cfg.run.fast == "eager" else horizon if joint.mode == "graph" else gcd(horizon, STRIDE)
        turn = joint.stack.all(strider.turn)
        self.turn = joint.traced(turn) if joint.mode == "graph" else turn
        self.fast_walks = {stride: joint.quicken(self.walk) for stride in {1, self.stride}}
        for k, explorer in enumerate(self.explorers):
            setattr(explorer, "state", lambda k=k: self.state_of(k))  # noqa: B010

    def state_of(self, k: int) -> State:
        """Of one explorer, who is told only now where its slots are."""
        explorer = self.explorers[k]
        explorer.now = explorer.now if self.now is None else ops.select(self.now, k)
        return Explorer.state(explorer)

    def collect(self, who: Sequence[int]) -> list[LogData]:
        """As many steps of each as it would take by itself: `stride`, or one."""
        strides = {k: self.stride if self.strides(k) else 1 for k in who}
        logs: dict[int, LogData] = {}
        for stride in sorted(set(strides.values())):
            walking = [k for k in who if strides[k] == stride]
            logs |= zip(walking, self.together(walking, stride), strict=True)
        return [logs[k] for k in who]

    def strides(self, k: int) -> bool:
        swap = self.joint.agents[k].swap
        alone = not isinstance(swap, Lent) or swap.own.on
        return alone and not self.phases.buffers[k].room() % self.stride

    def together(self, who: Sequence[int], stride: int) -> list[LogData]:
        joint, explorers = self.joint, self.explorers
        now = self.now or ops.stack([explorer.begin() for explorer in explorers])
        if stride == 1:
            fresh = {k: explorers[k].noise.next() for k in who}
            noise = ops.stack([fresh.get(k, fresh[who[0]]) for k in range(joint.count)])
        else:
            noise = self.drawn(who, joint.template.draws.explore, stride, explorers[0].env.spec.slots)
        with torch.no_grad():
            walked: Walked = self.fast_walks[stride](self.world, *now, joint.knobs(), noise)
        torch._foreach_copy_(list(self.world), list(joint.chosen(who, walked.world, self.world)))
        self.now = joint.chosen(who, (walked.step, walked.past), now)
        self.phases.push(who, walked.rows, (walked.step.obs, walked.past))
        told = torch.cat([walked.valid[:, None], walked.ended], 1).tolist()
        return [self.log(joint.at(k), *told[k]) for k in who]

    def log(self, at: Progress, valid: float, count: float, total: float, length: float) -> LogData:
        now = Progress(at.env_steps + int(valid), at.opt_steps, at.episodes + int(count))
        ended = (Episode(-1, total / count, length / count, {}, int(count)),) if count else ()
        return LogData("collect", now, {}, ended)

    def walk(self, world: World, before: Step, past: Past, knobs: Knobs, noise: Noise) -> Walked:
        """As `Strider.walk`, of [K, ...]."""
        rows, ended = [], torch.zeros_like(world.total)[:, None].repeat(1, 3, 1)
        for uniform, normal in zip(noise.uniform.split(1, 1), noise.normal.split(1, 1), strict=True):
            row, world, before, past, ended = self.turn(world, before, past, knobs, Noise(uniform, normal), ended)
            rows.append(row)
        whole: Row = ops.concat(rows, 1)
        return Walked(whole, world, before, past, ended.sum(2), whole.valid.sum((1, 2), dtype=torch.float64))


class JointPhases:
    """Learning phases from rollouts: prepared and planned together, each update one function of all."""

    def __init__(self, joint: Joint, cfg: RunConfig) -> None:
        self.joint = joint
        self.learners = [trainer.learner for trainer in joint.trainers]
        self.buffers: list[Any] = [learner.buffer for learner in self.learners]
        what = self.joint.trainers[0].explorer.env.spec, joint.device
        recipe = cfg.algo.recipe(what[0])
        buffer, limiter = recipe.buffer.build(*what), recipe.limiter.build(*what)
        self.template = Phase(joint.template, buffer, limiter, cfg.run.seed, None)
        self.gamma = torch.tensor([own.gamma for own in self.buffers], device=joint.device)
        self.prepare, self.plan = joint.stack.all(self.prepared), joint.stack.all(self.planned)
        self.fast_update = joint.wrap(self.update)
        update = joint.stack.all(self.update)
        self.inner = joint.traced(update) if joint.mode == "graph" else update
        self.fast_phase = joint.quicken(self.phase) if joint.mode == "graph" else None
        self.rows: Row | None = None  # of all, [K, T, B, ...], once there are any
        self.last: tuple[Obs, Past] | None = None  # what follows them, where all were pushed together
        for k, own in enumerate(self.buffers):
            setattr(own, "state", lambda k=k: self.state_of(k))  # noqa: B010
        self.mini: Any = None  # what each learns from, [K, ...]
        self.table: Tensor | None = None
        self.order = torch.arange(joint.count, device=joint.device)
        self.drawn = Drawn([learner.stream for learner in self.learners])
        self.none = torch.empty(0)  # no priorities

    # ------------------------------------------------------------ rows

    def push(self, who: Sequence[int], rows: Row, ahead: tuple[Obs, Past]) -> None:
        """Keeps rows [K, T, B, ...] and what follows them."""
        rings = [buffer.ring for buffer in self.buffers]
        first, count = rings[0].pushed, rows.reward.shape[1]
        together = len(who) == len(rings) and all(ring.pushed == first for ring in rings)
        if self.rows is None or not together:
            self.follow()
            self.last = None
            for k in who:
                self.buffers[k].push(ops.select(rows, k), ops.select(ahead, k), self.joint.at(k))
            return
        kept = [leaf[:, first : first + count] for leaf in ops.leaves(self.rows)]
        torch._foreach_copy_(kept, ops.leaves(rows))
        for ring in rings:
            ring.pushed += count
        if self.buffers[0].ready():
            obs, past = ahead
            self.last = ops.map_tree(lambda x: x.unsqueeze(1), obs), past

    def follow(self) -> None:
        """Tells each buffer what follows its rows."""
        for k, buffer in enumerate(self.buffers if self.last is not None else ()):
            buffer.last = ops.select(self.last, k)

    def state_of(self, k: int) -> State:
        self.follow()
        return RolloutBuffer.state(self.buffers[k])

    def whole(self) -> tuple[Row, Any, Tensor]:
        """The rollouts of all, and what follows them."""
        if self.rows is None:
            self.rows = ops.stack([buffer.rows() for buffer in self.buffers])
            for k, buffer in enumerate(self.buffers):
                buffer.ring.hold(ops.select(self.rows, k))
        if self.last is not None:
            return self.rows, self.last, self.gamma
        known = next(buffer.last for buffer in self.buffers if buffer.last is not None)
        return self.rows, ops.stack([buffer.last or known for buffer in self.buffers]), self.gamma

    # ------------------------------------------------------------ functions of one

    def prepared(self, rows: Row, last: tuple[Obs, Past], gamma: Tensor) -> Any:
        return self.joint.template.algo.prepare(rollout_of(rows, last, gamma))

    def planned(self, noise: Noise) -> Tensor:
        return self.joint.template.algo.plan(self.template.rows, noise)

    def update(self, mini: Any, rows: Tensor, knobs: Knobs) -> Any:
        none = torch.zeros(0, device=rows.device)
        return self.joint.template.update(mini, rows if rows.numel() else (), knobs, Noise(none, none)).metrics

    # ------------------------------------------------------------ a function of all

    def phase(self, rows: Row, last: tuple[Obs, Past], gamma: Tensor, noise: Noise, knobs: Knobs) -> dict[str, Tensor]:
        """As `Phase.phase`, of [K, ...]."""
        with torch.no_grad():
            mini, table = self.prepare(rows, last, gamma), self.plan(noise)
        seen = [self.inner(mini, table[:, i], knobs) for i in range(table.shape[1])]
        return {name: torch.stack([metrics[name] for metrics in seen]).mean(0) for name in seen[0]}

    # ------------------------------------------------------------ learning

    def learn(self, who: Sequence[int]) -> list[LogData]:
        """One update of each; the whole phase in one where it is captured and all are about to begin."""
        joint, learners = self.joint, self.learners
        fresh = [k for k in who if learners[k].mini is None]
        if self.fast_phase is not None and len(fresh) == joint.count and self.template.whole:
            return self.learn_phase()
        if fresh:
            self.begin(fresh)
        assert self.table is not None
        where = torch.tensor([learner.position for learner in learners], device=joint.device)
        rows = self.table[self.order, where] if self.table.numel() else self.table.flatten(1)  # [K, rows each]
        with joint.sparing(who):
            metrics = self.fast_update(self.mini, rows, joint.knobs())
        every = {name: values.unbind() for name, values in metrics.items()}
        self.template.updates = self.table.shape[1]
        self.template.over(Update(metrics, self.none))  # learns whether phases may be taken whole
        return [self.learned(k, {name: values[k] for name, values in every.items()}) for k in who]

    def begin(self, fresh: Sequence[int]) -> None:
        """Prepares the items of those whose phase begins, and plans their minibatches."""
        joint, draw = self.joint, self.joint.template.draws.plan
        with torch.no_grad():
            mini = self.prepare(*self.whole())
            self.template.rows = rows = ops.leaves(mini)[0].shape[2]
            table = self.plan(self.drawn(fresh, draw, rows))
        self.mini = mini if self.mini is None else joint.chosen(fresh, mini, self.mini)
        self.table = table if self.table is None else joint.chosen(fresh, table, self.table)
        for k in range(joint.count):  # of those already learning the same numbers, elsewhere
            learner = self.learners[k]
            if k in fresh or learner.mini is not None:
                learner.hold(ops.select(self.mini, k))
                learner.table = self.table[k] if self.table.numel() else None
                learner.position = 0 if k in fresh else learner.position

    def learned(self, k: int, metrics: dict[str, Tensor]) -> LogData:
        learner, at = self.learners[k], self.joint.at(k)
        update = Update(metrics, self.none)
        learner.agent.swap.look(at)
        learner.position += 1
        if learner.over(update):
            learner.finish()
        return LogData("learn", at._replace(opt_steps=at.opt_steps + 1), metrics)

    def learn_phase(self) -> list[LogData]:
        draw, rows, updates = self.joint.template.draws.plan, self.template.rows, self.template.updates
        noise = self.drawn(range(self.joint.count), draw, rows)
        assert self.fast_phase is not None
        metrics = self.fast_phase(*self.whole(), noise, self.joint.knobs())
        every = [values.unbind() for values in metrics.values()]
        logs = []
        for k, own in enumerate(zip(*every, strict=True)):
            self.learners[k].finish()
            at = self.joint.at(k)
            now = Progress(at.env_steps, at.opt_steps + updates, at.episodes)
            logs.append(LogData("learn", now, dict(zip(metrics, own, strict=True))))
        return logs
