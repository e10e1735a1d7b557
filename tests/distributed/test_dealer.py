"""Which learner an item goes to: what each receives, by each rule; and what holds up whom."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, get_args

import numpy as np
import pytest

from ganglion.config.run import FleetSection
from ganglion.core import Origin, Packet, State
from ganglion.fleet.dealer import RULES, SLACK, Dealer, LearnerQueue, LearnerQueues
from ganglion.fleet.receiver import Arrivals, ExplorerLife


def test_broadcast_is_everything_to_everyone() -> None:
    assert RULES["broadcast"](3, LearnerQueues([5, 0, 1], [2])) == (0, 1, 2)


def test_divide_is_by_explorer() -> None:
    to = [RULES["divide"](explorer, LearnerQueues([9, 0], [])) for explorer in range(5)]
    assert to == [(0,), (1,), (0,), (1,), (0,)]


def test_first_served_is_who_has_waited_longest() -> None:
    assert RULES["first-served"](0, LearnerQueues([9, 0, 0], [2, 0])) == (2,)
    assert RULES["first-served"](0, LearnerQueues([9, 0, 0], [])) == ()


def test_equal_is_who_has_fewest() -> None:
    received = [0, 0, 0]
    for _ in range(8):
        (to,) = RULES["equal"](7, LearnerQueues(received, [1]))
        received[to] += 1
    assert received == [3, 3, 2]


def test_every_rule_is_a_setting() -> None:
    assert set(RULES) == set(get_args(FleetSection.model_fields["rule"].annotation))


# ------------------------------------------------------------ dealing


class Walker:
    """An explorer that always has the next item."""

    def __init__(self, explorer: int) -> None:
        self.explorer, self.sequence, self.held = explorer, 0, 0


class Elsewhere:
    """A learner that keeps what it is given, and has room for `room` items."""

    def __init__(self, room: int) -> None:
        self.room, self.items, self.stale = room, list[Origin](), 0
        self.take = self

    def remote(self, origin: list[Any], body: Any) -> Elsewhere:
        self.items.append(Origin(*origin))
        return self


class Table(Dealer):
    """A Dealer without Ray: explorers in equal turns, each with one item that is not yet stored."""

    def __init__(self, rule: str, explorers: int, rooms: list[int]) -> None:
        self.account = self.arrivals = Arrivals()
        self.account.newest = 0
        self.account.places = {ExplorerLife("main", explorer, 0) for explorer in range(explorers)}
        self.rule, self.last, self.taken = RULES[rule], None, None
        self.queues = [LearnerQueue(), *(LearnerQueue(Elsewhere(room)) for room in rooms)]
        self.waiting_for, self.before = [], 0
        self.hear = lambda packet: True
        self.explorer_processes = deque(Walker(explorer) for explorer in range(explorers))
        self.memory = np.zeros(4, np.uint8)  # that explorers write into again and again
        self.ray: Any = self
        self.talk: Any = lambda call, *_: call()

    def arrived(self, timeout: float) -> Packet | None:
        for _ in range(len(self.explorer_processes)):
            self.explorer_processes.rotate(-1)
            explorer_process = self.explorer_processes[0]
            if not explorer_process.held:
                explorer_process.held, explorer_process.sequence = 1, explorer_process.sequence + 1
                self.taken = explorer_process  # type: ignore[assignment]
                return Packet(
                    Origin("main", explorer_process.explorer, 0, explorer_process.sequence - 1, 0), self.memory
                )
        return None

    def free(self, member: Any) -> None:
        member.held -= 1

    def release(self) -> None:
        last, self.last = self.last, None
        if last is not None:
            self.passed(last)

    def wait(self, calls: list[Any], timeout: float) -> Any:
        """Ray's."""
        (call,) = calls
        return ([call], []) if len(call.items) < call.room else ([], [call])

    def get(self, call: Any) -> tuple[int, int]:
        return call.stale, 8 * call.stale


def pulled(table: Table, count: int) -> list[Origin]:
    found = []
    for _ in range(count):
        packet = table.pull(1.0)
        assert packet is not None
        found.append(packet.origin)
    table.release()
    return found


@pytest.mark.parametrize("rule", RULES)
def test_what_each_learner_receives(rule: str) -> None:
    """Three learners, three explorers: nothing is lost, and nobody is given an item twice."""
    table = Table(rule, 3, [1_000, 1_000])
    received = [pulled(table, 20), *(queue.actor.items for queue in table.queues[1:])]
    for items in received:
        assert len(items) == len(set(items)) >= 18
        for explorer in range(3):
            numbers = [item.sequence for item in items if item.explorer == explorer]
            assert numbers == sorted(numbers)
    if rule == "broadcast":
        assert received[0] == received[1][:20] == received[2][:20]
    else:
        assert not set(received[0]) & set(received[1]) and not set(received[1]) & set(received[2])
        whole = set().union(*received)
        assert Counter(item.explorer for item in whole).total() == table.account.received - len(table.queues[0].items)
    if rule == "divide":
        assert [{item.explorer for item in items} for items in received] == [{0}, {1}, {2}]
    if rule == "equal":
        assert max(map(len, received)) - min(map(len, received)) <= 1
    assert table.account.lost == table.account.duplicated == 0


def test_what_is_no_item_goes_to_nobody_and_holds_up_no_explorer() -> None:
    """The first learner opens what others will be given."""
    table = Table("divide", 2, [1_000])
    table.hear = lambda packet: packet.origin.sequence % 2 == 0
    pulled(table, 20)
    (other,) = table.queues[1:]
    assert len(other.actor.items) > 5 and all(item.sequence % 2 == 0 for item in other.actor.items)


def test_a_learner_that_takes_nothing_holds_up_only_its_explorers() -> None:
    table = Table("divide", 2, [1])
    assert {item.explorer for item in pulled(table, 50)} == {0}
    (other,) = table.queues[1:]
    assert len(other.actor.items) == 1 and len(other.items) == SLACK + 1  # the last one holds its explorer
    assert not any(np.shares_memory(dealt.packet.body, table.memory) for dealt in other.items)
    assert (
        next(explorer_process for explorer_process in table.explorer_processes if explorer_process.explorer == 1).held
        == 1
    )


def test_one_that_has_enough_serves_the_others() -> None:
    table = Table("equal", 1, [1_000])
    for _ in range(2 * SLACK):
        table.serve()
    assert len(table.queues[1].actor.items) == len(table.queues[0].items) == SLACK


def test_nobody_waits() -> None:
    table = Table("first-served", 2, [1])
    for _ in range(5):
        table.serve()
    assert table.account.received == 1  # it is being taken; nobody asked for another


def test_what_any_learner_finds_too_old_is_told_and_made_up_for() -> None:
    table = Table("equal", 2, [1_000])
    pulled(table, 10)
    table.queues[1].actor.stale = 3
    table.account.stale += 2  # the first one's own
    pulled(table, 10)
    first, other = table.queues
    assert (first.stale, other.stale) == (2, 3) and "5 stale" in table.account.line()
    assert table.account.numbers()["fleet/rows_dropped"] == 24  # and those that the first one counts
    assert abs((first.given - 2) - (other.given - 3)) <= 1


def test_what_was_too_old_before_a_resume_is_not_made_up_for() -> None:
    """Else the first learner is given as many items more, has no use for them, and all explorers wait for it."""
    table = Table("equal", 2, [1_000])
    table.account.stale = 50
    table.restore(State({}, {"lives": [0, 0]}))
    for _ in range(2 * SLACK):
        table.serve()
    assert len(table.queues[1].actor.items) == len(table.queues[0].items) == SLACK
