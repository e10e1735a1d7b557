"""Replay: rows stored once; n-step sums, next observations and sequences are gathered when sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion.buffers.frames import WHOLE, Whole, keeper
from ganglion.buffers.storage import SampledRing
from ganglion.buffers.transitions import Fold, Transitions
from ganglion.buffers.usage import Usage
from ganglion.config import BufferConfig, Count, register
from ganglion.core import EnvSpec, Obs, Past, Progress, Row, Sample, State, Transition, join, under
from ganglion.errors import UserError


@register("buffer", "replay")
class ReplayConfig(BufferConfig):
    """Uniform replay."""

    capacity: Count = Field(10_000, ge=2)  # rows, over all slots
    batch: int = Field(128, ge=1, le=1_000_000)  # sequences per update
    sequence: int | None = Field(None, ge=1, le=10_000)  # rows per sequence; by default 1, or 16 with a recurrent net
    burn_in: Count = Field(0, ge=0)  # first rows of a sequence that only warm the memory up
    max_use: Count | None = Field(None, ge=1)  # how often a row may be learned from
    max_staleness: Count | None = Field(None, ge=1)  # updates after which a row is not learned from any more

    @property
    def rated(self) -> bool:
        """Whether rows should bring `q` and `value` in their extras: what whoever explored expected."""
        return False

    def folding(self, n: int, gamma: float, recurrent: bool) -> Callable[[EnvSpec, torch.device], Replay]:
        """What builds the buffer once the environment is known."""
        length = self.sequence or (16 if recurrent else 1)
        if self.burn_in >= length:
            raise UserError(f"algo.replay.burn_in: {self.burn_in} should be less than the {length} rows of a sequence.")
        fold = Fold(n, gamma, length)
        return lambda spec, device: self.build(fold, recurrent, spec.slots, device, keeper(spec, device))

    def build(self, fold: Fold, recurrent: bool, slots: int, device: torch.device, seen: Whole = WHOLE) -> Replay:
        return Replay(self, fold, recurrent, slots, device, seen)


class Replay:
    """Every row once per slot on a ring [length, B]; a sample is rows drawn uniformly, dead ones with weight 0.

    A sample lives in memory that the next one takes over: whoever keeps it longer copies it.
    """

    fresh = False  # items are kept and sampled again

    def __init__(
        self, cfg: ReplayConfig, fold: Fold, recurrent: bool, slots: int, device: torch.device, seen: Whole
    ) -> None:
        self.cfg, self.fold, self.recurrent, self.slots, self.device = cfg, fold, recurrent, slots, device
        self.seen = seen  # how observations are kept
        self.ring = SampledRing(
            max(cfg.capacity // slots, seen.history + fold.reach + 1), device, fold.gamma, not seen.history
        )
        self.size = self.ring.length * slots
        self.usage = Usage(self.ring.length, slots, device)
        self.own = torch.arange(fold.length, device=device)[:, None]
        self.transitions = Transitions(self.ring, seen, fold, recurrent)

    # ------------------------------------------------------------ in

    def push(self, row: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        pos = self.ring.push(self.seen.kept(row, self.ring))
        self.seen.check(row, self.ring)
        self.usage.stored(pos, at)

    # ------------------------------------------------------------ out

    @property
    def lost(self) -> int:
        """How many of the oldest rows cannot be sampled: frames before them have been overwritten."""
        return self.seen.history if self.ring.pushed > self.ring.length else 0

    def ready(self) -> bool:
        return self.ring.filled > self.fold.reach + self.lost

    @property
    def wants(self) -> int:
        return self.cfg.batch

    def take(self, uniform: Tensor, at: Progress) -> Sample[Transition]:
        """Draws `batch` sequences among those whose earlier frames and later rows are all there."""
        count = (self.ring.filled - self.fold.reach - self.lost) * self.slots
        first = (self.ring.pushed - self.ring.filled + self.lost) * self.slots
        return self.gather(self.ring.draw(self.here(uniform), count, first), None, at)

    def here(self, uniform: Tensor) -> Tensor:
        """Random numbers as a draw needs them."""
        return uniform.to(self.device, torch.float64).contiguous()

    def gather(self, index: Tensor, weight: Tensor | None, at: Progress) -> Sample[Transition]:
        """The sequences that start at flat positions `index` [N], with the weight each was drawn with, [1, N]."""
        data, live = self.transitions(index)
        return Sample(data, index, self.weigh(index, live, weight, at))

    def weigh(self, index: Tensor, live: Tensor, weight: Tensor | None, at: Progress) -> Tensor:
        """The weight of each row [T, N]: 0 where dead, warming up, used too often or too old."""
        if weight is None:
            rows = live
        else:  # which has found the first row of each sequence alive
            rows = weight if live.shape[0] == 1 else live * weight
        if self.cfg.max_use is not None:  # before this use is counted: a row drawn twice at once is not lost by it
            rows = rows * (self.usage.uses(index) < self.cfg.max_use)
        if self.cfg.max_staleness is not None:
            rows = rows * (self.usage.age(index, at) <= self.cfg.max_staleness)
        if self.cfg.burn_in:
            rows = rows * (self.own >= self.cfg.burn_in)
        self.usage.drew(index, at)
        return rows

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Uniform replay has no priorities."""

    def metrics(self) -> Mapping[str, float]:
        return {"rows": float(self.ring.filled * self.slots), **self.usage.metrics(self.ring.filled)}

    def state(self) -> State:
        return join({"own": self.usage.state(), "ring": self.ring.state()})

    def restore(self, state: State) -> None:
        self.usage.restore(under(state, "own"))
        self.ring.restore(under(state, "ring"))
