"""Replay: rows stored once; n-step sums, next observations, sequences and rollouts are gathered when sampled."""

from __future__ import annotations

from collections.abc import Mapping
from sys import maxsize
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion.buffers import row_kernels
from ganglion.buffers.frames import BACK, Whole, keeper
from ganglion.buffers.storage import Fetched, SampledRing, Sums, part, zeros
from ganglion.config import BufferConfig, Count, Fold, RelabelConfig, register
from ganglion.core import EnvSpec, Memory, Obs, Past, Progress, Rollout, Row, Sample, State, Transition, join, under
from ganglion.errors import UserError
from ganglion.ops.returns import windows

WAITING = 64  # samples that are counted at once


@register("buffer", "replay")
class ReplayConfig(BufferConfig):
    """Uniform replay."""

    capacity: Count = Field(10_000, ge=2)  # rows, over all slots
    batch: int = Field(128, ge=1, le=1_000_000)  # sequences per update
    sequence: int | None = Field(None, ge=1, le=10_000)  # rows per sequence; by default 1, or 16 with a recurrent net
    burn_in: Count = Field(0, ge=0)  # first rows of a sequence that only warm the memory up
    max_use: Count | None = Field(None, ge=1)  # how often a row may be learned from
    max_staleness: Count | None = Field(None, ge=1)  # updates after which a row is not learned from any more
    relabel: RelabelConfig | None = None  # what is changed in transitions when they are sampled
    episodes: bool = False  # sequences begin where an episode does, and end with it
    store: Literal["memory", "disk"] = "memory"  # disk: in a file without a name, for replays larger than memory

    @property
    def warms(self) -> int:
        return self.burn_in

    def fitted(self, fold: Fold) -> Fold:
        length = self.sequence or fold.length or (16 if fold.recurrent else 1)
        if self.burn_in >= length:
            raise UserError(f"algo.replay.burn_in: {self.burn_in} should be less than the {length} rows of a sequence.")
        if self.relabel is not None and fold.rollouts:
            raise UserError("algo.replay.relabel: changes transitions, and this algorithm learns from rollouts.")
        return fold._replace(length=length)

    def build(self, spec: EnvSpec, device: torch.device, fold: Fold) -> Replay:
        return Replay(self, spec, device, fold)


class Replay:
    """Every row once per slot on a ring [length, B]; a sample is rows drawn uniformly, dead ones with weight 0.

    A sample lives in memory that the next one takes over: whoever keeps it longer copies it.
    """

    fresh = False  # items are kept and sampled again

    def __init__(self, cfg: ReplayConfig, spec: EnvSpec, device: torch.device, fold: Fold) -> None:
        self.cfg, self.fold, self.slots, self.device = cfg, fold, spec.slots, device
        self.seen = keeper(spec, device)  # how observations are kept
        needs = self.history + fold.reach
        self.ring = SampledRing(max(cfg.capacity // self.slots, needs + 1), device, fold.gamma, not self.history)
        if cfg.store == "disk":
            from ganglion.mapped import on_disk

            self.ring.zeros = on_disk("algo.replay.store", device)
        self.most = self.ring.length - needs  # rows stored at once: all that complete a sequence are still there
        self.size = self.ring.length * self.slots
        self.usage = Usage(self.ring.length, self.slots, device)
        self.relabel = None if cfg.relabel is None else cfg.relabel.build(spec, self.ring, self.history)
        self.gathered = Gathering(self.ring, self.seen, fold, self.relabel)
        self.begun: Any = None
        if cfg.episodes:
            from ganglion.buffers.episodes import EpisodeStarts

            self.begun = EpisodeStarts(self.ring, self.fold.reach)

    # ------------------------------------------------------------ in

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        ring, count = self.ring, rows.reward.shape[0]
        if count > self.most:
            for first in range(0, count, self.most):
                self.push(part(rows, first, first + self.most), ahead, at)
            return
        self.usage.stored(ring.pushed % ring.length, count, at)
        if self.relabel is not None:
            self.relabel.stored(rows.start, rows.valid, ring.pushed)
        self.seen.store(rows, ring)

    def room(self) -> int:
        return maxsize

    @property
    def history(self) -> int:
        return self.seen.history

    def restarted(self, rows: Row) -> Row:
        return self.seen.restarted(rows)

    def skip_check(self) -> None:
        self.seen.checked = 0

    # ------------------------------------------------------------ out

    @property
    def lost(self) -> int:
        """How many of the oldest rows cannot be sampled: frames before them have been overwritten."""
        return self.history if self.ring.pushed > self.ring.length else 0

    def ready(self) -> bool:
        return self.ring.filled > self.fold.reach + self.lost and (self.begun is None or self.begun.any(self.lost))

    @property
    def wants(self) -> int:
        return self.cfg.batch * (1 if self.relabel is None else 3)

    def take(self, uniform: Tensor, at: Progress) -> Sample[Any]:
        """Draws `batch` sequences among those whose earlier frames and later rows are all there."""
        if self.begun is not None:
            return self.gather(self.begun.draw(self.here(uniform, at), self.lost), None, at)
        count = (self.ring.filled - self.fold.reach - self.lost) * self.slots
        first = (self.ring.pushed - self.ring.filled + self.lost) * self.slots
        return self.gather(self.ring.draw(self.here(uniform, at), count, first), None, at)

    def here(self, uniform: Tensor, at: Progress) -> Tensor:
        """Random numbers as a draw needs them; those that are left are of the goals."""
        if self.relabel is not None:
            self.relabel.drawn(uniform[self.cfg.batch :].to(self.device), at)
            uniform = uniform[: self.cfg.batch]
        return uniform.to(self.device, torch.float64).contiguous()

    def gather(self, index: Tensor, weight: Tensor | None, at: Progress) -> Sample[Any]:
        """The sequences that start at flat positions `index` [1, N], with the weight each was drawn with, [1, N]."""
        data, live = self.gathered(index)
        live = live if self.begun is None else live * (data.past.start.cumsum(0) <= 1)
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
            rows = rows * (self.gathered.own >= self.cfg.burn_in)
        self.usage.drew(index, at)
        return rows

    def recent(self, rollouts: int) -> Any:
        """It keeps rows, not rollouts."""
        raise TypeError("a phase that learns from several rollouts needs a buffer of rollouts")

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Uniform replay has no priorities."""

    def rows(self) -> Row:
        raise TypeError("the rows of a replay are seen as they are pushed")

    def release(self) -> None:
        """Rows stay."""

    # ------------------------------------------------------------ state

    def metrics(self) -> Mapping[str, float]:
        return {"rows": float(self.ring.filled * self.slots), **self.usage.metrics(self.ring.filled)}

    def state(self) -> State:
        return join({"own": self.usage.state(), "ring": self.ring.state()})

    def restore(self, state: State) -> None:
        self.usage.restore(under(state, "own"))
        self.ring.restore(under(state, "ring"))
        if self.relabel is not None and self.ring.rows is not None:
            self.relabel.rebuilt(self.ring.held)


class Gathering:
    """Puts together what is sampled, transitions or rollouts; it lies in memory that the next sample takes over."""

    def __init__(self, ring: SampledRing, seen: Whole, fold: Fold, relabel: Any = None) -> None:
        self.ring, self.seen, self.fold, self.relabel = ring, seen, fold, relabel
        self.own = torch.arange(fold.length, device=ring.device)[:, None]
        self.rows = fold.length, fold.length + fold.n  # learned from, and gathered for them
        self.sums = not fold.rollouts and (fold.n > 1 or fold.recurrent)
        self.single = self.sums and not fold.recurrent and fold.length == 1
        self.views: tuple[Fetched, Any] | None = None  # what is the same in every sample: views of what is fetched
        self.quick: Sums | None = None  # which brings them up to date where there are sums

    def __call__(self, index: Tensor) -> tuple[Any, Tensor]:
        """The sequences that start at flat positions `index` [1, N], and which of their rows live, [T, N]."""
        length, rows = self.rows
        got = self.ring.fetch(index, rows, length)
        if self.views is None or self.views[0] is not got:
            self.views = got, self.rollout(got) if self.fold.rollouts else self.transition(got)
        data: Any = self.views[1]
        if self.relabel is not None:
            self.relabel.rewards(index, got)
        if self.quick is not None:
            self.quick()
        elif self.sums:
            data = self.summed(index, got, data)
        elif self.ring.large:
            data = self.whole(index, got, data) if self.fold.rollouts else self.steps(index, got, data)
        return data if self.relabel is None else self.relabel.goals(data), got.derived.live

    def transition(self, got: Fetched) -> Transition:
        """Transitions of one step, or of single rows over several, with observations that are small."""
        first, past = got.first, Past((), got.first.start)
        self.quick = self.ring.sums(got, self.fold.n) if self.single and self.relabel is None else None
        later = (first.reward, got.derived.discount, got.rest.obs)
        if self.quick is not None:
            later = (self.quick.reward, self.quick.discount, self.quick.obs)
        what = first.obs, first.action, *later
        about = first.valid, got.derived.cut[: self.fold.length], shown(first.extras)
        return Transition(*what, self.own.expand_as(first.reward), past, past, *about)

    def steps(self, index: Tensor, got: Fetched, data: Transition) -> Transition:
        """With observations that have arrays of their own."""
        obs, next_obs = self.seen.along(self.ring, index, got, False)
        return data._replace(obs=obs, next_obs=next_obs)

    def summed(self, index: Tensor, got: Fetched, data: Transition) -> Transition:
        """Over several steps, or with memories; nothing passes an episode's end."""
        cut = got.derived.cut[:-1]
        reward, discount, later = windows(got.rows.reward[:-1], got.derived.discount, cut, self.fold.n)
        data = data._replace(reward=reward, discount=discount)
        if not self.fold.recurrent:
            obs, next_obs = self.seen.pairs(self.ring, index, got, later)
            return data._replace(obs=obs, next_obs=next_obs)
        obs, next_obs = self.seen.along(self.ring, index, got, True)
        memory, after = self.memories(index, got, 1)
        past, next_past = Past(memory, got.first.start), Past(after, got.rest.start)
        # memory must run through every later row to reach the one that bootstraps
        return data._replace(obs=obs, next_obs=next_obs, ahead=later - 1, past=past, next_past=next_past)

    def memories(self, index: Tensor, got: Fetched, later: int) -> tuple[Memory, Memory]:
        """Of the first row, and of one later."""
        ring, span = self.ring, self.ring.span(index, got)
        rows = span[:1], span[later : later + 1]
        first, second = (ring.read(ring.held.memory, row, f"memory {k}") for k, row in enumerate(rows))
        return first, second

    def rollout(self, got: Fetched) -> Rollout:
        """Rows as they were, with observations that are small, and what follows them."""
        first, length = got.first, self.fold.length
        what = first.obs, first.action, first.reward, got.derived.discount, got.derived.cut[:length]
        last = part(got.rest.obs, -1, length), Past((), got.rest.start[-1:])
        return Rollout(*what, first.valid, shown(first.extras), Past((), first.start), last)

    def whole(self, index: Tensor, got: Fetched, data: Rollout) -> Rollout:
        """With memories, and observations that have arrays of their own."""
        obs, rest = self.seen.along(self.ring, index, got, True)
        memory, after = self.memories(index, got, self.fold.length)
        last = part(rest, -1, self.fold.length), Past(after, data.last[1].start)
        return data._replace(obs=obs, past=Past(memory, data.past.start), last=last)


def shown(extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the algorithm said of its rows, without what a replay keeps of its own."""
    return {name: x for name, x in extras.items() if name != BACK}


class Usage:
    """Counts how often each row is used, and updates since it was stored. Without compiled code what is drawn waits to
    be counted until someone asks."""

    def __init__(self, length: int, slots: int, device: torch.device) -> None:
        self.length, self.slots = length, slots
        self.counts = zeros((length * slots,), torch.int32, device)
        self.born = zeros((length,), torch.int64, device)  # opt steps at insertion
        self.staleness = torch.zeros((), device=device)  # of the last sample, on average
        self.drawn: list[tuple[Tensor, Progress]] = []
        self.latest: float | None = None  # staleness, not yet written down
        host = device.type == "cpu"
        self.code: Any = row_kernels.code() if host else None
        self.pointers = self.counts.data_ptr(), self.born.data_ptr()
        self.arrays = [x.numpy() if host else x for x in (self.counts, self.born)]  # numpy writes small things sooner

    def stored(self, first: int, rows: int, at: Progress) -> None:
        """New rows of all slots from a position of the ring on."""
        if self.drawn:
            self.settle()  # before what was drawn is overwritten
        counts, born = self.arrays
        last = first + rows
        if last > self.length:
            self.stored(0, last - self.length, at)  # what goes round; slices end with the ring
        counts[first * self.slots : last * self.slots] = 0
        born[first:last] = at.opt_steps

    def drew(self, index: Tensor, at: Progress) -> None:
        """A sample of the rows at flat positions [1, N], contiguous."""
        if not (n := index.numel()):
            return
        if self.code:
            ages = self.code.use(*self.pointers, self.slots, index.data_ptr(), n, at.opt_steps)
            self.latest = ages / n
            return
        self.drawn.append((index.view(-1), at))
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
