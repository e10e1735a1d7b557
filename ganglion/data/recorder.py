"""Writes what a run's slots see and do as a dataset, while it trains: `data.record`.

A processor around the algorithm's own: it keeps rewards as the environment gave them. Rows wait in memory until they
fill a block; then the episodes among them that are whole are written. What waits is part of the run's checkpoints, and
a resumed run takes back the blocks that were written after its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ganglion import ops, registry
from ganglion.buffers import RowsConfig
from ganglion.buffers.storage import row_of
from ganglion.config import ProcessorConfig, register
from ganglion.core import Acted, EnvSpec, Past, Processor, Row, State, Step, join, read_count, under
from ganglion.data import files
from ganglion.data.dataset import Dataset, joined, rows_between
from ganglion.errors import UserError

MAX_STEPS = 27_000  # of an episode that does not end
KEPT = ("logp",)  # of what an algorithm says of its rows


@register("processor", "recorded")
class RecordedConfig(ProcessorConfig):
    """Another processor, whose rows are written to a dataset as well."""

    path: str  # of the dataset
    inner: ProcessorConfig = RowsConfig()
    about: Mapping[str, Any] = {}  # what the dataset says of these rows

    def build(self, spec: EnvSpec, device: torch.device) -> Processor:
        if spec.turns:
            raise UserError(f"data.record: {spec.name} is a game of turns, whose rows are no episodes of one agent.")
        return RecordedRows(self, self.inner.build(spec, device), spec)


class RecordedRows:
    """Rows on their way, and a copy of them on its way to a dataset."""

    def __init__(self, cfg: RecordedConfig, inner: Processor, spec: EnvSpec) -> None:
        self.folder, self.inner, self.spec = Path(cfg.path), inner, spec
        self.about = {"actions": "training", **cfg.about, "ganglion": registry.version()}
        self.waiting: list[Row] = []  # [T, B, ...] each, on the CPU
        self.size, self.room = 0, files.LARGE  # bytes of them, and at which they are written
        self.written = 0  # blocks of this run

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        said = {name: x for name, x in acted.extras.items() if name in KEPT}
        flags = (after.terminated, after.truncated, before.valid, past.start)
        self.keep(Row(before.obs, acted.action, after.reward, *flags, said, ()))
        return self.inner(before, past, acted, after)

    def keep(self, rows: Row) -> None:
        """Takes rows [T, B, ...]: copies, for environments write to the same memory again."""
        self.waiting.append(ops.map_tree(lambda x: x.detach().to("cpu", copy=True), rows))
        self.size += sum(x.nbytes for x in ops.leaves(self.waiting[-1]))
        if self.size >= self.room:
            self.flush()

    def flush(self) -> None:
        """Writes every episode that is whole; what is still open waits on, from the oldest row of any slot."""
        if not self.waiting:
            return
        rows = ops.concat(self.waiting)
        slots = [
            whole_episodes(ops.map_tree(lambda x, b=b: x[:, b : b + 1], rows)) for b in range(rows.reward.shape[1])
        ]
        parts = [Dataset(self.spec, part) for episodes, _ in slots for part in episodes]
        if parts:
            self.written += files.write(self.folder, joined(parts)._replace(about=(self.about,)))
        self.hold(blank(rows, [first for _, first in slots]))

    def hold(self, rows: Row) -> None:
        self.waiting = [rows] if len(rows.reward) else []
        self.size = sum(x.nbytes for x in ops.leaves(rows)) if self.waiting else 0
        self.room = max(files.LARGE, 2 * self.size)  # long episodes are not looked through again and again

    def close(self) -> None:
        self.flush()
        self.inner.close()

    def state(self) -> State:
        rows = ops.flatten_names(ops.concat(self.waiting)) if self.waiting else {}
        return join({"inner": self.inner.state(), "waiting": State(rows, {"written": self.written})})

    def restore(self, state: State) -> None:
        self.inner.restore(under(state, "inner"))
        own = under(state, "waiting")
        self.written = read_count(own.scalars["written"])
        files.take_back(self.folder, self.about, self.written)
        if own.tensors:
            self.hold(row_of({name: x.cpu() for name, x in own.tensors.items()}))


def whole_episodes(rows: Row) -> tuple[list[Row], int]:
    """The whole episodes among rows [T, 1, ...] of a slot, and the row at which the last, open one begins."""
    starts = rows.start[:, 0].nonzero()[:, 0].tolist()
    if not starts:
        return [], 0
    if len(rows.reward) - starts[-1] > MAX_STEPS + 1:  # it may never end
        starts.append(cut(rows, starts[-1]))
    ends = [*starts[1:], len(rows.reward)]
    found = [rows_between(rows, first, last) for first, last in zip(starts, ends, strict=True)]
    kept = [part for part in found if is_whole(part)]
    return kept, ends[-1] if is_whole(found[-1]) else starts[-1]


def cut(rows: Row, first: int) -> int:
    """Ends the episode from row `first` on after MAX_STEPS rows, as truncated; the row at which the next begins."""
    last = first + MAX_STEPS
    rows.truncated[last - 1] = True
    rows.start[last + 1] = True  # row `last` shows what it saw at its end
    rows.valid[last] = rows.terminated[last] = rows.truncated[last] = False
    return last + 1


def is_whole(part: Row) -> bool:
    """Whether an episode ends, and lost no row: one that was lost with its environment is none."""
    cut, live = (part.terminated | part.truncated)[:, 0], part.valid[:, 0]
    return len(cut) > 1 and bool(live[:-1].all()) and not live[-1] and bool(cut[-2]) and not cut[:-2].any()


def blank(rows: Row, first: list[int]) -> Row:
    """The rows of all slots from the earliest of `first` on, without those before each slot's own: they are written."""
    kept = rows_between(rows, min(first), len(rows.reward))
    gone = torch.arange(min(first), len(rows.reward))[:, None] < torch.tensor(first)
    return kept._replace(start=kept.start & ~gone, valid=kept.valid & ~gone)
