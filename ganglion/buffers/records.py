"""Records: the small leaves of a row as bytes side by side, so that one visit to main memory brings them all."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import compiled
from ganglion.core import Row
from ganglion.errors import UserError

LINE = 64  # bytes that memory hands out at once


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for `shape[0]` rows; where there is none, the user hears which settings ask for it."""
    size = prod(shape) * dtype.itemsize
    try:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        # The system's own zeros: a page costs memory when it is first written, which torch.zeros does at once; and
        # numpy asks for huge pages, which random reading gains from.
        raw = np.zeros(size + LINE, np.uint8)
        first = -raw.ctypes.data % LINE
        return torch.from_numpy(raw[first : first + size]).view(dtype).view(shape)
    except (RuntimeError, MemoryError, ValueError) as error:  # of any allocator
        raise UserError(
            f"algo.replay.capacity or algo.horizon: no room for {shape[0]:,} rows ({size / 1e9:,.1f} GB) on {device}."
        ) from error


class Layout(NamedTuple):
    """Where each leaf of a row lies in its record."""

    tree: Any  # of (first byte, bytes, dtype, shape)
    width: int

    @classmethod
    def of(cls, tree: Any) -> Layout:
        """Widest types first, so that every leaf is aligned. Leaves are [B, ...]."""
        leaves, first, places = ops.leaves(tree), 0, {}
        for i in sorted(range(len(leaves)), key=lambda i: -leaves[i].dtype.itemsize):
            shape = leaves[i].shape[1:]
            size = prod(shape) * leaves[i].dtype.itemsize
            places[i] = [first, size, leaves[i].dtype, shape]  # a list is a leaf
            first += size
        order = iter(range(len(leaves)))
        width = min(1 << (first - 1).bit_length(), -(-first // LINE) * LINE)  # no more lines than it must touch
        return cls(ops.map_tree(lambda _: places[next(order)], tree), width)

    def views(self, records: Tensor) -> Any:
        """Bytes [..., width] as the tree of leaves [..., *shape], nothing copied."""

        def view(place: list[Any]) -> Tensor:
            first, size, dtype, shape = place
            typed = records[..., first : first + size].view(dtype)
            return typed.unflatten(-1, shape) if shape else typed.squeeze(-1)

        return ops.map_tree(view, self.tree)


class Derived(NamedTuple):
    """What follows from a row's flags, as the numbers that learning needs; computed once, when the row is stored."""

    discount: Tensor  # gamma, 0 where terminated
    live: Tensor  # 1, 0 where not valid


class Stage:
    """One record of every slot, put together and stored: by compiled code, or beside the ring and with one copy."""

    def __init__(self, layout: Layout, records: Tensor, gamma: float, row: Row) -> None:
        came, host = row.reward.device, records.device.type == "cpu"
        self.record = zeros(tuple(records.shape[1:]), torch.uint8, came)
        if came.type == "cpu" and not host:
            self.record = self.record.pin_memory()  # one transfer a row
        self.packs = layout.tree[0].obs is not None
        views, derived = layout.views(self.record)
        self.leaves, self.records = ops.leaves(views), records
        self.arrays = [x.numpy() for x in (records, self.record)] if host else []
        fits = host and came.type == "cpu" and derived.discount.dtype == torch.float32
        code = compiled.code() if fits else None
        self.quick = Quick(code, layout, records, gamma, self.leaves) if code else None
        self.flags: list[Any] = [views.terminated, views.valid, *derived]
        if came.type == "cpu":  # numpy writes small things sooner
            self.flags = [x.numpy() for x in self.flags]
        self.gamma = gamma

    def store(self, row: Row, at: int) -> None:
        small = row if self.packs and not row.memory else row._replace(obs=row.obs if self.packs else None, memory=())
        leaves = ops.leaves(small)
        if self.quick is not None and self.quick(leaves, at):
            return
        torch._foreach_copy_(self.leaves, leaves)
        terminated, valid, discount, live = self.flags
        discount[:] = ~terminated * self.gamma
        live[:] = valid
        if self.arrays:
            self.arrays[0][at] = self.arrays[1]
        else:
            self.records[at].copy_(self.record)


class Quick:
    """The same by compiled code, for leaves that lie in memory as they are kept."""

    def __init__(self, code: Any, layout: Layout, records: Tensor, gamma: float, leaves: list[Tensor]) -> None:
        self.code, (row, derived) = code, layout.tree
        places = [number for first, size, *_ in ops.leaves(row) for number in (first, size)]
        flags = [place[0] for place in (row.terminated, row.valid, *derived)]
        self.kinds = [(x.dtype, x.shape) for x in leaves]
        self.places, self.flags = (torch.tensor(numbers, dtype=torch.int64) for numbers in (places, flags))
        self.pointers = torch.zeros(len(leaves), dtype=torch.int64)
        self.from_, self.first, self.size = self.pointers.numpy(), records.data_ptr(), records[0].nbytes
        shape = records.shape[2], records.shape[1], self.pointers.data_ptr()
        self.rest = *shape, self.places.data_ptr(), len(leaves), self.flags.data_ptr(), gamma

    def __call__(self, leaves: list[Tensor], at: int) -> bool:
        """Whether it could store them."""
        found = []
        for x, (dtype, shape) in zip(leaves, self.kinds, strict=True):
            if x.dtype is not dtype or x.shape != shape or not x.is_contiguous() or not x.is_cpu:
                return False
            found.append(x.data_ptr())
        self.from_[:] = found
        self.code.store(self.first + at * self.size, *self.rest)
        return True


class Records:
    """The records at given positions and in the rows after them, time after time into the same memory."""

    def __init__(self, records: Tensor, rows: int, count: int) -> None:
        length, slots, width = records.shape
        self.shape, self.slots, self.size, self.width = (rows, count), slots, length * slots, width
        self.out = records.new_empty((rows, count, width))
        self.source, self.rows = records.view(-1, width), self.out.view(-1, width)
        self.order = torch.arange(rows, device=records.device)[:, None] * slots
        host = records.device.type == "cpu"
        self.code = compiled.code() if host else None
        self.arrays = [x.numpy() for x in (self.source, self.rows)] if host else []
        self.from_, self.to = self.source.data_ptr(), self.out.data_ptr()

    def __call__(self, index: Tensor) -> None:
        if self.code:
            (rows, n), index = self.shape, index.contiguous()
            self.code.fetch(self.from_, self.width, self.size, self.slots, index.data_ptr(), n, rows, self.to)
            return
        where = (index + self.order).remainder_(self.size).view(-1)
        if self.arrays:  # of narrow rows numpy copies several while torch does one
            self.arrays[0].take(where.numpy(), 0, self.arrays[1], "clip")
        else:
            torch.index_select(self.source, 0, where, out=self.rows)
