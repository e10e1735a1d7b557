"""The Learner: keeps what Sources bring, and learns from it when steps allow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import (
    Algorithm, Buffer, Draw, Knobs, Limiter, LogData, Noise, Obs, Past, Phase, Progress, Row, State, Update, join,
    read_count, under,
)  # fmt: skip
from ganglion.runtime.agent import PLAYER, Agent
from ganglion.runtime.randomness import Stream

MOST = 64  # rows that are looked ahead for the next update


class Learner:
    """Agent + Buffer + Limiter. A learning phase is one item, a table of its minibatches and a position in it; it is
    learned from update by update, or as one function where the engine captures it whole."""

    def __init__(self, agent: Agent, buffer: Buffer, limiter: Limiter, seed: int, slots: int = 1) -> None:
        """`slots`: those of its player."""
        self.slots = slots
        self.agent, self.buffer, self.limiter, self.watches = agent, buffer, limiter, watches(agent.algo)
        name = "learn" if agent.player == PLAYER else f"learn/{agent.player}"
        self.stream = Stream(seed, name, agent.device)
        self.items = 0  # taken so far
        self.due: list[str] = []  # kinds of phases that the item has still to go through
        self.kind = agent.kinds[0]  # of the phase
        self.mini: Any = None  # the item being learned from, prepared; None between phases
        self.table: Tensor | None = None  # [updates, rows each]
        self.position = 0
        self.deep = self.wide = 0  # rows in time and beside each other of what is learned from
        self.updates = 0  # of a phase that can be learned from as a whole; known after the first one
        self.may_end = False  # before its table is used up
        engine = agent.engine
        whole = engine.whole and len(agent.kinds) == 1
        self._phase = engine.wrap(self.phase, f"{agent.player}/phase") if whole else None
        self._inner = engine.fuse(partial(agent.update, self.kind))

    # ------------------------------------------------------------ rows

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        self.buffer.push(rows, ahead, at)
        if not self.buffer.fresh and self.watches:
            self.agent.observe(ops.to_device(rows, self.agent.device))

    def room(self, at: Progress, slots: int) -> int:
        """How many rows may come before it is the learner's turn."""
        if self.buffer.fresh:
            return self.buffer.room()
        if self.watches:  # what is seen changes the next action
            return 1
        for count in range(1, MOST):
            if self.limiter.owes(at._replace(env_steps=at.env_steps + count * slots), ready=True):
                return count
        return MOST

    # ------------------------------------------------------------ learning

    def owes(self, at: Progress) -> bool:
        """Whether it is the learner's turn."""
        if self.mini is not None or self.due:
            return True
        return self.limiter.owes(at, ready=True) and self.buffer.ready()  # asked last: it may wait for the device

    def step(self, at: Progress) -> LogData:
        """One update; or a whole phase, where that is one function."""
        if self.mini is None and self.updates and self._phase is not None and self.agent.engine.walks:
            return self.step_phase(at)
        if self.mini is None:
            self.begin(at)
        rows = () if self.table is None else self.table[self.position]
        noise = self.stream.noise(self.agent.draws.learn, self.deep, len(rows) or self.wide)
        if self.agent.draws.update != Draw():
            noise = noise._replace(update=self.stream.noise(self.agent.draws.update))
        update = self.agent.learn(self.mini, noise, at, rows, self.kind)
        if update.priority.numel():
            index = self.mini.index if self.table is None else self.mini.index[:, rows]
            self.buffer.feedback(index, update.priority)
        self.position += 1
        if self.over(update):
            self.finish()
        now = Progress(at.env_steps, at.opt_steps + 1, at.episodes, at.seconds, at.fraction)
        return LogData("learn", now, update.metrics)

    def begin(self, at: Progress) -> None:
        """Takes an item, or the one before for a phase of another kind, and plans its minibatches."""
        phases = self.agent.algo.phases()
        if not self.due:
            self.items += 1
            self.due = [kind for kind, phase in phases.items() if self.items % phase.rollouts == 0]
        self.kind = self.due.pop(0)
        uniform = self.stream.uniform(self.buffer.wants, dtype=torch.float64)
        self.hold(self.agent.prepare(self.item(phases[self.kind], uniform, at), self.kind))
        table = phases[self.kind].plan(self.wide, self.stream.noise(self.agent.draws.plan, self.wide))
        self.table, self.position = (table if table.numel() else None), 0

    def item(self, phase: Phase, uniform: Tensor, at: Progress) -> Any:
        return self.buffer.take(uniform, at) if phase.rollouts == 1 else self.buffer.recent(phase.rollouts)

    def hold(self, mini: Any) -> None:
        self.mini, (self.deep, self.wide) = mini, ops.first(mini).shape[:2]

    def over(self, update: Update) -> bool:
        """Whether the phase ends here: the table is used up, or a pass ended and the algorithm has had enough."""
        if self.table is None:
            return True
        algo, count = self.agent.algo, len(self.table)
        if self.position == count:
            alone = self.agent.draws[3:5] == (Draw(), Draw())
            alone = alone and not (algo.sync_every or algo.late_every or algo.reset_every)
            self.updates = count if alone and not self.may_end else 0
            return True
        if self.position % max(count // algo.passes, 1):  # the table may be of another config
            return False
        enough = algo.enough(update) if self.kind == self.agent.kinds[0] else None
        self.may_end = enough is not None
        return enough is not None and bool(enough)

    def finish(self) -> None:
        self.mini, self.table, self.position = None, None, 0
        if self.buffer.fresh and not self.due:
            if self.watches:
                self.agent.observe(self.buffer.rows())
            self.buffer.release()

    # ------------------------------------------------------------ a phase as one function

    def step_phase(self, at: Progress) -> LogData:
        """All updates of an item."""
        assert self._phase is not None
        item = self.buffer.take(torch.empty(0), at)
        noise = self.stream.noise(self.agent.draws.plan, self.wide)
        metrics = self._phase(item, noise, self.agent.knobs(at))
        self.finish()
        return LogData("learn", at._replace(opt_steps=at.opt_steps + self.updates), metrics)

    def phase(self, item: Any, noise: Noise, knobs: Knobs) -> dict[str, Tensor]:
        """The updates of one item; the averages of their metrics."""
        mini, none = self.agent.prepared(self.kind, item), Noise(noise.uniform[:0], noise.normal[:0])
        with torch.no_grad():
            table = self.agent.algo.plan(ops.first(mini).shape[1], noise)
        seen: dict[str, list[Tensor]] = {}
        for rows in table.unbind():
            for name, value in self._inner(mini, rows, knobs, none).metrics.items():
                seen.setdefault(name, []).append(value)
        return {name: torch.stack(values).mean() for name, values in seen.items()}

    # ------------------------------------------------------------ state

    def state(self) -> State:
        parts = {"stream": self.stream.state(), "buffer": self.buffer.state()}
        phase: dict[str, Tensor] = {}
        if self.mini is not None and self.table is not None:
            phase = {"table": self.table, **{f"mini/{k}": v for k, v in ops.flatten_names(self.mini).items()}}
        where = {"position": self.position, "items": self.items, "kind": self.kind, "due": list(self.due)}
        parts["phase"] = State(phase, where)
        return join(parts)

    def restore(self, state: State) -> None:
        self.stream.restore(under(state, "stream"))
        self.buffer.restore(under(state, "buffer"))
        phase = under(state, "phase")
        self.mini, self.table = None, None
        self.position = read_count(phase.scalars["position"], len(phase.tensors.get("table", (0,))) - 1)
        self.updates, self.items = 0, read_count(phase.scalars["items"])
        self.kind, *self.due = [
            known(kind, self.agent.kinds) for kind in (phase.scalars["kind"], *phase.scalars["due"])
        ]
        if "table" in phase.tensors:
            device = self.agent.device
            self.table = phase.tensors["table"].to(device)
            own = self.agent.algo.phases()[self.kind]
            shape = own.prepare(self.item(own, torch.empty(0), Progress()))  # for its structure alone
            self.hold(ops.unflatten(shape, ops.to_device(under(phase, "mini").tensors, device)))


def known(kind: Any, kinds: Sequence[str]) -> str:
    """A kind of phase that a state names, checked."""
    if kind not in kinds:
        raise ValueError(f"{str(kind)[:40]!r} is no kind of learning phase. Accepted: {', '.join(kinds)}.")
    return str(kind)


def watches(algo: Algorithm[Any, Any]) -> bool:
    """Whether new rows change anything in it: normalisers do, networks do not."""
    return type(algo).observe is not Algorithm.observe or algo.model.watches
