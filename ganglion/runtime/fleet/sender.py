"""The sink of an Explorer elsewhere: gathers rows into items; and an item as it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import RolloutBuffer
from ganglion.buffers.storage import row_of, tree_of
from ganglion.core import Episode, Obs, Origin, Past, Progress, Row, State, under
from ganglion.runtime.fleet.parcel import PLAIN, Bytes, Codec, Room, pack, unpack


class Lot(NamedTuple):
    """How much is an item, and how it is compressed."""

    rows: int
    codec: Codec = PLAIN
    most: int = 0  # bytes of one, for whoever receives them


class Item(NamedTuple):
    """Consecutive rows of one explorer, what follows them, and what else happened on the way."""

    origin: Origin
    rows: Row  # [T, B, ...]
    ahead: tuple[Obs, Past]
    episodes: tuple[Episode, ...]
    about: Mapping[str, Any]


class Sender:
    """Keeps rows until there are enough for an item."""

    def __init__(self, lot: Lot, origin: Origin) -> None:
        self.lot, self.origin = lot, origin
        self.kept = RolloutBuffer(lot.rows, 1.0, torch.device("cpu"))
        self.ahead: tuple[Obs, Past] | None = None

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        self.kept.push(rows, ahead, at)
        self.ahead = ahead

    def room(self, at: Progress, slots: int) -> int:
        """One row: newer weights are looked for before each."""
        return 1

    @property
    def full(self) -> bool:
        return self.kept.ready()

    @property
    def empty(self) -> bool:
        return self.kept.room() == self.lot.rows

    def seal(self, episodes: list[Episode], about: Mapping[str, Any], room: Room | None = None) -> tuple[Bytes, Origin]:
        """The item as bytes, and its origin; the next one begins."""
        assert self.ahead is not None
        obs, past = self.ahead
        ahead = {"obs": obs, "start": past.start, "memory": past.memory}
        tensors = ops.flatten_names({"rows": self.kept.rows(), "ahead": ahead})
        played = [[e.slot, float(e.total), float(e.length), numbers(e.info), e.many] for e in episodes]
        parcel = pack({"origin": list(self.origin), "episodes": played, **about}, tensors, self.lot.codec, room)
        sent, self.origin = self.origin, self.origin._replace(sequence=self.origin.sequence + 1)
        self.kept.release()
        return parcel, sent


def numbers(info: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in info.items()}


def read(body: Any) -> Item:
    """The item that was sealed; its tensors are views of the bytes. For bytes of our own: see `items.Expected`."""
    return item_of(*unpack(body))


def item_of(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Item:
    """The item of a parcel."""
    rows, ahead = row_of(under(State(tensors), "rows").tensors), tree_of(under(State(tensors), "ahead").tensors)
    played = tuple(Episode(*episode) for episode in about.pop("episodes"))
    past = Past(ahead["memory"], ahead["start"])
    return Item(Origin(*about.pop("origin")), rows, (ahead["obs"], past), played, about)
