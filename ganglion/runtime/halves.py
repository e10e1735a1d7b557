"""Slots that take turns: while workers step one half of them, the other half is acted for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Acted, LogData, Noise, Past, Processor, Progress, Sink, State, Step, join, under
from ganglion.envs.pooled import PoolEnv
from ganglion.runtime.agent import Agent
from ganglion.runtime.explorer import Explorer

Landed = tuple[Step, Tensor | None]  # what half of the slots saw, and which of its actions were lost


class Halves(Explorer):
    """An Explorer of two halves. The second half's step is always under way when a step ends, so that its rows are one
    step behind those of the first; slots know nothing of each other, and each sees its own steps in their order.

    Weights that change between two steps find the second half's next action taken already.
    """

    env: PoolEnv

    def __init__(self, agent: Agent, env: PoolEnv, processor: Processor, sink: Sink, seed: int) -> None:
        super().__init__(agent, env, processor, sink, seed)
        self.half = env.spec.slots // 2
        self.flight: Acted | None = None  # what the second half was told to do
        self.landed: Landed | None = None  # what came of it, where somebody had to know before its time

    def step(self, at: Progress) -> LogData:
        """One action of every slot; the rows of the second half are of its action before."""
        self.faults.check()
        before, past = self.begin()
        (first, ours), (second, theirs) = self.parts(before, past)
        if self.flight is None:
            self.flight = self.send(1, second, theirs, self.noise.next(), at)
        noise, flown = self.noise.next(), self.flight
        acted = self.send(0, first, ours, noise, at)
        landed, gone = self.land()
        self.flight = self.send(1, landed, Past(flown.memory, self.starts(second)), noise, at)
        came, lost = self.env.recv_half(0)
        after: Step = ops.map_tree(joined, came, landed)
        memory = tuple(torch.cat(pair, 1) for pair in zip(acted.memory, flown.memory, strict=True))
        action, extras = ops.map_tree(joined, (acted.action, acted.extras), (flown.action, flown.extras))
        self.note(lost, gone)
        return self.hand(before, past, Acted(action, extras, memory), after, at)

    def parts(self, step: Step, past: Past) -> tuple[tuple[Step, Past], tuple[Step, Past]]:
        """What each half sees and remembers."""
        rows = slice(0, self.half), slice(self.half, None)
        first, second = ((ops.map_tree(lambda x, r=r: x[r], step), among(past, r)) for r in rows)
        return first, second

    def send(self, half: int, step: Step, past: Past, noise: Noise, at: Progress) -> Acted:
        """Acts for one half, and has its workers begin."""
        own = Noise(*(x[:, self.half :] if half else x[:, : self.half] for x in noise))
        acted = self.agent.sample(step.obs, past, own, at)
        self.env.send_half(half, acted.action)
        return acted

    def land(self) -> Landed:
        """What came of the second half's step."""
        landed, self.landed = self.landed, None
        return landed if landed is not None else self.env.recv_half(1)

    def note(self, *lost: Tensor | None) -> None:
        """Tells which actions came to nothing."""
        if any(own is not None for own in lost):
            none = torch.zeros(self.half, dtype=torch.bool)
            both = torch.cat([none if own is None else own.cpu() for own in lost])
            self.faults.seen(both.to(self.env.device), int(both.sum()))
        elif self.faults.lost is not None:
            self.faults.seen(None, 0)

    def state(self) -> State:
        """With the second half's step at an end: its workers have to stand still."""
        if self.flight is None:
            return super().state()
        if self.landed is None:
            self.landed = self.env.recv_half(1)
        step, lost = self.landed
        told: dict[str, Any] = {**self.flight._asdict(), "step": step._asdict()}
        if lost is not None:
            told["lost"] = lost
        return join({"both": super().state(), "flight": State(ops.flatten_names(told))})

    def restore(self, state: State) -> None:
        told = {"memory": {}, "extras": {}, **ops.nest(under(state, "flight").tensors)}
        self.flight = self.landed = None
        if "step" not in told:
            super().restore(state)
            return
        super().restore(under(state, "both"))
        memory, device = told["memory"], self.agent.device
        kept = tuple(memory[str(i)].to(device) for i in range(len(memory)))
        action, extras = ops.to_device((told["action"], told["extras"]), device)
        self.flight = Acted(action, extras, kept)
        self.landed = Step(**told["step"]), told.get("lost")


def joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([first, second])


def among(past: Past, rows: slice) -> Past:
    """The past of some slots."""
    return Past(tuple(memory[:, rows] for memory in past.memory), past.start[:, rows])
