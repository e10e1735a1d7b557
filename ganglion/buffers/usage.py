"""How often and how late the rows of a replay are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ganglion.buffers import compiled
from ganglion.buffers.records import zeros
from ganglion.core import Progress, State
from ganglion.errors import UserError

WAITING = 64  # samples that are counted at once


class Usage:
    """Counts uses per row, and updates since it was stored. Without compiled code what is drawn waits to be counted
    until someone asks."""

    def __init__(self, length: int, slots: int, device: torch.device) -> None:
        self.slots = slots
        self.counts = zeros((length * slots,), torch.int32, device)
        self.born = zeros((length,), torch.int64, device)  # opt steps at insertion
        self.staleness = torch.zeros((), device=device)  # of the last sample, on average
        self.drawn: list[tuple[Tensor, Progress]] = []
        self.latest: float | None = None  # staleness, not yet written down
        host = device.type == "cpu"
        self.code: Any = compiled.code() if host else None
        self.pointers = self.counts.data_ptr(), self.born.data_ptr()
        self.arrays = [x.numpy() if host else x for x in (self.counts, self.born)]  # numpy writes small things sooner

    def stored(self, pos: int, at: Progress) -> None:
        """A new row of all slots at a position of the ring."""
        if self.drawn:
            self.settle()  # before what was drawn is overwritten
        counts, born = self.arrays
        counts[pos * self.slots : (pos + 1) * self.slots] = 0
        born[pos] = at.opt_steps

    def drew(self, index: Tensor, at: Progress) -> None:
        """A sample of the rows at flat positions [N], contiguous."""
        if self.code:
            self.count(index, at)
            return
        self.drawn.append((index, at))
        if len(self.drawn) == WAITING:
            self.settle()

    def settle(self) -> None:
        if self.latest is not None:
            self.staleness.fill_(self.latest)
            self.latest = None
        if self.drawn:
            index = torch.cat([index for index, _ in self.drawn])
            self.counts.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
            self.staleness.copy_(self.age(*self.drawn[-1]).double().mean())
            self.drawn = []

    def count(self, index: Tensor, at: Progress) -> None:
        n = index.numel()
        ages = self.code.use(*self.pointers, self.slots, index.data_ptr(), n, at.opt_steps)
        self.latest = ages / n if n else float("nan")

    def uses(self, index: Tensor) -> Tensor:
        self.settle()
        return self.counts[index]

    def age(self, index: Tensor, at: Progress) -> Tensor:
        """Updates since each row was stored."""
        return at.opt_steps - self.born[index // self.slots]

    def metrics(self, filled: int) -> Mapping[str, float]:
        self.settle()
        return {"use": float(self.counts[: filled * self.slots].float().mean()), "staleness": float(self.staleness)}

    def state(self) -> State:
        self.settle()
        return State({"uses": self.counts, "born": self.born, "staleness": self.staleness})

    def restore(self, state: State) -> None:
        own = state.tensors
        if "uses" not in own:
            raise UserError("algo.replay.kind: the saved buffer is of another kind; it cannot be changed.")
        if own["uses"].shape != self.counts.shape:
            sizes = f"{len(own['uses']):,} rows, this one {len(self.counts):,}"
            raise UserError(f"algo.replay.capacity: the saved buffer has {sizes}; it cannot be changed.")
        self.drawn, self.latest = [], None
        self.counts.copy_(own["uses"])
        self.born.copy_(own["born"])
        self.staleness.copy_(own["staleness"])
