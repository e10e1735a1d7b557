"""Rows on a ring: one preallocated array per leaf, written once, gathered when sampled."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Ring, Row, State
from ganglion.errors import UserError


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for `shape[0]` rows; where there is none, the user hears which settings ask for it."""
    try:
        return torch.zeros(shape, dtype=dtype, device=device)
    except RuntimeError as error:  # of any allocator
        size = prod(shape) * dtype.itemsize / 1e9
        raise UserError(
            f"algo.replay.capacity or algo.horizon: no room for {shape[0]:,} rows ({size:,.1f} GB) on {device}."
        ) from error


class RowRing:
    """The last `length` rows of B slots, each leaf an array [length, B, ...]. Allocated by the first row pushed."""

    def __init__(self, length: int, device: torch.device, block: int = 256) -> None:
        self.length, self.device, self.block = length, device, block
        self.rows: Row | None = None
        self.leaves: list[Tensor] = []
        self.pushed = 0  # rows ever pushed

    def push(self, row: Row) -> int:
        """Stores a row of all slots; returns the position it took."""
        if self.rows is None:
            self.hold(ops.map_tree(lambda x: zeros((self.length, *x.shape), x.dtype, self.device), row))
        at = self.pushed % self.length
        for kept, new in zip(self.leaves, ops.leaves(row), strict=True):
            kept[at].copy_(new)
        self.pushed += 1
        return at

    def hold(self, rows: Row) -> None:
        self.rows, self.leaves = rows, ops.leaves(rows)

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
        self.pushed = int(state.scalars["pushed"])
        if "rows" in state.rings:
            arrays = {k: v.to(self.device) for k, v in state.rings["rows"].arrays.items()}
            self.hold(row_of(arrays))


def tree_of(arrays: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tree whose flattened names these are; what is called `memory` is a tuple."""
    tree = {"memory": {}, **ops.nest(arrays)}
    tree["memory"] = tuple(tree["memory"][str(i)] for i in range(len(tree["memory"])))
    return tree


def row_of(arrays: Mapping[str, Tensor]) -> Row:
    """The Row whose flattened names these are."""
    return Row(**{"extras": {}, **tree_of(arrays)})
