"""The Receiver: in a Trainer's eyes an Explorer, whose steps are items that other explorers have sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import monotonic, perf_counter
from typing import NamedTuple, Protocol

import torch

from ganglion import ops
from ganglion.core import (
    Env,
    EnvSpec,
    Episode,
    LogData,
    Origin,
    Packet,
    Progress,
    State,
    Weights,
    join,
    under,
)
from ganglion.errors import UserError
from ganglion.faults import Faults
from ganglion.fleet.items import Expected
from ganglion.fleet.remote_explorer import Item
from ganglion.fleet.stream_joiner import StreamJoiner
from ganglion.runtime.learner import Learner

log = logging.getLogger(__name__)
WINDOW = 1_000  # numbers that an explorer's next item may be ahead of the one that is due
TOLD, AGAIN = 10, 60.0  # refusals that are warned about one by one; seconds after which one more is


class ExplorerLife(NamedTuple):
    """One life of one explorer."""

    player: str
    explorer: int
    incarnation: int


class Account:
    """Items received, lost, duplicated, stale, refused, and in flight when their explorer ended."""

    def __init__(self) -> None:
        self.received = 0  # taken over, each once
        self.lost = 0  # numbers that were passed over: handed over, and never seen
        self.duplicated = 0  # came again, and were not taken
        self.stale = 0  # received, and too old to learn from
        self.rows_dropped = 0  # of these
        self.refused = 0  # no items of this run: damaged, forged, or another's
        self.in_flight = 0  # asked of an explorer that ended before it handed them over
        self.restarts = 0
        self.next: dict[ExplorerLife, int] = {}
        self.places: set[ExplorerLife] = set()  # that were given to explorers
        self.warned = 0.0  # when, of a refusal
        self.newest = -1  # version of the weights that were published last

    def admit(self, source: ExplorerLife) -> None:
        """From now on its items are taken."""
        self.places.add(source)

    def take(self, origin: Origin, fault: str = "") -> bool:
        """Counts an item in; False: it has been here before, or is refused, for its fault or since no explorer of this
        run can have sent it. The number of one that is refused for its fault is used up."""
        source = ExplorerLife(origin.player, origin.explorer, origin.incarnation)
        expected = self.next.get(source, 0)
        if source not in self.places:
            return self.refuse(f"{origin}: this place was given to nobody")
        if origin.sequence >= expected + WINDOW or origin.version > self.newest:
            return self.refuse(f"{origin}: number {expected} is due, and {self.newest} the newest version of weights")
        if origin.sequence < expected:
            self.duplicated += 1
            return False
        self.lost += origin.sequence - expected
        self.next[source] = origin.sequence + 1
        if fault:
            return self.refuse(f"{origin}: {fault}")
        self.received += 1
        return True

    def refuse(self, why: str) -> bool:
        """Counts what is not taken: False, as an answer to whether it is."""
        self.refused += 1
        if self.refused <= TOLD or monotonic() - self.warned > AGAIN:
            self.warned = monotonic()
            more = "" if self.refused < TOLD else f" ({self.refused} so far; most are only counted, as fleet/refused)"
            log.warning("refused an item, %s%s", why, more)
        return False

    def ended(self, in_flight: int) -> None:
        """An explorer ended, with so many items asked of it and not handed over."""
        self.restarts += 1
        self.in_flight += in_flight

    def numbers(self) -> Mapping[str, float]:
        names = ("received", "lost", "duplicated", "stale", "rows_dropped", "refused", "in_flight", "restarts")
        return {f"fleet/{name}": float(getattr(self, name)) for name in names}

    def line(self) -> str:
        """All of it, in a line."""
        counts = f"{self.lost} lost, {self.duplicated} duplicated, {self.stale} stale, {self.in_flight} in flight"
        counts += f", {self.refused} refused" if self.refused else ""
        return f"{self.received:,} items: {counts}; {self.restarts} explorers started anew"

    def state(self) -> State:
        return State({}, {name.removeprefix("fleet/"): int(value) for name, value in self.numbers().items()})

    def restore(self, state: State) -> None:
        """Counts go on; a resumed run has explorers of new incarnations, which begin at 0."""
        for name, value in state.scalars.items():
            setattr(self, name, int(value))


class Arrivals(Account):
    """An account that is kept where items arrive: learners take them later, each only some of them."""

    def arrive(self, origin: Origin) -> bool:
        """Counts an item in, before anyone has looked into it; False: it is not to be taken."""
        return super().take(origin)

    def take(self, origin: Origin, fault: str = "") -> bool:
        if fault:
            self.received -= 1
            return self.refuse(f"{origin}: {fault}")
        return True


PATIENCE = 0.5  # seconds that one step waits for an item before it lets others have their say


class Fleet(Protocol):
    """Remote explorers and the broker between: started, watched, ended."""

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

    def __init__(
        self, learner: Learner, fleet: Fleet, env: Env, max_lag: int | None, expected: Expected,
        place: slice | None = None,
    ) -> None:  # fmt: skip
        """`place`: the slots of its player, where there are several."""
        self.first = 0 if place is None else place.start
        self.player = "" if place is None else learner.agent.player
        self.sink, self.fleet, self.max_lag, self.expected = learner, fleet, max_lag, expected
        self.agent, self.spec = learner.agent, env.spec
        self.faults = Faults(env.faults.name, env.faults.most)
        self.lost: dict[tuple[int, int], int] = {}  # rows lost, as each life of an explorer told last
        if not fleet.lockstep:
            learner.buffer.skip_check()  # `expected` has looked at what others sent
        self.seams = StreamJoiner(learner, learner.buffer.restarted, hold=not fleet.lockstep)
        self.told = -1  # the version published last
        self.waited, self.since = 0.0, perf_counter()

    def step(self, at: Progress) -> LogData:
        """Publishes what has been learned, and takes the next item; nothing where none came in time."""
        self.publish(at)
        return self.take(at)

    def take(self, at: Progress) -> LogData:
        """The next item."""
        began = perf_counter()
        packet = self.fleet.pull(PATIENCE)
        wait = perf_counter() - began
        self.waited += wait
        item = packet and self.open(packet)
        if item is None:
            return LogData("collect", at, {"wait": wait})
        lag = at.opt_steps - item.origin.version
        valid = int(ops.decisions(item.rows.valid, item.rows.extras).sum())
        if self.max_lag is not None and lag > self.max_lag:
            self.fleet.account.stale += 1
            self.fleet.account.rows_dropped += valid
        else:
            self.hand(item, at)
        self.fleet.release()
        self.note(item)
        first = item.origin.explorer * self.spec.slots + self.first
        episodes = tuple(e._replace(slot=first + e.slot, player=self.player) for e in item.episodes)
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
        """What went wrong in the environments of a remote explorer."""
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


class Receivers:
    """Those of several players, whose items come together: one for each from every step."""

    def __init__(self, each: Sequence[Receiver], spec: EnvSpec, fleet: Fleet) -> None:
        self.each, self.spec, self.fleet = each, spec, fleet

    @property
    def faults(self) -> Faults:
        return self.each[0].faults

    def step(self, at: Progress) -> LogData:
        metrics: dict[str, float] = {}
        episodes: tuple[Episode, ...] = ()
        for receiver in self.each:  # all of the weights before any of the steps
            receiver.publish(at)
        for receiver in self.each:
            log = receiver.take(at)
            at, episodes = log.at, episodes + log.episodes
            metrics |= {f"{receiver.player}/{name}": value for name, value in log.metrics.items()}
        return LogData("collect", at, metrics, episodes)

    def numbers(self) -> Mapping[str, float]:
        return self.each[0].numbers()

    def summary(self) -> Mapping[str, str]:
        return self.each[0].summary()

    def close(self) -> None:
        self.fleet.close()

    def state(self) -> State:
        parts = {receiver.player: receiver.state() for receiver in self.each}
        return join({**parts, "explorer": self.fleet.state()})

    def restore(self, state: State) -> None:
        self.fleet.restore(under(state, "explorer"))
        for receiver in self.each:
            receiver.restore(under(state, receiver.player))
