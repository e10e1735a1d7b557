"""A Ray fleet whose items go to several learners, by a rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from ganglion.config import RunConfig
from ganglion.core import Packet, State, Weights
from ganglion.errors import LearnerLostError
from ganglion.fleet.in_process import LocalBroker
from ganglion.fleet.ray_fleet import ExplorerHandle, RayFleet, deaths
from ganglion.fleet.receiver import Account, Arrivals
from ganglion.fleet.remote_explorer import ItemSize


class LearnerQueues(NamedTuple):
    """What is known of the learners when an item has come."""

    received: Sequence[int]  # items that each has been given and has kept
    waiting: Sequence[int]  # the learners that wait for an item, longest first


Rule = Callable[[int, LearnerQueues], tuple[int, ...]]


def broadcast(explorer: int, queues: LearnerQueues) -> tuple[int, ...]:
    """Every item to every learner: each has all rows, and draws other ones from them."""
    return tuple(range(len(queues.received)))


def divide(explorer: int, queues: LearnerQueues) -> tuple[int, ...]:
    """Explorers are divided: all items of one go to the same learner."""
    return (explorer % len(queues.received),)


def first_served(explorer: int, queues: LearnerQueues) -> tuple[int, ...]:
    """To the learner that has waited longest; to nobody while none waits."""
    return tuple(queues.waiting[:1])


def equal(explorer: int, queues: LearnerQueues) -> tuple[int, ...]:
    """To the learner that has been given the fewest, so that all have as many."""
    return (queues.received.index(min(queues.received)),)


RULES: dict[str, Rule] = {"broadcast": broadcast, "divide": divide, "first-served": first_served, "equal": equal}


LOOK = 0.005  # seconds between two looks at what others wait for
REMIND = 0.5  # seconds
SLACK = 4  # items of a learner that may wait here without holding up their explorers


class Dealt:
    """An item on its way to one learner or several; its explorer walks on when all have it."""

    def __init__(self, packet: Packet, member: ExplorerHandle | None, receivers: int) -> None:
        self.packet, self.member, self.left = packet, member, receivers


class LearnerQueue:
    """One learner, as seen by the Dealer: what waits for it, and how much it has been given."""

    def __init__(self, actor: Any = None) -> None:
        self.actor = actor  # of a learner elsewhere
        self.items: deque[Dealt] = deque()
        self.given = self.stale = self.rows = 0  # items given, too old, and the rows of these
        self.call: Any = None  # the item that is being handed over


class Dealer(RayFleet):
    """Hands items to the learner of this process, which pulls, and to others, which are called: one call each at a
    time. What a learner has no room for waits, and holds up the explorers it came from."""

    def __init__(self, cfg: RunConfig, lot: ItemSize) -> None:
        self.reminded = 0.0
        super().__init__(cfg, lot)
        self.account = self.arrivals = Arrivals()
        self.rule = RULES[cfg.fleet.rule]
        self.queues = [LearnerQueue()]  # the first is this process's own; the others come when their actors are there
        self.before = 0  # items that were too old in the lives of this run before
        self.waiting_for: list[int] = []  # learners that wait for an item, longest first
        self.last: Dealt | None = None  # pulled, and not yet stored
        self.hear: Callable[[Packet], bool] = lambda packet: True  # told of items that the first learner does not get

    # ------------------------------------------------------------ this process's own

    def take(self, timeout: float) -> Packet | None:
        self.release()
        own, ends = self.queues[0].items, monotonic() + timeout
        while not own:
            left = ends - monotonic()
            if left < 0:
                return None
            self.waits(0)
            self.deal(min(left, LOOK))
        self.last = own.popleft()
        return self.last.packet

    def give_back(self) -> None:
        last, self.last = self.last, None
        if last is not None:
            self.passed(last)
        super().give_back()

    def serve(self) -> None:
        """For a moment nothing but what the others wait for: this learner has enough."""
        if 0 in self.waiting_for:
            self.waiting_for.remove(0)
        self.talk(lambda: self.deal(LOOK))

    # ------------------------------------------------------------ everybody's

    def deal(self, timeout: float) -> None:
        """Hands over what there is room for, and gives the next item to whom the rule says."""
        self.deliver()
        queues = LearnerQueues([queue.given - queue.stale for queue in self.queues], self.waiting_for)
        if not self.rule(0, queues):  # nobody waits
            sleep(timeout)
            return
        packet = self.arrived(timeout)
        member, self.taken = self.taken, None
        if packet is None or member is None:
            return
        if not self.arrivals.arrive(packet.origin):
            self.free(member)
            return
        receivers = self.rule(packet.origin.explorer, queues)
        if 0 in receivers or self.hear(packet):
            self.give(packet, member, receivers)
        else:
            self.free(member)
        self.deliver()

    def give(self, packet: Packet, member: ExplorerHandle, receivers: tuple[int, ...]) -> None:
        queues = [self.queues[rank] for rank in receivers]
        dealt = Dealt(packet, member, len(queues))
        if receivers != (0,) or 0 not in self.waiting_for:  # it waits: its explorer will write over what it wrote
            dealt.packet = packet._replace(body=np.array(packet.body))
            if all(len(queue.items) < SLACK for queue in queues):
                dealt.member = None
                self.free(member)
        for rank, queue in zip(receivers, queues, strict=True):
            queue.items.append(dealt)
            queue.given += 1
            if rank in self.waiting_for:
                self.waiting_for.remove(rank)

    def passed(self, dealt: Dealt) -> None:
        """One more of its receivers has it."""
        dealt.left -= 1
        if dealt.left == 0 and dealt.member is not None:
            self.free(dealt.member)

    def deliver(self) -> None:
        self.queues[0].stale = self.account.stale - self.before - sum(queue.stale for queue in self.queues[1:])
        for rank, queue in enumerate(self.queues[1:], 1):
            if queue.call is not None:
                if not self.ray.wait([queue.call], timeout=0)[0]:
                    continue
                (stale, rows), queue.call = self.answer(queue.call, rank), None
                self.account.stale += stale - queue.stale  # whoever found them too old
                self.account.rows_dropped += rows - queue.rows
                queue.stale, queue.rows = stale, rows
            if queue.items:
                dealt = queue.items.popleft()
                queue.call = queue.actor.take.remote(list(dealt.packet.origin), dealt.packet.body)
                self.passed(dealt)  # Ray has copied it
            else:
                self.waits(rank)

    def answer(self, call: Any, rank: int) -> tuple[int, int]:
        try:
            stale, rows = self.ray.get(call)
            return stale, rows
        except deaths(self.ray) as error:
            self.talk.look()
            raise LearnerLostError(f"learner {rank} ended") from error

    def waits(self, rank: int) -> None:
        if rank not in self.waiting_for:
            self.waiting_for.append(rank)

    def publish(self, weights: Weights) -> None:
        self.reminded = 0.0
        super().publish(weights)

    def remind(self) -> None:
        """Not at every look."""
        if monotonic() - self.reminded > REMIND:
            self.reminded = monotonic()
            super().remind()

    def numbers(self) -> Mapping[str, float]:
        given = {f"fleet/given_{rank}": float(queue.given) for rank, queue in enumerate(self.queues)}
        return {**super().numbers(), **given}

    def restore(self, state: State) -> None:
        """The account has been restored: what counts for a rule is of this life."""
        super().restore(state)
        self.before = self.account.stale


class Inbox:
    """The fleet of a learner that is given its items: explorers are another's to watch, and weights to publish."""

    lockstep = False

    def __init__(self, cfg: RunConfig, lot: ItemSize) -> None:
        self.account: Account = Arrivals()
        self.broker = LocalBroker(1)

    def pull(self, timeout: float) -> Packet | None:
        """Does not wait for long: whoever deals may wait for this learner to agree with the others."""
        return self.broker.pull(min(timeout, 2 * LOOK))

    def release(self) -> None:
        """Every item has memory of its own."""

    def publish(self, weights: Weights) -> None:
        """All learners have the same; the first one publishes them."""

    def numbers(self) -> Mapping[str, float]:
        return {}

    def resize(self, explorers: int) -> None:
        """Not its to say."""

    def close(self) -> None:
        self.broker.close()

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        """There is nothing to go on from."""
