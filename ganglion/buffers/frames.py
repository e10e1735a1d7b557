"""Observations as a replay keeps them: whole, or, where they are stacks of frames, each frame once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import row_kernels
from ganglion.buffers.storage import Fetched, SampledRing, dead, part
from ganglion.core import Box, Composite, EnvSpec, Obs, Row, Space

BACK = "back"  # among a row's extras: how many rows back the oldest frame of its stack lies, [T, B] uint8
CHECKED = 16  # first rows whose stack is put together again and compared


class Whole:
    """Observations as they come."""

    history = 0  # earlier rows that an observation needs
    checked = CHECKED

    def store(self, rows: Row, ring: SampledRing) -> None:
        """Stores rows [T, B, ...]."""
        ring.push(rows)

    def restarted(self, rows: Row) -> Row:
        """Rows that do not follow those stored before, as they should be stored."""
        return rows._replace(start=torch.cat([torch.ones_like(rows.start[:1]), rows.start[1:]]))

    def read(self, ring: SampledRing, where: Tensor) -> Obs:
        """The observations at flat positions [T, N]."""
        return ring.read(ring.held.obs, where, "obs")

    def along(self, ring: SampledRing, index: Tensor, got: Fetched, whole: bool) -> tuple[Obs, Obs]:
        """The observations of the first rows from flat positions [1, N] on, and of all but the first; got: what else
        lies there.

        Without `whole` what follows a dead row does not matter.
        """
        if ring.pack:
            return got.first.obs, got.rest.obs
        seen, length = self.read(ring, ring.span(index, got)), got.first.reward.shape[0]
        return ops.map_tree(lambda x: x[:length], seen), ops.map_tree(lambda x: x[1:], seen)

    def pairs(self, ring: SampledRing, index: Tensor, got: Fetched, later: Tensor) -> tuple[Obs, Obs]:
        """The observations of the first rows, and those `later` rows after the first, [T, N]."""
        span, half = ring.span(index, got), len(later)
        if ring.pack:
            after = ring.fetch(span.gather(0, later).view(1, -1), 1, 1).rows.obs
            return got.first.obs, ops.map_tree(lambda x: x.view(*later.shape, *x.shape[2:]), after)
        both = self.read(ring, torch.cat([span[:half], span.gather(0, later)]))
        return ops.map_tree(lambda x: x[:half], both), ops.map_tree(lambda x: x[half:], both)


WHOLE = Whole()


class FrameStacking(NamedTuple):
    """How frames are joined in one leaf of an observation."""

    axis: int  # of the leaf
    size: int  # of one frame along it
    frames: int


class Frames(Whole):
    """Stacks of frames, kept as their newest frame and put together when sampled.

    The stack of row t is the frames of rows t - min(k, back[t]), k = count - 1 .. 0, where back[t] counts the rows
    since the episode's start: `FrameStack` repeats the first frame there.
    """

    def __init__(self, stacks: dict[str, FrameStacking], slots: int, device: torch.device) -> None:
        self.stacks, self.slots = stacks, slots
        self.count = max(stack.frames for stack in stacks.values())
        self.history = self.count - 1
        self.code = row_kernels.code() if device.type == "cpu" else None
        self.shown: tuple[list[Tensor], tuple[Obs, Obs]] | None = None  # leaves that were gathered, and views of them
        self.ages = torch.arange(self.history, -1, -1, device=device)  # of the frames in a stack

    def store(self, rows: Row, ring: SampledRing) -> None:
        """With the newest frame of every stack, and how far the oldest lies back."""
        if BACK in rows.extras:
            raise ValueError(f"extras: {BACK!r} is what a replay of frames keeps of its own; give it another name")
        back = self.back(rows.start, ring)
        obs = self.change(rows.obs, lambda x, s: x.narrow(2 + s.axis, x.shape[2 + s.axis] - s.size, s.size))
        ring.push(rows._replace(obs=obs, extras={**rows.extras, BACK: back}))
        if ring.pushed - len(rows.start) < self.checked:
            self.check(rows, ring)

    def back(self, start: Tensor, ring: SampledRing) -> Tensor:
        """How many rows of its episode came before each row [T, B], at most as many as a stack needs."""
        if not ring.pushed:
            start, before = torch.cat([torch.ones_like(start[:1]), start[1:]]), torch.zeros_like(start[:1]).byte()
        else:
            newest = (ring.pushed - 1) % ring.length
            before = ring.held.extras[BACK][newest : newest + 1].to(start.device)
        if start.shape[0] == 1:
            return (before + 1).clamp_(max=self.history).masked_fill_(start, 0)
        times = torch.arange(len(start), device=start.device)[:, None]
        began = torch.where(start, times, -1 - before.long()).cummax(0).values  # the row in which its episode began
        return (times - began).clamp_(max=self.history).byte()

    def restarted(self, rows: Row) -> Row:
        """After dead rows that hold the earlier frames of the first: its episode is under way."""
        first, rest = part(rows, 0, 1), list[Row]()
        for back in range(self.history, 0, -1):
            row = dead(first, self.earlier(first.obs, back), first.memory)
            rest.append(row._replace(start=torch.full_like(row.start, back == self.history)))
        joined: Row = ops.concat([*rest, rows])
        return joined

    def earlier(self, obs: Obs, back: int) -> Obs:
        """The stacks of `back` rows before, their first frame repeated before that."""

        def shifted(x: Tensor, stack: FrameStacking) -> Tensor:
            frames = x.split(stack.size, 2 + stack.axis)
            return torch.cat([frames[max(0, j - back)] for j in range(stack.frames)], 2 + stack.axis)

        return self.change(obs, shifted)

    def change(self, obs: Obs, change: Callable[[Tensor, FrameStacking], Tensor]) -> Obs:
        if isinstance(obs, Tensor):
            return change(obs, self.stacks[""])
        named = ops.flatten_names(obs).items()
        return ops.unflatten(obs, {k: change(x, self.stacks[k]) if k in self.stacks else x for k, x in named})

    def read(self, ring: SampledRing, where: Tensor) -> Obs:
        back = ring.held.extras[BACK].flatten(0, 1).take(where)
        read = self.gather(ring, lambda: where, self.places(ring, where, back))
        return self.join(ring, read, slice(None), slice(None))

    def along(self, ring: SampledRing, index: Tensor, got: Fetched, whole: bool) -> tuple[Obs, Obs]:
        """Two stacks in a row share all frames but one: both are views of the count + 1 frames that are gathered."""
        if whole or len(got.rows.reward) > 2:
            return super().along(ring, index, got, whole)
        read = self.gather(ring, lambda: ring.span(index, got), self.window(ring, index, got.first.extras[BACK]))
        leaves = list(read.values())
        if self.shown is None or any(x is not y for x, y in zip(self.shown[0], leaves)):
            now = self.join(ring, read, slice(0, 1), slice(0, self.count))
            both = now, self.join(ring, read, slice(1, 2), slice(1, None))
            if not all(x._is_view() for x in ops.leaves(both)):
                return both
            self.shown = leaves, both
        return self.shown[1]

    def window(self, ring: SampledRing, index: Tensor, back: Tensor) -> Tensor:
        """Where the frames of the stacks at flat positions [1, N] lie, and the frame after them: [1, N, count + 1]."""
        if not self.code:
            after = (index + self.slots) % (ring.length * self.slots)
            return torch.cat([self.places(ring, index, back), ring.by_slot(after)[..., None]], -1)
        n, index = index.numel(), index.contiguous()
        out = torch.empty(1, n, self.count + 1, dtype=torch.int64)
        backs = back.data_ptr(), back.stride(-1)
        self.code.frames(index.data_ptr(), n, self.slots, ring.length, *backs, self.count, out.data_ptr())
        return out

    def places(self, ring: SampledRing, where: Tensor, back: Tensor) -> Tensor:
        """Where the frames of each stack lie, counted slot after slot, [T, N, count]."""
        ago = torch.minimum(self.ages, back.unsqueeze(-1))
        return ring.by_slot((where.unsqueeze(-1) - ago * self.slots) % (ring.length * self.slots))

    def gather(self, ring: SampledRing, where: Callable[[], Tensor], frames: Tensor) -> dict[str, Tensor]:
        """Each leaf by name: at flat positions `where()`, or, of a stack, at `frames`, counted slot after slot."""
        named = ops.flatten_names(ring.held.obs)
        stacks = {name: x for name, x in named.items() if name in self.stacks}
        others = {name: x for name, x in named.items() if name not in self.stacks}
        read = ring.read_at(stacks, frames, "frames")
        return {**read, **ring.read(others, where(), "obs")} if others else read

    def join(self, ring: SampledRing, got: dict[str, Tensor], rows: slice, frames: slice) -> Obs:
        """Frames [T, N, count, ...] joined along their axis; a view where that is the first."""

        def joined(x: Tensor, stack: FrameStacking) -> Tensor:
            axis = 2 + stack.axis
            return x[:, :, frames].movedim(2, axis).flatten(axis, axis + 1)

        named = {k: joined(x, self.stacks[k]) if k in self.stacks else x[rows] for k, x in got.items()}
        return ops.unflatten(ring.held.obs, named)

    def check(self, rows: Row, ring: SampledRing) -> None:
        """Refuses rows that would not be given back as they came."""
        count = len(rows.start)
        first = (ring.pushed - count) * self.slots
        places = (torch.arange(count * self.slots, device=ring.device) + first) % (ring.length * self.slots)
        again = self.read(ring, places.view(count, self.slots))
        seen = zip(ops.leaves(again), ops.leaves(rows.obs), strict=True)
        if not all(torch.equal(x, y.to(x.device)) for x, y in seen):
            raise ValueError(
                "the environment says that its observations are stacks of frames (EnvSpec.frame), and they are not: "
                "a wrapper that changes what FrameStack shows should set `frame` to None"
            )


def keeper(spec: EnvSpec, device: torch.device) -> Whole:
    """How a replay keeps the observations of an environment."""
    stacks = {} if spec.frame is None else find_stacks(spec.obs, spec.frame)
    return Frames(stacks, spec.slots, device) if stacks else WHOLE


def find_stacks(obs: Space, frame: Space, name: str = "") -> dict[str, FrameStacking]:
    """Each leaf of `obs` that is several of the leaf of `frame` along an axis, by its name."""
    if isinstance(obs, Composite) and isinstance(frame, Composite):
        parts = [find_stacks(obs.items[k], frame.items[k], f"{name}/{k}" if name else k) for k in obs.items]
        return {k: stack for part in parts for k, stack in part.items()}
    if not isinstance(obs, Box) or not isinstance(frame, Box) or obs.shape == frame.shape:
        return {}
    single = (1, *frame.shape) if len(frame.shape) < len(obs.shape) else frame.shape  # a grey image gets a channel
    axis = next(i for i, (many, one) in enumerate(zip(obs.shape, single, strict=True)) if many != one)
    return {name: FrameStacking(axis, single[axis], obs.shape[axis] // single[axis])}
