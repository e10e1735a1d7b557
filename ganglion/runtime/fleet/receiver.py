"""The Receiver: in a Trainer's eyes an Explorer, whose steps are items that explorers elsewhere have sent."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Protocol

import torch

from ganglion import ops
from ganglion.core import Env, LogData, Progress, State, Weights, join, under
from ganglion.errors import UserError
from ganglion.exchange import Packet
from ganglion.faults import Faults
from ganglion.runtime.fleet.account import Account
from ganglion.runtime.fleet.items import Expected
from ganglion.runtime.fleet.seams import Seams
from ganglion.runtime.fleet.sender import Item
from ganglion.runtime.learner import Learner

PATIENCE = 0.5  # seconds that one step waits for an item before it lets others have their say


class Fleet(Protocol):
    """Explorers elsewhere and the broker between: started, watched, ended."""

    account: Account
    lockstep: bool

    def pull(self, timeout: float) -> Packet | None: ...

    def release(self) -> None:
        """The item that was pulled last has been stored: its memory may be used again."""
        ...

    def publish(self, weights: Weights) -> None: ...

    def numbers(self) -> Mapping[str, float]:
        """What is recorded: how many explorers, how many items wait."""
        ...

    def resize(self, explorers: int) -> None:
        """So many explorers from now on."""
        ...

    def close(self) -> None: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Receiver:
    """Fleet -> Learner. Takes an item only when it is asked to: while updates are owed, the queue fills and explorers
    wait; and it waits for no explorer in particular."""

    def __init__(self, learner: Learner, fleet: Fleet, env: Env, max_lag: int | None, expected: Expected) -> None:
        self.sink, self.fleet, self.max_lag, self.expected = learner, fleet, max_lag, expected
        self.agent, self.spec = learner.agent, env.spec
        self.faults = Faults(env.faults.name, env.faults.most)
        self.lost: dict[tuple[int, int], int] = {}  # rows lost, as each life of an explorer told last
        if not fleet.lockstep:
            learner.buffer.skip_check()  # `expected` has looked at what others sent
        self.seams = Seams(learner, learner.buffer.restarted, hold=not fleet.lockstep)
        self.told = -1  # the version published last
        self.waited, self.since = 0.0, perf_counter()

    def step(self, at: Progress) -> LogData:
        """Publishes what has been learned, and takes the next item; nothing where none came in time."""
        self.publish(at)
        began = perf_counter()
        packet = self.fleet.pull(PATIENCE)
        wait = perf_counter() - began
        self.waited += wait
        item = packet and self.open(packet)
        if item is None:
            return LogData("collect", at, {"wait": wait})
        lag = at.opt_steps - item.origin.version
        valid = int(item.rows.valid.sum())
        if self.max_lag is not None and lag > self.max_lag:
            self.fleet.account.stale += 1
            self.fleet.account.rows_dropped += valid
        else:
            self.hand(item, at)
        self.fleet.release()
        self.note(item)
        first = item.origin.explorer * self.spec.slots
        episodes = tuple(e._replace(slot=first + e.slot) for e in item.episodes)
        now = at._replace(env_steps=at.env_steps + valid, episodes=at.episodes + len(episodes))
        return LogData("collect", now, {"wait": wait, "lag": float(lag)}, episodes)

    def open(self, packet: Packet) -> Item | None:
        """The item, counted in; None where it has been here before, or the bytes are no item of this run."""
        item, fault = None, ""
        try:
            item = self.expected.read(packet)
        except Exception as error:  # bytes that somebody else made may be wrong in any way
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            if self.fleet.lockstep:  # of this process's own
                raise UserError(f"env: what came of a step is not what its spaces say. {fault}") from error
        return item if self.fleet.account.take(packet.origin, fault) else None

    def publish(self, at: Progress) -> None:
        """Each version once; in lockstep always, for knobs and statistics change without one."""
        if at.opt_steps != self.told or self.fleet.lockstep:
            self.fleet.account.newest = at.opt_steps
            self.fleet.publish(self.agent.command(at))
            self.told = at.opt_steps

    def hand(self, item: Item, at: Progress) -> None:
        """Rows to the Learner; what is learned from on its own needs no seam."""
        if self.sink.buffer.fresh:
            self.sink.push(item.rows, ops.map_tree(torch.clone, item.ahead), at)
        else:
            self.seams.push(item, at)

    def note(self, item: Item) -> None:
        """What went wrong in the environments of an explorer elsewhere."""
        life = item.origin.explorer, item.origin.incarnation
        whose = {} if self.fleet.lockstep else {"explorer": "{}.{}".format(*life)}  # each counts slots and episodes
        self.faults.add([{**failure, **whose} for failure in item.about.get("failures", [])])
        self.faults.logged += [{**episode, **whose} for episode in item.about.get("logged", [])]
        lost = int(item.about.get("rows_lost", 0))
        self.faults.rows_lost += lost - self.lost.get(life, 0)
        self.lost[life] = lost

    def numbers(self) -> Mapping[str, float]:
        """What is recorded beside averages."""
        own = {"fleet/wait_share": self.share(), **self.fleet.numbers()}
        return {**self.faults.numbers(), **self.fleet.account.numbers(), **own}

    def share(self) -> float:
        """The share of the time since it was last asked for that the learner waited for items."""
        now = perf_counter()
        waited, since, self.waited, self.since = self.waited, self.since, 0.0, now
        return waited / max(now - since, 1e-9)

    def summary(self) -> Mapping[str, str]:
        return {"Items": self.fleet.account.line()}

    def close(self) -> None:
        self.fleet.close()

    def state(self) -> State:
        parts = {"account": self.fleet.account.state(), "fleet": self.fleet.state()}
        return join({**parts, "seams": self.seams.state()})

    def restore(self, state: State) -> None:
        self.fleet.account.restore(under(state, "account"))
        self.fleet.restore(under(state, "fleet"))
        self.seams.restore(under(state, "seams"))
        self.told = -1
