"""The broker of one process: a bounded queue of items, and the newest weights of each player; safe among threads."""

from __future__ import annotations

from collections import deque
from threading import Condition
from typing import Any

from ganglion.core import Origin, Weights
from ganglion.exchange import Packet


class LocalBroker:
    """Items in the order they came, at most `size` of them: who pushes one more waits until one is pulled."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.items: deque[Packet] = deque()
        self.weights: dict[str, Weights] = {}
        self.changed = Condition()
        self.closed = False

    def push(self, item: Any, origin: Origin) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.size)
            if self.closed:
                return False
            self.items.append(Packet(origin, item))
            self.changed.notify_all()
            return True

    def pull(self, timeout: float) -> Packet | None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.closed or bool(self.items), timeout) or not self.items:
                return None
            packet = self.items.popleft()
            self.changed.notify_all()
            return packet

    def publish(self, weights: Weights, player: str) -> None:
        with self.changed:
            self.weights[player] = weights
            self.changed.notify_all()

    def latest(self, player: str, newer_than: int) -> Weights | None:
        with self.changed:
            weights = self.weights.get(player)
            return weights if weights is not None and weights.version > newer_than else None

    def waiting(self) -> int:
        return len(self.items)

    def close(self) -> None:
        """Lets everyone go who waits: nothing more is taken."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
