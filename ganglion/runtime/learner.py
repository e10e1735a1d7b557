"""The Learner: keeps what Explorers hand on, and learns from it when steps allow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import (
    Algorithm,
    Buffer,
    Limiter,
    LogData,
    Model,
    Obs,
    Past,
    Progress,
    Row,
    State,
    Update,
    join,
    under,
)
from ganglion.runtime.agent import Agent
from ganglion.runtime.streams import Stream


class Learner:
    """Agent + Buffer + Limiter. A learning phase is one item, a table of its minibatches and a position in it."""

    def __init__(self, agent: Agent, buffer: Buffer, limiter: Limiter, seed: int) -> None:
        self.agent, self.buffer, self.limiter, self.watches = agent, buffer, limiter, watches(agent.algo)
        self.stream = Stream(seed, "learn", agent.device)
        self.mini: Any = None  # the item being learned from, prepared; None between phases
        self.table: Tensor | None = None  # [updates, rows each]
        self.position = 0
        self.deep = self.wide = 0  # rows in time and beside each other of what is learned from

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        self.buffer.push(rows, ahead, at)
        if not self.buffer.fresh and self.watches:
            self.agent.observe(ops.to_device(rows, self.agent.device))

    def owes(self, at: Progress) -> bool:
        """Whether it is the learner's turn."""
        if self.mini is not None:
            return True
        return self.limiter.owes(at, ready=True) and self.buffer.ready()  # asked last: it may wait for the device

    def step(self, at: Progress) -> LogData:
        """One update."""
        if self.mini is None:
            self.begin(at)
        rows = () if self.table is None else self.table[self.position]
        noise = self.stream.noise(self.agent.draws.learn, self.deep, len(rows) or self.wide)
        update = self.agent.learn(self.mini, noise, at, rows)
        if update.priority.numel():
            index = self.mini.index if self.table is None else self.mini.index[:, rows]
            self.buffer.feedback(index, update.priority)
        self.position += 1
        if self.over(update):
            self.finish()
        now = Progress(at.env_steps, at.opt_steps + 1, at.episodes, at.seconds, at.fraction)
        return LogData("learn", now, update.metrics)

    def begin(self, at: Progress) -> None:
        """Takes an item and plans its minibatches."""
        uniform = self.stream.uniform(self.buffer.wants, dtype=torch.float64)
        self.hold(self.agent.prepare(self.buffer.take(uniform, at)))
        table = self.agent.algo.plan(self.wide, self.stream.noise(self.agent.draws.plan, self.wide))
        self.table, self.position = (table if table.numel() else None), 0

    def hold(self, mini: Any) -> None:
        self.mini, (self.deep, self.wide) = mini, ops.first(mini).shape[:2]

    def over(self, update: Update) -> bool:
        """Whether the phase ends here: the table is used up, or a pass ended and the algorithm has had enough."""
        if self.table is None or self.position == len(self.table):
            return True
        if self.position % max(len(self.table) // self.agent.algo.passes, 1):  # the table may be of another config
            return False
        enough = self.agent.algo.enough(update)
        return enough is not None and bool(enough)

    def finish(self) -> None:
        self.mini, self.table, self.position = None, None, 0
        if self.buffer.fresh:
            if self.watches:
                self.agent.observe(self.buffer.rows())
            self.buffer.release()

    def state(self) -> State:
        parts = {"stream": self.stream.state(), "buffer": self.buffer.state()}
        phase: dict[str, Tensor] = {}
        if self.mini is not None and self.table is not None:
            phase = {"table": self.table, **{f"mini/{k}": v for k, v in ops.flatten_names(self.mini).items()}}
        parts["phase"] = State(phase, {"position": self.position})
        return join(parts)

    def restore(self, state: State) -> None:
        self.stream.restore(under(state, "stream"))
        self.buffer.restore(under(state, "buffer"))
        phase = under(state, "phase")
        self.mini, self.table, self.position = None, None, int(phase.scalars["position"])
        if "table" in phase.tensors:
            device = self.agent.device
            self.table = phase.tensors["table"].to(device)
            shape = self.agent.algo.prepare(self.buffer.take(torch.empty(0), Progress()))  # for its structure alone
            self.hold(ops.unflatten(shape, ops.to_device(under(phase, "mini").tensors, device)))


def watches(algo: Algorithm[Any, Any]) -> bool:
    """Whether new rows change anything in it: normalisers do, networks do not."""
    parts = [m for m in algo.model.modules() if isinstance(m, Model) and type(m).observe is not Model.observe]
    return type(algo).observe is not Algorithm.observe or any(getattr(part, "watches", True) for part in parts)
