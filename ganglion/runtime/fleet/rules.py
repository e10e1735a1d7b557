"""Rules by which items are distributed among several learners: XingTian's four."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Desks(NamedTuple):
    """What is known of the learners when an item has come."""

    received: Sequence[int]  # items that each has been given and has kept
    waiting: Sequence[int]  # the learners that wait for an item, longest first


Rule = Callable[[int, Desks], tuple[int, ...]]


def broadcast(explorer: int, desks: Desks) -> tuple[int, ...]:
    """Every item to every learner: each has all rows, and draws other ones from them."""
    return tuple(range(len(desks.received)))


def divide(explorer: int, desks: Desks) -> tuple[int, ...]:
    """Explorers are divided: all items of one go to the same learner."""
    return (explorer % len(desks.received),)


def first_served(explorer: int, desks: Desks) -> tuple[int, ...]:
    """To the learner that has waited longest; to nobody while none waits."""
    return tuple(desks.waiting[:1])


def equal(explorer: int, desks: Desks) -> tuple[int, ...]:
    """To the learner that has been given the fewest, so that all have as many."""
    return (desks.received.index(min(desks.received)),)


RULES: dict[str, Rule] = {"broadcast": broadcast, "divide": divide, "first-served": first_served, "equal": equal}
