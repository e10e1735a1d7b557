"""Replay: rows stored once; n-step sums, next observations and sequences are gathered when sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import ops
from ganglion.buffers.storage import RowRing, zeros
from ganglion.config import BufferConfig, Count, register
from ganglion.core import EnvSpec, Obs, Past, Progress, Row, Sample, State, Transition, join, under
from ganglion.errors import UserError
from ganglion.ops.returns import windows


class Fold(NamedTuple):
    """How rows become transitions: n rewards summed under gamma, sequences of `length` rows."""

    n: int
    gamma: float
    length: int

    @property
    def reach(self) -> int:
        """How many later rows a sampled row needs."""
        return self.length - 1 + self.n


@register("buffer", "replay")
class ReplayConfig(BufferConfig):
    """Uniform replay."""

    capacity: Count = Field(10_000, ge=2)  # rows, over all slots
    batch: int = Field(128, ge=1, le=1_000_000)  # sequences per update
    sequence: int | None = Field(None, ge=1, le=10_000)  # rows per sequence; by default 1, or 16 with a recurrent net
    burn_in: int = Field(0, ge=0)  # first rows of a sequence that only warm the memory up
    max_use: int | None = Field(None, ge=1)  # how often a row may be learned from
    max_staleness: int | None = Field(None, ge=1)  # updates after which a row is not learned from any more

    def folding(self, n: int, gamma: float, recurrent: bool) -> Callable[[EnvSpec, torch.device], Replay]:
        """What builds the buffer once the environment is known."""
        length = self.sequence or (16 if recurrent else 1)
        if self.burn_in >= length:
            raise UserError(f"algo.replay.burn_in: {self.burn_in} should be less than the {length} rows of a sequence.")
        fold = Fold(n, gamma, length)
        return lambda spec, device: self.build(fold, recurrent, spec.slots, device)

    def build(self, fold: Fold, recurrent: bool, slots: int, device: torch.device) -> Replay:
        return Replay(self, fold, recurrent, slots, device)


class Replay:
    """Every row once per slot on a ring [length, B]; a sample is rows drawn uniformly, dead ones with weight 0."""

    fresh = False  # items are kept and sampled again

    def __init__(self, cfg: ReplayConfig, fold: Fold, recurrent: bool, slots: int, device: torch.device) -> None:
        self.cfg, self.fold, self.recurrent, self.slots, self.device = cfg, fold, recurrent, slots, device
        self.ring = RowRing(max(cfg.capacity // slots, fold.reach + 1), device)
        self.uses = zeros((self.ring.length * slots,), torch.int32, device)
        self.born = zeros((self.ring.length,), torch.int64, device)  # opt steps at insertion
        self.staleness = torch.zeros((), device=device)

    # ------------------------------------------------------------ in

    def push(self, row: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        pos = self.ring.push(row)
        self.uses[pos * self.slots : (pos + 1) * self.slots] = 0
        self.born[pos] = at.opt_steps

    # ------------------------------------------------------------ out

    def ready(self) -> bool:
        return self.ring.filled > self.fold.reach

    @property
    def wants(self) -> int:
        return self.cfg.batch

    def take(self, uniform: Tensor, at: Progress) -> Sample[Transition]:
        """Draws `batch` sequences among those whose later rows are all there."""
        rows = self.ring.filled - self.fold.reach
        oldest = self.ring.pushed - self.ring.filled
        drawn = (uniform.to(self.device) * (rows * self.slots)).long()
        index = (drawn + oldest * self.slots) % (self.ring.length * self.slots)
        return self.gather(index, torch.ones_like(index, dtype=torch.float32), at)

    def gather(self, index: Tensor, weight: Tensor, at: Progress) -> Sample[Transition]:
        """The sequences that start at flat positions `index` [N], with the weight each was drawn with."""
        length, n = self.fold.length, self.fold.n
        size = self.ring.length * self.slots
        offset = torch.arange(length + n, device=self.device)[:, None] * self.slots
        span = (index + offset) % size  # [length + n, N] flat positions along time
        first, rows = span[:1], span[:length]
        reward, discount, steps = self.returns(span)
        held = self.held
        start = self.read(held.start, rows)
        past = Past(self.read(held.memory, first), start)
        if self.recurrent:  # memory must run through every later row to reach the one that bootstraps
            ahead = steps + torch.arange(length, device=self.device)[:, None] - 1
            next_obs = self.read(held.obs, span[1:])
            next_past = Past(self.read(held.memory, span[1:2]), self.read(held.start, span[1:]))
        else:
            ahead = torch.arange(length, device=self.device)[:, None].expand_as(steps)  # its own
            next_obs = self.read(held.obs, (rows + steps * self.slots) % size)
            next_past = past
        action = self.read(held.action, rows)
        data = Transition(self.read(held.obs, rows), action, reward, discount, next_obs, ahead, past, next_past)
        return Sample(data, index, self.weigh(index, self.read(held.valid, rows), weight, at))

    def returns(self, span: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """n-step sums, discounts and lengths [T, N]; nothing passes an episode's end."""
        held = self.held
        reward, terminated, truncated = self.read((held.reward, held.terminated, held.truncated), span[:-1])
        discount = self.fold.gamma * (~terminated).float()
        folded = windows(reward, discount, terminated | truncated, self.fold.n)
        steps = folded.ahead - torch.arange(self.fold.length, device=self.device)[:, None]
        return folded.reward, folded.discount, steps

    def weigh(self, index: Tensor, valid: Tensor, weight: Tensor, at: Progress) -> Tensor:
        """The weight of each row [T, N]: 0 where dead, warming up, used too often or too old."""
        age = at.opt_steps - self.born[index // self.slots]
        if self.cfg.max_use is not None:  # before this use is counted: a row drawn twice at once is not lost by it
            weight = weight * (self.uses[index] < self.cfg.max_use)
        self.uses.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        self.staleness.copy_(age.float().mean())
        if self.cfg.max_staleness is not None:
            weight = weight * (age <= self.cfg.max_staleness)
        rows = valid * weight
        if self.cfg.burn_in:
            rows[: self.cfg.burn_in] = 0
        return rows

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Uniform replay has no priorities."""

    # ------------------------------------------------------------ reading the ring

    @property
    def held(self) -> Row:
        assert self.ring.rows is not None
        return self.ring.rows

    def read(self, tree: Obs, flat: Tensor) -> Obs:
        """Leaves [length, B, ...] at flat positions [T, N] -> [T, N, ...]."""
        where = flat.reshape(-1)
        return ops.map_tree(lambda x: x.flatten(0, 1).index_select(0, where).unflatten(0, flat.shape), tree)

    def metrics(self) -> Mapping[str, float]:
        used = self.uses[: self.ring.filled * self.slots].float()
        return {
            "rows": float(self.ring.filled * self.slots),
            "use": float(used.mean()),
            "staleness": float(self.staleness),
        }

    def state(self) -> State:
        own = State({"uses": self.uses, "born": self.born, "staleness": self.staleness})
        return join({"own": own, "ring": self.ring.state()})

    def restore(self, state: State) -> None:
        own = under(state, "own").tensors
        if "uses" not in own:
            raise UserError("algo.replay.kind: the saved buffer is of another kind; it cannot be changed.")
        if own["uses"].shape != self.uses.shape:
            sizes = f"{len(own['uses']):,} rows, this one {len(self.uses):,}"
            raise UserError(f"algo.replay.capacity: the saved buffer has {sizes}; it cannot be changed.")
        self.ring.restore(under(state, "ring"))
        self.uses.copy_(own["uses"])
        self.born.copy_(own["born"])
        self.staleness.copy_(own["staleness"])
