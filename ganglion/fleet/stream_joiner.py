"""Joins the streams of several explorers in one buffer: where rows of another follow, the old stream is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ganglion import ops
from ganglion.buffers.frames import WHOLE
from ganglion.buffers.storage import dead, part, row_of, tree_of
from ganglion.core import Obs, Past, Progress, Row, Sink, State, join, under
from ganglion.fleet.remote_explorer import Item


class ItemStream(NamedTuple):
    """The item that would go on where the last one ended."""

    explorer: int
    incarnation: int
    sequence: int


class StreamJoiner:
    """Passes rows on. Where an item does not continue the one before it, the old stream is cut as truncated, with a
    dead row that shows its true next observation, and the new one starts: so nothing learns across a seam.

    The last row of an item waits until it is known whether its stream goes on; in lockstep it cannot.
    """

    def __init__(self, sink: Sink, restarted: Callable[[Row], Row] = WHOLE.restarted, hold: bool = True) -> None:
        self.sink, self.restarted, self.hold = sink, restarted, hold
        self.stream: ItemStream | None = None
        self.ahead: tuple[Obs, Past] | None = None
        self.held: Row | None = None  # [1, B, ...]

    def push(self, item: Item, at: Progress) -> None:
        own = ItemStream(item.origin.explorer, item.origin.incarnation, item.origin.sequence)
        rows = item.rows
        if self.stream is not None and self.stream != own:
            self.cut(at)
            rows = self.restarted(rows)
        self.stream = own._replace(sequence=own.sequence + 1)
        if not self.hold:
            self.sink.push(rows, item.ahead, at)
            return
        count = len(rows.reward)
        if self.held is not None:
            self.sink.push(self.held, begins(rows), at)
        if count > 1:
            self.sink.push(part(rows, 0, count - 1), begins(part(rows, count - 1, count)), at)
        last = part(rows, count - 1, count), item.ahead
        self.held, self.ahead = ops.map_tree(torch.clone, last)  # the item's memory is used again

    def cut(self, at: Progress) -> None:
        """Ends the stream: whatever has not ended is truncated here."""
        if self.held is not None and self.ahead is not None:
            row, (obs, past) = self.held, self.ahead
            row = row._replace(truncated=row.truncated | (row.valid & ~row.terminated))
            self.sink.push(row, self.ahead, at)
            self.sink.push(dead(row, ops.map_tree(lambda x: x[None], obs), past.memory), self.ahead, at)
        self.held = self.ahead = None

    # ------------------------------------------------------------ state

    def state(self) -> State:
        parts = {"own": State({}, {"stream": self.stream and list(self.stream)})}
        if self.held is not None:
            parts["held"] = State(ops.flatten_names(self.held))
        if self.ahead is not None:
            obs, past = self.ahead
            tree = {"obs": obs, "start": past.start, "memory": past.memory}
            parts["ahead"] = State(ops.flatten_names(tree))
        return join(parts)

    def restore(self, state: State) -> None:
        stream, held = under(state, "own").scalars.get("stream"), under(state, "held").tensors
        self.stream = ItemStream(*stream) if stream else None
        self.held = row_of(held) if held else None
        if ahead := under(state, "ahead").tensors:
            tree = tree_of(ahead)
            self.ahead = tree["obs"], Past(tree["memory"], tree["start"])


def begins(rows: Row) -> tuple[Obs, Past]:
    """What the first of these rows starts from."""
    first: Row = part(rows, 0, 1)
    return ops.select(first.obs, 0), Past(first.memory, first.start)
