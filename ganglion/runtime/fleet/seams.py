"""Seams: the streams of several explorers as the one stream of rows that a replay keeps."""

from __future__ import annotations

from math import nan
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers.frames import Frames, Stack
from ganglion.buffers.storage import row_of, tree_of
from ganglion.core import Obs, Past, Progress, Row, Sink, State, join, under
from ganglion.runtime.fleet.sender import Item


class Stream(NamedTuple):
    """The item that would go on where the last one ended."""

    explorer: int
    incarnation: int
    sequence: int


class Seams:
    """Passes rows on one by one. Where an item does not continue the one before it, the old stream is cut as truncated,
    with a dead row that shows its true next observation, and the new one starts: so nothing learns across a seam.

    The last row of an item waits until it is known whether its stream goes on; in lockstep it cannot.
    """

    def __init__(self, sink: Sink, seen: Frames | None = None, hold: bool = True) -> None:
        self.sink, self.seen, self.hold = sink, seen, hold
        self.stream: Stream | None = None
        self.ahead: tuple[Obs, Past] | None = None
        self.held: Row | None = None

    def push(self, item: Item, at: Progress) -> None:
        own = Stream(item.origin.explorer, item.origin.incarnation, item.origin.sequence)
        rows = item.rows
        if self.stream is not None and self.stream != own:
            self.cut(at)
            self.lead_in(ops.select(rows, 0), at)
            rows = rows._replace(start=first_true(rows.start, bool(self.history)))
        self.stream = own._replace(sequence=own.sequence + 1)
        each = apart(rows)
        for row, ahead in zip(each, [*map(following, each[1:]), item.ahead], strict=True):
            self.follow(row, ahead, at)
        self.held, self.ahead = ops.map_tree(torch.clone, (self.held, self.ahead))  # the item's memory is used again

    @property
    def history(self) -> int:
        return 0 if self.seen is None else self.seen.history

    def follow(self, row: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        """The next row of a stream."""
        before, self.held, self.ahead = (self.held, self.ahead), row if self.hold else None, ahead
        if not self.hold:
            self.sink.push(row, ahead, at)
        elif before[0] is not None:
            assert before[1] is not None
            self.sink.push(before[0], before[1], at)

    def cut(self, at: Progress) -> None:
        """Ends the stream: whatever has not ended is truncated here."""
        assert self.ahead is not None
        if self.held is not None:
            row = self.held
            row = row._replace(truncated=row.truncated | (row.valid & ~row.terminated))
            self.sink.push(row, self.ahead, at)
            self.sink.push(dead(row, *self.ahead), self.ahead, at)
        self.held = self.ahead = None

    def lead_in(self, first: Row, at: Progress) -> None:
        """Where stacks of frames are kept frame by frame: the earlier frames of the first row, on dead rows."""
        for back in range(-self.history, 0):
            row = dead(first, self.before(first.obs, back), Past(tuple(m[None] for m in first.memory), first.start))
            row = row._replace(start=torch.full_like(row.start, back == -self.history))
            self.sink.push(row, (first.obs, Past((), first.start[None])), at)

    def before(self, obs: Obs, back: int) -> Obs:
        assert self.seen is not None
        return self.seen.change(obs, lambda x, stack: earlier(x, stack, back))

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
        self.stream = Stream(*stream) if stream else None
        self.held = row_of(held) if held else None
        if ahead := under(state, "ahead").tensors:
            tree = tree_of(ahead)
            self.ahead = tree["obs"], Past(tree["memory"], tree["start"])


def apart(rows: Row) -> list[Row]:
    """Rows [T, B, ...] one by one: every leaf is split once, and not at every row."""
    split: Any = ops.map_tree(lambda x: list(x.unbind()), rows)
    return [ops.map_tree(itemgetter(t), split) for t in range(len(rows.reward))]


def following(row: Row) -> tuple[Obs, Past]:
    """What a row starts from."""
    return row.obs, Past(tuple(m[None] for m in row.memory), row.start[None])


def first_true(start: Tensor, led_in: bool) -> Tensor:
    """Starts [T, B] with the first row one, unless rows before it lead in."""
    return start if led_in else torch.cat([torch.ones_like(start[:1]), start[1:]])


def dead(like: Row, obs: Obs, past: Past) -> Row:
    """A row that only shows an observation; nobody has said what to expect of it."""
    row: Row = ops.zeros(like)
    extras = {name: x + nan if x.is_floating_point() else x for name, x in row.extras.items()}
    return row._replace(obs=obs, extras=extras, memory=tuple(m[0] for m in past.memory))


def earlier(x: Tensor, stack: Stack, back: int) -> Tensor:
    """The stack [B, ...] of `back` (below 0) rows before this one, its first frame repeated before that."""
    frames = x.split(stack.size, 1 + stack.axis)
    return torch.cat([frames[max(0, j + back)] for j in range(stack.frames)], 1 + stack.axis)
