"""What travels between Explorers and Learners: items one way, weights the other, a Broker between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Weights(NamedTuple):
    """What an Explorer elsewhere needs to act as the Learner's Agent would: parameters and knobs of one version."""

    version: int  # opt steps
    knobs: Mapping[str, float]
    tensors: Mapping[str, Tensor]
    fast: bool = False  # whether the Learner's own functions are compiled by now


class Origin(NamedTuple):
    """Where an item comes from; no two items of a run have the same."""

    player: str
    explorer: int
    incarnation: int  # how often this explorer has been started anew
    sequence: int  # items of this incarnation before it
    version: int  # of the weights it was collected with


class Packet(NamedTuple):
    """An item on its way: its origin, and one contiguous piece of bytes."""

    origin: Origin
    body: Any  # bytes, or anything that shows memory as bytes


class Broker(Protocol):
    """Stands between Explorers and Learners: experience bounded, one way; weights by version, the newest wins."""

    def push(self, item: Any, origin: Origin) -> bool:
        """Hands an item over; waits while the queue is full. False: the broker is closed, and nothing was taken."""
        ...

    def pull(self, timeout: float) -> Packet | None:
        """The next item, whoever it is from; None if there was none in time. Its bytes are good until the next pull."""
        ...

    def publish(self, weights: Weights, player: str) -> None:
        """The weights to act with from now on."""
        ...

    def latest(self, player: str, newer_than: int) -> Weights | None:
        """The newest weights, None where they are not newer than a version."""
        ...

    def waiting(self) -> int:
        """How many items wait to be pulled."""
        ...

    def close(self) -> None: ...
