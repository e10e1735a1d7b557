"""The Receiver: in a Trainer's eyes an Explorer, whose steps are items that explorers elsewhere have sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple, Protocol

import torch

from ganglion import ops
from ganglion.core import Env, EnvSpec, LogData, Progress, State, Weights, join, under
from ganglion.envs.faults import Faults, faults_of
from ganglion.errors import UserError
from ganglion.exchange import Packet
from ganglion.runtime.fleet.account import Account
from ganglion.runtime.fleet.seams import Seams
from ganglion.runtime.fleet.sender import Item, read
from ganglion.runtime.learner import Learner

log = logging.getLogger(__name__)
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


class Elsewhere(NamedTuple):
    """Stands where a local run has its environment."""

    spec: EnvSpec
    fleet: Fleet

    def close(self) -> None:
        self.fleet.close()


class Receiver:
    """Fleet -> Learner. Takes an item only when it is asked to: while updates are owed, the queue fills and explorers
    wait; and it waits for no explorer in particular."""

    def __init__(self, learner: Learner, fleet: Fleet, env: Env, max_lag: int | None) -> None:
        self.sink, self.fleet, self.max_lag = learner, fleet, max_lag
        self.agent, self.env = learner.agent, Elsewhere(env.spec, fleet)
        own = faults_of(env)
        self.faults = Faults(own.name, own.most)
        self.lost: dict[tuple[int, int], int] = {}  # rows lost, as each life of an explorer told last
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
        first = item.origin.explorer * self.env.spec.slots
        episodes = tuple(e._replace(slot=first + e.slot) for e in item.episodes)
        now = at._replace(env_steps=at.env_steps + valid, episodes=at.episodes + len(episodes))
        return LogData("collect", now, {"wait": wait, "lag": float(lag)}, episodes)

    def open(self, packet: Packet) -> Item | None:
        """The item, counted in; None where it has been here before, or the bytes are no item of this run."""
        account = self.fleet.account
        try:
            item = read(packet.body)
            ours = item.origin == packet.origin and item.rows.reward.shape[1:] == (self.env.spec.slots,)
        except UserError:  # a codec that is not installed
            raise
        except Exception as error:  # bytes that somebody else made may be wrong in any way
            log.warning("bytes that are no item, of %s: %s", packet.origin, error)
            ours = False
        if not ours:
            account.refused += 1
            return None
        return item if account.take(packet.origin) else None

    def publish(self, at: Progress) -> None:
        """Each version once; in lockstep always, for knobs and statistics change without one."""
        if at.opt_steps != self.told or self.fleet.lockstep:
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

    def line(self) -> str:
        return self.fleet.account.line()

    def state(self) -> State:
        parts = {"account": self.fleet.account.state(), "fleet": self.fleet.state()}
        return join({**parts, "seams": self.seams.state()})

    def restore(self, state: State) -> None:
        self.fleet.account.restore(under(state, "account"))
        self.fleet.restore(under(state, "fleet"))
        self.seams.restore(under(state, "seams"))
        self.told = -1
