"""Turns of K trainers as one: their models act in one function, and learn in one.

Everything else stays each trainer's own (streams, slots, rows, limiter, counters): a trainer cannot tell that others
moved at the same time. Where only some of them move, the others are computed as well and left as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Draw, LogData, Noise, Progress, State
from ganglion.errors import UserError
from ganglion.fast import Swap
from ganglion.fast.direct import Fn
from ganglion.nn.stack import Stack
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agent, build_env
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.streams import Stream
from ganglion.runtime.trainer import Trainer


class Joint:
    """K models as one: what they share, and how a function of one becomes a function of all."""

    def __init__(self, template: Agent, trainers: Sequence[Trainer], configs: Sequence[RunConfig]) -> None:
        self.template, self.trainers, self.count = template, trainers, len(trainers)
        self.agents = [trainer.learner.agent for trainer in trainers]
        self.explorers = [explorer for t in trainers if isinstance(explorer := t.explorer, Explorer)]
        self.device = template.device
        for agent in self.agents:
            agent.swap = Lent(agent.swap)
        self.stack = Stack([agent.algo for agent in self.agents], self.template.algo)
        vary(self.stack, self.template, configs)
        self.mode = mode(configs[0], self.device)
        self.held: dict[str, Tensor] = {}
        self.line = torch.empty(0)  # the same numbers as one
        self.values: list[dict[str, float]] = []

    def wrap(self, fn: Fn) -> Fn:
        """A function that reads the template, as one of all K: eager, compiled or captured."""
        return self.quicken(self.stack.all(fn))

    def quicken(self, joint: Fn) -> Fn:
        """A function of [K, ...], in the form that was chosen."""
        if self.mode == "graph":
            from ganglion.fast.capture import Captured

            return Captured(joint)
        return joint if self.mode == "eager" else self.traced(joint)

    def traced(self, joint: Fn) -> Fn:
        """The same as plain operations, compiled unless `auto`: many models share the cost of each."""
        from ganglion.fast.trace import Traced

        return Traced(joint, partial(self.stack.sparing, range(self.count)), plain=self.mode == "auto")

    def sparing(self, who: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, only these of the K learn."""
        idle = [k for k in range(self.count) if k not in who]
        return self.stack.sparing(idle) if idle else nullcontext()

    def knobs(self) -> dict[str, Tensor]:
        """The knobs of each, as tensors [K] that change in place."""
        values = [agent.settings(trainer.at) for agent, trainer in zip(self.agents, self.trainers, strict=True)]
        if values != self.values:
            new = torch.tensor([[own[name] for own in values] for name in values[0]])
            if not self.held:
                self.line = torch.zeros_like(new, device=self.device)
                self.held = dict(zip(values[0], self.line.unbind(), strict=True))
            # from ordinary memory a copy would wait for all that the device has been told before
            self.line.copy_(new if self.device.type == "cpu" else new.pin_memory(), non_blocking=True)
            self.values = values
        return self.held

    def chosen(self, who: Sequence[int], new: Any, old: Any) -> Any:
        """A tree of tensors [K, ...]: new for these of the K, old for the others."""
        if len(who) == self.count:
            return new
        mask = torch.tensor([k in who for k in range(self.count)], device=self.device)
        return ops.map_tree(lambda a, b: torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b), new, old)

    def at(self, k: int) -> Progress:
        return self.trainers[k].at


class Drawn:
    """The noise of K streams side by side, [K, ...]: each writes its own numbers, time after time into the same memory.
    On a GPU that costs half as much as drawing them one by one and putting them together."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        self.kept: dict[Any, tuple[Noise, list[Noise]]] = {}  # by draw and shape: the whole, and each one's part

    def __call__(self, who: Sequence[int], draw: Draw, *shape: int) -> Noise:
        """Fresh numbers for these; the others' are those they had."""
        if (draw, shape) not in self.kept:
            sizes, device = [(len(self.streams), *shape, count) for count in draw], self.streams[0].device
            whole = Noise(*(torch.zeros(size, device=device) for size in sizes))
            self.kept[draw, shape] = whole, [Noise(*part) for part in zip(*whole, strict=True)]
        whole, parts = self.kept[draw, shape]
        for k in who:
            self.streams[k].write(parts[k])
        return whole


class Lent(Swap):
    """Lets an agent give what was computed for it, and remembers in which form its run would be by itself."""

    def __init__(self, own: Swap) -> None:
        super().__init__()
        self.own = own

    def look(self, at: Progress) -> None:
        if at.opt_steps == self.own.since and self.own.worth(at):
            self.own.on = True

    def state(self) -> State:
        return self.own.state()


def mode(cfg: RunConfig, device: torch.device) -> str:
    """How joint functions are run: eager, auto (plain operations), compile or graph."""
    return "graph" if device.type == "cuda" and cfg.run.fast != "eager" else cfg.run.fast


def build_template(cfg: RunConfig) -> Agent:
    """One more agent, that stands for all; what would need more than `act` and `learn` of all at once is refused."""
    env = build_env(cfg)
    agent = build_agent(cfg, env.spec)
    env.close()
    if agent.draws.learn != Draw() or agent.algo.late_every:
        raise UserError(f"algo.kind: {cfg.algo.kind} cannot train several runs together yet. Accepted: ppo, dqn.")
    return agent


# ------------------------------------------------------------ settings that differ


class Varied:
    """A config of which some numbers are tensors."""

    def __init__(self, cfg: Any, values: dict[str, Any]) -> None:
        self._cfg, self._values = cfg, values

    def __getattr__(self, name: str) -> Any:
        return self._values[name] if name in self._values else getattr(self._cfg, name)


def vary(stack: Stack, template: Agent, configs: Sequence[RunConfig]) -> None:
    """Gives the template the numbers in which the algorithms' own settings differ."""
    first: Any = configs[0].algo
    names = [name for name, value in first if isinstance(value, float)]
    values = {name: getattr(first, name) for name in names}
    algo: Any = template.algo
    algo.cfg = Varied(first, values)
    for name in names:
        own = [float(getattr(cfg.algo, name)) for cfg in configs]
        if len(set(own)) > 1:
            stack.add(values, name, torch.tensor(own, device=template.device))


def check_alike(configs: Sequence[RunConfig]) -> None:
    """Refuses runs that differ in more than seeds and numbers of the algorithm: their shapes or steps would differ."""
    free = ("run.seed", "run.name", "run.dir", "eval.seed")
    if configs[0].fleet.learners > 1:
        raise UserError("fleet.learners: several cannot train several runs together. Accepted: 1.")
    if configs[0].run.mode != "local":
        raise UserError(f"run.mode: {configs[0].run.mode} cannot train several runs together. Accepted: local.")
    if configs[0].env.plain().get("halves"):
        raise UserError("env.halves: true cannot train several runs together. Accepted: false.")
    first = ops.flatten_names(configs[0].plain())
    for cfg in configs[1:]:
        other = ops.flatten_names(cfg.plain())
        for path in sorted({*first, *other}):
            a, b = first.get(path), other.get(path)
            name = path.replace("/", ".")
            number = isinstance(a, float) and isinstance(b, float) and name.startswith("algo.")
            if a != b and name not in free and (not number or name.startswith("algo.processor.")):
                raise UserError(
                    f"{name}: runs that train together may differ in run.seed and in numbers of the algorithm "
                    f"(algo.lr, algo.gamma, ...), not in this: {a} and {b}. Train them one after the other."
                )


# ------------------------------------------------------------ learning


class JointSamples:
    """Updates from replays: each draws its own sample, all learn from theirs in one function."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.learners = [trainer.learner for trainer in joint.trainers]
        self.fast_learn = joint.wrap(lambda mini, knobs, noise: joint.template.update(mini, (), knobs, noise))
        self.minis: Any = None  # [K, ...]
        self.given: list[Any] = [None] * joint.count
        for k, agent in enumerate(joint.agents):
            agent.fast_learn = lambda *_, k=k: self.given[k]

    def learn(self, who: Sequence[int]) -> list[LogData]:
        joint = self.joint
        for k in who:
            if self.learners[k].mini is None:
                self.learners[k].begin(joint.at(k))
        if self.minis is None:
            self.minis = ops.map_tree(lambda x: x.new_zeros((joint.count, *x.shape)), self.learners[who[0]].mini)
        for k in who:
            torch._foreach_copy_([x[k] for x in ops.leaves(self.minis)], ops.leaves(self.learners[k].mini))
        none = torch.zeros(joint.count, 0, device=joint.device)
        with joint.sparing(who):
            update = self.fast_learn(self.minis, joint.knobs(), (none, none))
        for k, own in enumerate(ops.unstack(update)):
            self.given[k] = own
        return [self.learners[k].step(joint.at(k)) for k in who]
