"""Rows on a ring: preallocated arrays, written once, gathered when sampled into memory that is used again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import compiled
from ganglion.buffers.records import Derived, Layout, Records, Stage, zeros
from ganglion.core import Ring, Row, State, read_count

NARROW = 512  # bytes of a row that are better copied beside others
SHORT = 4_096  # rows of a ring whose places are made beforehand


class RowRing:
    """The last `length` rows of B slots, each leaf an array [length, B, ...]. Allocated by the first row pushed."""

    def __init__(self, length: int, device: torch.device, block: int = 256) -> None:
        self.length, self.device, self.block = length, device, block
        self.rows: Row | None = None
        self.leaves: list[Tensor] = []
        self.places: list[tuple[Tensor, ...]] = []  # where each row goes, for rings so short that they are kept
        self.pushed = 0  # rows ever pushed

    def push(self, row: Row) -> int:
        """Stores a row of all slots; returns the position it took."""
        if self.rows is None:
            self.hold(self.room(row))
        at = self.pushed % self.length
        place = self.places[at] if self.places else [kept[at] for kept in self.leaves]
        torch._foreach_copy_(place, ops.leaves(row))
        self.pushed += 1
        return at

    def push_rows(self, rows: Row) -> None:
        """Stores several rows, [T, B, ...], that fit before the end of the ring."""
        if self.rows is None:
            self.hold(self.room(ops.map_tree(lambda x: x[0], rows)))
        first, count = self.pushed % self.length, ops.leaves(rows)[0].shape[0]
        torch._foreach_copy_([kept[first : first + count] for kept in self.leaves], ops.leaves(rows))
        self.pushed += count

    def push_each(self, rows: Sequence[Row]) -> None:
        """Stores several rows of all slots, [B, ...] each, that fit before the end of the ring."""
        if self.rows is None:
            self.hold(self.room(rows[0]))
        first = self.pushed % self.length
        for kept, new in zip(self.leaves, zip(*map(ops.leaves, rows), strict=True), strict=True):
            torch.stack(new, out=kept[first : first + len(rows)])
        self.pushed += len(rows)

    def room(self, row: Row) -> Row:
        """Arrays for `length` rows like this one [B, ...]."""
        rows: Row = ops.map_tree(lambda x: zeros((self.length, *x.shape), x.dtype, self.device), row)
        return rows

    def hold(self, rows: Row) -> None:
        self.rows, self.leaves = rows, ops.leaves(rows)
        self.places = list(zip(*(x.unbind(0) for x in self.leaves))) if self.length <= SHORT else []

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
        self.pushed = read_count(state.scalars["pushed"])
        if "rows" in state.rings:
            if state.rings["rows"].stamps != self.stamps():
                raise ValueError(f"{self.pushed} rows do not leave blocks of these stamps")
            arrays = {k: v.to(self.device) for k, v in state.rings["rows"].arrays.items()}
            self.hold(row_of(arrays))


class SampledRing(RowRing):
    """A ring whose rows are drawn at random: all small leaves of a row lie side by side, so that one gather, and one
    visit to main memory, brings them all. Memories have arrays of their own, and so have observations, unless they are
    small and `pack` allows it; there the rows of one slot lie side by side, as they are read.

    Samples are gathered into memory that is used again, since fresh pages cost more than the copies into them: what is
    read lives until the next reading of the same name, and whoever keeps it longer copies it.
    """

    def __init__(self, length: int, device: torch.device, gamma: float, pack: bool = True, block: int = 256) -> None:
        super().__init__(length, device, block)
        self.gamma, self.pack = gamma, pack
        self.code = compiled.code() if device.type == "cpu" else None
        self.records = torch.empty(0)  # [length, B, bytes]
        self.layout: Layout | None = None
        self.stage: Stage | None = None
        self.gathers: dict[tuple[str, int], Gather] = {}
        self.derived = Derived(torch.empty(0), torch.empty(0))
        self.views: dict[tuple[int, int], tuple[Records, Fetched]] = {}  # what fetches records, and the leaves in them

    @property
    def held(self) -> Row:
        assert self.rows is not None
        return self.rows

    def hold(self, rows: Row) -> None:
        self.rows, self.leaves, self.stage = rows, ops.leaves(rows), None

    def push(self, row: Row) -> int:
        """Puts a record together beside the ring and stores it with one copy."""
        if self.rows is None:
            self.hold(self.room(row))
        if self.stage is None:
            assert self.layout is not None
            self.stage = Stage(self.layout, self.records, self.gamma, row)
        at = self.pushed % self.length
        self.stage.store(row, at)
        if self.large:
            torch._foreach_copy_([kept[at] for kept in self.large], self.apart(row))
        self.pushed += 1
        return at

    @property
    def large(self) -> list[Tensor]:
        """Leaves with arrays of their own."""
        return self.apart(self.held) if self.held.memory or not self.pack else []

    def apart(self, row: Row) -> list[Tensor]:
        return [*([] if self.pack else ops.leaves(row.obs)), *row.memory]

    def derive(self) -> None:
        """Brings what follows from flags up to date, in every row."""
        self.derived.discount.copy_(self.gamma * (~self.held.terminated))
        self.derived.live.copy_(self.held.valid)

    def room(self, row: Row) -> Row:
        return self.lay(row, lambda x: lying_by_slot((self.length, *x.shape), x.dtype, self.device), row)

    def lay(self, row: Row, array: Callable[[Tensor], Tensor], large: Row) -> Row:
        """Room for rows like this one [B, ...]: new records, and `array` of each leaf of `large` not in them."""
        self.pack = self.pack and sum(x[0].nbytes for x in ops.leaves(row.obs)) <= NARROW
        small = row._replace(obs=row.obs if self.pack else None, memory=())
        self.layout = Layout.of((small, Derived(row.reward, row.reward)))
        self.records = zeros((self.length, row.reward.shape[0], self.layout.width), torch.uint8, self.device)
        self.gathers, self.views = {}, {}
        views, self.derived = self.layout.views(self.records)
        rows: Row = views._replace(memory=ops.map_tree(array, large.memory))
        return rows if self.pack else rows._replace(obs=ops.map_tree(array, large.obs))

    def restore(self, state: State) -> None:
        """Large arrays are taken as they are where they lie by slot, all others copied."""
        super().restore(state)
        if (rows := self.rows) is not None:
            self.hold(self.lay(ops.select(rows, 0), laid_by_slot, rows))
            ops.map_tree(lambda kept, x: kept if kept is x else kept.copy_(x), self.rows, rows)
            self.derive()

    def draw(self, uniform: Tensor, count: int, first: int) -> Tensor:
        """Flat positions drawn from the `count` that follow `first`."""
        size = self.length * self.records.shape[1]
        if not self.code:
            return (uniform * count).long().add_(first % size).remainder_(size)
        index = torch.empty_like(uniform, dtype=torch.int64)
        self.code.draw(uniform.data_ptr(), uniform.numel(), count, first % size, size, index.data_ptr())
        return index

    def fetch(self, index: Tensor, rows: int, first: int) -> Fetched:
        """What lies in records at flat positions [N] and in the rows after each, in all so many."""
        shape = rows, index.numel()  # len() of a tensor costs ten times as much
        if shape not in self.views:
            self.views = {k: v for k, v in self.views.items() if k[0] != rows} | {shape: self.fetching(shape, first)}
        records, fetched = self.views[shape]
        records(index)
        return fetched

    def fetching(self, shape: tuple[int, int], first: int) -> tuple[Records, Fetched]:
        assert self.layout is not None
        records = Records(self.records, *shape)
        whole, derived = self.layout.views(records.out)
        head, rest = ops.map_tree(lambda x: x[:first], whole), ops.map_tree(lambda x: x[1:], whole)
        return records, Fetched(whole, head, rest, Derived(derived.discount[:-1], derived.live[:first]))

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


def laid_by_slot(x: Tensor) -> Tensor:
    """Rows [length, B, ...] as they are if those of one slot lie side by side, else room for them."""
    return x if x.transpose(0, 1).is_contiguous() else lying_by_slot(x.shape, x.dtype, x.device)


def lying_by_slot(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for rows [length, B, ...] where those of one slot lie side by side."""
    length, slots, *rest = shape
    return zeros((slots, length, *rest), dtype, device).transpose(0, 1)


class Fetched(NamedTuple):
    """Rows [T, N, ...] of records."""

    rows: Row
    first: Row  # as many as were asked for
    rest: Row  # all but the first
    derived: Derived  # discount of all but the last, live of the first


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


def tree_of(arrays: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tree whose flattened names these are; what is called `memory` is a tuple."""
    tree = {"memory": {}, **ops.nest(arrays)}
    tree["memory"] = tuple(tree["memory"][str(i)] for i in range(len(tree["memory"])))
    return tree


def row_of(arrays: Mapping[str, Tensor]) -> Row:
    """The Row whose flattened names these are."""
    return Row(**{"extras": {}, **tree_of(arrays)})
