"""Rows on a ring: preallocated arrays, written once, gathered when sampled into memory that is used again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_int64
from math import nan, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import row_kernels
from ganglion.core import Memory, Obs, Ring, Row, State, read_count
from ganglion.errors import UserError
from ganglion.torch_private import foreach_copy_

LINE = 64  # bytes that memory hands out at once
NARROW = 512  # bytes of a row that are better copied beside others
SHORT = 4_096  # rows of a ring whose places are made beforehand


class RowRing:
    """The last `length` rows of B slots, each leaf an array [length, B, ...]. Allocated by the first rows pushed."""

    def __init__(self, length: int, device: torch.device, block: int = 256) -> None:
        self.length, self.device, self.block = length, device, block
        self.rows: Row | None = None
        self.leaves: list[Tensor] = []
        self.places: list[tuple[Tensor, ...]] = []  # where each row goes, for rings so short that they are kept
        self.pushed = 0  # rows ever pushed

    def push(self, rows: Row) -> None:
        """Stores rows [T, B, ...]; they take the places of the oldest."""
        if self.rows is None:
            self.hold(self.allocate(rows))
        count, at = rows.reward.shape[0], self.pushed % self.length
        if (left := self.length - at) < count:  # the rest goes where the ring begins
            self.push(part(rows, 0, left))
            self.push(part(rows, left, count))
        else:
            self.write(rows, at, count)
            self.pushed += count

    def write(self, rows: Row, at: int, count: int) -> None:
        """Stores rows that fit before the end of the ring."""
        kept = self.places[at] if self.places and count == 1 else [x[at : at + count] for x in self.leaves]
        foreach_copy_(kept, ops.leaves(rows))

    def allocate(self, rows: Row) -> Row:
        """Arrays for `length` rows like these [T, B, ...]."""
        made: Row = ops.map_tree(lambda x: zeros((self.length, *x.shape[1:]), x.dtype, self.device), rows)
        return made

    def hold(self, rows: Row) -> None:
        self.rows, self.leaves = rows, ops.leaves(rows)
        self.places = list(zip(*(x.split(1) for x in self.leaves))) if self.length <= SHORT else []

    @property
    def filled(self) -> int:
        return min(self.pushed, self.length)

    def stamps(self) -> tuple[int, ...]:
        """Per block, how many rows had been pushed when it last changed."""
        newest = self.pushed - 1
        stamps = []
        for first in range(0, self.length, self.block):
            last = min(first + self.block, self.length) - 1
            ago = (newest % self.length - last) % self.length  # pushes since position `last` was written
            inside = first <= newest % self.length <= last
            stamps.append(newest + 1 if inside else max(newest - ago + 1, 0))
        return tuple(stamps) if self.pushed else (0,) * len(stamps)

    def state(self) -> State:
        rings = {} if self.rows is None else {"rows": Ring(ops.flatten_names(self.rows), self.block, self.stamps())}
        return State({}, {"pushed": self.pushed}, rings)

    def restore(self, state: State) -> None:
        if (rows := self.saved(state)) is not None:
            self.hold(rows)

    def saved(self, state: State) -> Row | None:
        """The rows of a state, which are as many as it says."""
        self.pushed = read_count(state.scalars["pushed"])
        if "rows" not in state.rings:
            return None
        if state.rings["rows"].stamps != self.stamps():
            raise ValueError(f"{self.pushed} rows do not leave blocks of these stamps")
        return row_of({k: v.to(self.device) for k, v in state.rings["rows"].arrays.items()})


class SampledRing(RowRing):
    """A ring whose rows are drawn at random: all small leaves of a row lie side by side, so that one gather, and one
    visit to main memory, brings them all. Memories have arrays of their own, and so have observations, unless they are
    small and `pack` allows it; there the rows of one slot lie side by side, as they are read.

    Samples are gathered into memory that is used again, since fresh pages cost more than the copies into them: what is
    read lives until the next reading of the same name, and whoever keeps it longer copies it.
    """

    layout: Layout

    def __init__(self, length: int, device: torch.device, gamma: float, pack: bool = True, block: int = 256) -> None:
        super().__init__(length, device, block)
        self.gamma, self.pack, self.zeros = gamma, pack, zeros
        self.code = row_kernels.code() if device.type == "cpu" else None
        self.records = torch.empty(0)  # [length, B, bytes]
        self.quick: Quick | None = None
        self.stage: RowStage | None = None
        self.gathers: dict[tuple[str, int], Gather] = {}
        self.index = torch.empty((1, 0), dtype=torch.int64)  # what was drawn last
        self.derived = Derived(torch.empty(0), torch.empty(0), torch.empty(0))
        self.views: dict[tuple[int, int], tuple[Records, Fetched]] = {}  # what fetches records, and the leaves in them

    @property
    def held(self) -> Row:
        assert self.rows is not None
        return self.rows

    # ------------------------------------------------------------ in

    def hold(self, rows: Row) -> None:
        self.rows, self.leaves, self.stage = rows, ops.leaves(rows), None
        self.large = self.apart(rows)
        fits = self.code and self.derived.discount.dtype == torch.float32
        self.quick = Quick(self.code, self.layout, self.records, self.gamma) if fits else None

    def write(self, rows: Row, at: int, count: int) -> None:
        """Small leaves by compiled code, or put together beside the ring and stored with one copy."""
        small = ops.leaves(self.beside(rows) if self.large else rows)
        if self.quick is None or not self.quick(small, at, count):
            if self.stage is None or self.stage.count != count:
                self.stage = RowStage(self.layout, self.records, self.gamma, count, rows.reward.device)
            self.stage(small, at)
        if self.large:
            foreach_copy_([kept[at : at + count] for kept in self.large], self.apart(rows))

    def apart(self, rows: Row) -> list[Tensor]:
        """Leaves with arrays of their own."""
        return [*([] if self.pack else ops.leaves(rows.obs)), *rows.memory]

    def beside(self, rows: Row) -> Row:
        """All others."""
        return rows._replace(obs=rows.obs if self.pack else None, memory=())

    def allocate(self, rows: Row) -> Row:
        return self.lay(rows, lambda x: self.lying_by_slot((self.length, *x.shape[1:]), x.dtype))

    def lay(self, rows: Row, array: Callable[[Tensor], Tensor]) -> Row:
        """Room for rows like these [T, B, ...]: new records, and `array` of each leaf that is not in them."""
        self.pack = self.pack and sum(x[0, 0].nbytes for x in ops.leaves(rows.obs)) <= NARROW
        self.layout = Layout.of((self.beside(rows), Derived(rows.reward, rows.reward, rows.terminated)))
        self.records = self.zeros((self.length, rows.reward.shape[1], self.layout.width), torch.uint8, self.device)
        self.gathers, self.views = {}, {}
        views, self.derived = self.layout.views(self.records)
        made: Row = views._replace(memory=ops.map_tree(array, rows.memory))
        return made if self.pack else made._replace(obs=ops.map_tree(array, rows.obs))

    def restore(self, state: State) -> None:
        """Large arrays are taken as they are where they lie by slot, all others copied."""
        if (rows := self.saved(state)) is not None:
            self.hold(self.lay(rows, self.laid_by_slot))
            ops.map_tree(lambda kept, x: kept if kept is x else kept.copy_(x), self.rows, rows)
            derive(self.held, self.derived, self.gamma)

    def lying_by_slot(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room for rows [length, B, ...] where those of one slot lie side by side."""
        length, slots, *rest = shape
        return self.zeros((slots, length, *rest), dtype, self.device).transpose(0, 1)

    def laid_by_slot(self, x: Tensor) -> Tensor:
        """Rows [length, B, ...] as they are if those of one slot lie side by side, else room for them."""
        return x if x.transpose(0, 1).is_contiguous() else self.lying_by_slot(x.shape, x.dtype)

    # ------------------------------------------------------------ out

    def draw(self, uniform: Tensor, count: int, first: int) -> Tensor:
        """Flat positions [1, N] drawn from the `count` that follow `first`."""
        size = self.length * self.records.shape[1]
        if not self.code:
            return (uniform[None] * count).long().add_(first % size).remainder_(size)
        if self.index.shape[1] != (n := uniform.numel()):
            self.index = torch.empty((1, n), dtype=torch.int64)
        self.code.draw(uniform.data_ptr(), n, count, first % size, size, self.index.data_ptr())
        return self.index

    def fetch(self, index: Tensor, rows: int, first: int) -> Fetched:
        """What lies in records at flat positions [1, N] and in the rows after each, in all so many."""
        shape = rows, index.numel()  # len() of a tensor costs ten times as much
        if shape not in self.views:
            self.views = {k: v for k, v in self.views.items() if k[0] != rows} | {shape: self.fetching(shape, first)}
        records, fetched = self.views[shape]
        records(index)
        return fetched

    def fetching(self, shape: tuple[int, int], first: int) -> tuple[Records, Fetched]:
        records = Records(self.records, *shape)
        whole, derived = self.layout.views(records.out)
        head, rest = part(whole, 0, first), part(whole, 1, shape[0])
        return records, Fetched(whole, head, rest, Derived(derived.discount[:-1], derived.live[:first], derived.cut))

    def sums(self, got: Fetched, n: int) -> Sums | None:
        """What sums over n steps of rows that are fetched into this memory; None where that takes other code."""
        records = next(records for records, fetched in self.views.values() if fetched is got)
        return Sums(self.code, self.layout, records.out, n) if self.quick and self.pack else None

    def span(self, index: Tensor, got: Fetched) -> Tensor:
        """The flat positions [T, N] of rows that were fetched."""
        rows, slots = len(got.rows.reward), self.records.shape[1]
        return (index + torch.arange(0, rows * slots, slots, device=index.device)[:, None]) % (self.length * slots)

    def read(self, tree: Any, where: Tensor, name: str) -> Any:
        """The rows at flat positions `where` of leaves [length, B, ...], in memory of this name."""
        return self.read_at(tree, self.by_slot(where), name)

    def by_slot(self, where: Tensor) -> Tensor:
        """Flat positions as counted slot after slot."""
        slots = self.records.shape[1]
        return where % slots * self.length + where // slots

    def read_at(self, tree: Any, where: Tensor, name: str) -> Any:
        """`read` at positions counted slot after slot."""
        flat, order = where.reshape(-1), itertools.count()

        def gather(x: Tensor) -> Tensor:
            key = name, next(order)
            kept = self.gathers.get(key)
            if kept is None or kept.where != where.shape or kept.leaf is not x:
                kept = self.gathers[key] = Gather(x, where.shape)
            return kept(flat)

        return ops.map_tree(gather, tree)


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


def part(rows: Any, first: int, last: int) -> Any:
    """Some of the rows [T, B, ...] of a tree."""
    return ops.map_tree(lambda x: x[first:last], rows)


def dead(like: Row, obs: Obs, memory: Memory) -> Row:
    """Rows that only show an observation; nobody has said what to expect of it."""
    row: Row = ops.zeros(like)
    extras = {name: x + nan if x.is_floating_point() else x for name, x in row.extras.items()}
    return row._replace(obs=obs, extras=extras, memory=memory)


# ------------------------------------------------------------ records: the small leaves of a row as bytes side by side


class Layout(NamedTuple):
    """Where each leaf of a row lies in its record."""

    tree: Any  # of (first byte, bytes, dtype, shape)
    width: int

    @classmethod
    def of(cls, tree: Any) -> Layout:
        """Widest types first, so that every leaf is aligned. Leaves are [T, B, ...]."""
        leaves, first, places = ops.leaves(tree), 0, {}
        for i in sorted(range(len(leaves)), key=lambda i: -leaves[i].dtype.itemsize):
            shape = leaves[i].shape[2:]
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
    """What follows from a row's flags, as learning needs it; computed once, when the row is stored."""

    discount: Tensor  # gamma, 0 where terminated
    live: Tensor  # 1, 0 where not valid
    cut: Tensor  # terminated or truncated


def derive(row: Row, derived: Derived, gamma: float) -> None:
    """Brings what follows from flags up to date; of tensors, or of arrays of numpy."""
    derived.discount[:] = ~row.terminated * gamma
    derived.live[:] = row.valid
    derived.cut[:] = row.terminated | row.truncated


class RowStage:
    """Records of so many rows, put together beside the ring and stored with one copy: one transfer to a GPU."""

    def __init__(self, layout: Layout, records: Tensor, gamma: float, count: int, came: torch.device) -> None:
        self.records, self.gamma, self.count = records, gamma, count
        self.made = zeros((count, *records.shape[1:]), torch.uint8, came)
        if came.type == "cpu" and records.device.type != "cpu":
            self.made = self.made.pin_memory()
        row, derived = layout.views(self.made)
        self.leaves = ops.leaves(row)
        row = row._replace(obs=(), action=(), extras={})
        self.row, self.derived = (
            ops.to_numpy((row, derived)) if came.type == "cpu" else (row, derived)
        )  # numpy is sooner

    def __call__(self, leaves: list[Tensor], at: int) -> None:
        foreach_copy_(self.leaves, leaves)
        derive(self.row, self.derived, self.gamma)
        self.records[at : at + self.count].copy_(self.made)


class Quick:
    """The same by compiled code, for leaves that lie in memory as they are kept."""

    def __init__(self, code: Any, layout: Layout, records: Tensor, gamma: float) -> None:
        self.code, (row, derived) = code, layout.tree
        self.leaves, (_, self.slots, self.width) = ops.leaves(row), records.shape
        flags = [place[0] for place in (row.terminated, row.truncated, row.valid, *derived)]
        places = [number for first, size, *_ in self.leaves for number in (first, size)]
        self.places, self.flags = (torch.tensor(numbers, dtype=torch.int64) for numbers in (places, flags))
        self.from_, self.first, self.size = (c_int64 * len(self.leaves))(), records.data_ptr(), records[0].nbytes
        where = addressof(self.from_), self.places.data_ptr(), len(self.leaves), self.flags.data_ptr()
        self.rest, self.count = (*where, gamma), -1

    def __call__(self, leaves: list[Tensor], at: int, count: int) -> bool:
        """Whether it could store them."""
        if count != self.count:
            self.count, lead = count, (count, self.slots)
            self.kinds = [(dtype, torch.Size((*lead, *shape))) for _, _, dtype, shape in self.leaves]
        found: list[c_int64 | int] = []
        for x, (dtype, shape) in zip(leaves, self.kinds, strict=True):
            if x.dtype is not dtype or x.shape != shape or not x.is_contiguous() or not x.is_cpu:
                return False
            found.append(x.data_ptr())
        self.from_[:] = found
        self.code.store(self.first + at * self.size, self.width, count * self.slots, *self.rest)
        return True


class Fetched(NamedTuple):
    """Rows [T, N, ...] of records."""

    rows: Row
    first: Row  # as many as were asked for
    rest: Row  # all but the first
    derived: Derived  # discount of all but the last, live of the first, cut of all


class Records:
    """The records at given positions and in the rows after them, time after time into the same memory."""

    def __init__(self, records: Tensor, rows: int, count: int) -> None:
        length, slots, width = records.shape
        self.shape, self.slots, self.size, self.width = (rows, count), slots, length * slots, width
        self.out = records.new_empty((rows, count, width))
        self.source, self.rows = records.view(-1, width), self.out.view(-1, width)
        self.order = torch.arange(rows, device=records.device)[:, None] * slots
        host = records.device.type == "cpu"
        self.code = row_kernels.code() if host else None
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


class Sums:
    """Sums over n steps of fetched records, and the observations that they are bootstrapped from: `ops.windows` of
    single rows, by compiled code, time after time into the same memory."""

    def __init__(self, code: Any, layout: Layout, fetched: Tensor, n: int) -> None:
        (_, count, width), (row, derived) = fetched.shape, layout.tree
        self.code, self.given = code, (fetched.data_ptr(), width, count, n)
        self.places = torch.tensor([place[0] for place in (row.reward, derived.discount, derived.cut)])
        self.reward, self.discount = torch.empty(2, 1, count).unbind()
        self.later = fetched.new_empty((1, count, width))
        self.obs = layout.views(self.later)[0].obs
        made = self.places, self.reward, self.discount, self.later
        self.made = [x.data_ptr() for x in made]

    def __call__(self) -> None:
        self.code.fold(*self.given, *self.made)


class Gather:
    """Rows of one array that lies by slot, time after time into the same memory."""

    def __init__(self, leaf: Tensor, where: torch.Size) -> None:
        self.leaf, self.where = leaf, where
        self.source = leaf.transpose(0, 1).flatten(0, 1)
        self.out = leaf.new_empty((*where, *leaf.shape[2:]))
        self.rows = self.out.view(-1, *leaf.shape[2:]) if self.out.numel() else self.out.flatten(0, len(where) - 1)

    def __call__(self, where: Tensor) -> Tensor:
        torch.index_select(self.source, 0, where, out=self.rows)
        return self.out


# ------------------------------------------------------------ rows by name


def tree_of(arrays: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tree whose flattened names these are; what is called `memory` is a tuple."""
    tree = {"memory": {}, **ops.nest(arrays)}
    tree["memory"] = tuple(tree["memory"][str(i)] for i in range(len(tree["memory"])))
    return tree


def row_of(arrays: Mapping[str, Tensor]) -> Row:
    """The Row whose flattened names these are."""
    return Row(**{"extras": {}, **tree_of(arrays)})
