"""Batches of a dataset, gathered ahead of the learner by worker threads and copied to its device beside the updates.

What a batch holds follows from the run's seed and the batch's number alone, so the sequence is the same for any number
of workers, and a resumed run goes on with the next number. Gathering runs in compiled code and in reads of the disk,
both without Python's lock: threads do what processes would, without copies between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from queue import SimpleQueue
from sys import maxsize
from threading import Event, Thread
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers.replay import Gathering, Replay
from ganglion.core import Obs, Past, Progress, Row, Sample, State, join, read_count, under
from ganglion.runtime.randomness import derive

AHEAD = 2  # batches that each worker gathers before they are asked for
Segments = Sequence[tuple[int, float]]  # rows that follow each other, and how often they are drawn


class Filled:
    """A replay that holds a dataset. Its state is without the rows: those are read from the dataset again."""

    fresh = False

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def loaded(self, counts: Sequence[int]) -> None:
        """All rows are there: so many of each dataset, one after the other."""

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        self.replay.push(rows, ahead, at)

    def room(self) -> int:
        return maxsize

    @property
    def history(self) -> int:
        return self.replay.history

    @property
    def wants(self) -> int:
        return self.replay.wants

    def restarted(self, rows: Row) -> Row:
        return self.replay.restarted(rows)

    def skip_check(self) -> None:
        self.replay.skip_check()

    def ready(self) -> bool:
        return self.replay.ready()

    def take(self, uniform: Tensor, at: Progress) -> Sample[Any]:
        return self.replay.take(uniform, at)

    def recent(self, rollouts: int) -> Any:
        return self.replay.recent(rollouts)

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        self.replay.feedback(index, priority)

    def rows(self) -> Row:
        return self.replay.rows()

    def release(self) -> None:
        """Rows stay."""

    def metrics(self) -> Mapping[str, float]:
        return self.replay.metrics()

    def close(self) -> None:
        """Nothing is open."""

    def state(self) -> State:
        return self.replay.state()._replace(rings={})

    def restore(self, state: State) -> None:
        """Rows are there already."""
        self.replay.restore(state)


class Loader(Filled):
    """Reads it ahead: what is drawn does not depend on what was learned before."""

    wants = 0  # its numbers are its own

    def __init__(
        self, replay: Replay, seed: int, device: torch.device, workers: int = 2, weights: Sequence[float] = ()
    ) -> None:
        """`device`: of the batches. `workers`: threads; 0: batches are gathered when they are asked for. `weights`: how
        often rows of each dataset are drawn; by default as often as there are."""
        super().__init__(replay)
        self.seed, self.device, self.workers, self.weights = seed, device, workers, weights
        self.batch = replay.wants
        self.segments: Segments = ()
        self.places = [Place(replay, device) for _ in range(AHEAD * workers + 1)]
        self.taken = 0  # batches so far
        self.asked = 0  # batches that workers have been asked for
        self.jobs: SimpleQueue[int | None] = SimpleQueue()
        self.threads: list[Thread] = []
        self.waited, self.looked = 0.0, perf_counter()  # seconds since the last look, and when that was

    def loaded(self, counts: Sequence[int]) -> None:
        if self.weights:  # the last rows complete others, and are not drawn themselves
            drawn = [*counts[:-1], max(counts[-1] - self.replay.fold.reach, 0)]
            self.segments = [(count, weight) for count, weight in zip(drawn, self.weights, strict=True) if count]

    def take(self, uniform: Tensor, at: Progress) -> Sample[Any]:
        """The next batch. It lies in memory that is written again once another one was taken."""
        began, number = perf_counter(), self.taken
        place = self.places[number % len(self.places)]
        if self.workers:
            self.ask(number + len(self.places) - 1)
            place.ready.wait()
        else:
            place.fill(self.numbers(number))
        self.waited += perf_counter() - began
        self.taken += 1
        return place.sample(at)

    def ask(self, last: int) -> None:
        """Has workers gather every batch before `last`; the one before the next is not needed any more."""
        if not self.threads:
            self.threads = [Thread(target=self.work, daemon=True) for _ in range(self.workers)]
            for thread in self.threads:
                thread.start()
        for number in range(max(self.asked, self.taken), last):
            self.places[number % len(self.places)].empty()
            self.jobs.put(number)
        self.asked = max(self.asked, last)

    def work(self) -> None:
        while (number := self.jobs.get()) is not None:
            self.places[number % len(self.places)].fill(self.numbers(number))

    def numbers(self, number: int) -> Tensor:
        """The uniform numbers that a batch is drawn by."""
        generator = torch.Generator().manual_seed(derive(self.seed, f"batch/{number}"))
        uniform = torch.rand(self.batch, generator=generator, dtype=torch.float64)
        return weighted(uniform, self.segments) if self.segments else uniform

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Every batch is drawn as if none had been learned from."""

    def close(self) -> None:
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            thread.join()
        self.threads, self.asked = [], self.taken

    def metrics(self) -> Mapping[str, float]:
        """`wait`: the share of the time since the last look that the learner waited for batches."""
        now = perf_counter()
        waited, spent = self.waited, max(now - self.looked, 1e-9)
        self.waited, self.looked = 0.0, now
        return {**super().metrics(), "wait": waited / spent}

    def state(self) -> State:
        return join({"replay": super().state(), "own": State({}, {"taken": self.taken})})

    def restore(self, state: State) -> None:
        self.close()
        super().restore(under(state, "replay"))
        self.taken = self.asked = read_count(under(state, "own").scalars["taken"])


class StandIn(Loader):
    """Batches of another size from a replay that somebody else fills and saves."""

    def __init__(self, replay: Replay, seed: int, device: torch.device, batch: int) -> None:
        super().__init__(replay, seed, device, 0)
        self.batch = batch

    def state(self) -> State:
        return State({}, {"taken": self.taken})

    def restore(self, state: State) -> None:
        self.taken = read_count(state.scalars["taken"])


def weighted(uniform: Tensor, segments: Segments) -> Tensor:
    """Evenly spread numbers as numbers that fall into segments by weight."""
    rows, weights = (torch.tensor(x, dtype=torch.float64) for x in zip(*segments, strict=True))
    starts, begins = ((x / x.sum()).cumsum(0).roll(1).index_fill(0, torch.tensor(0), 0) for x in (weights, rows))
    where = torch.searchsorted(starts, uniform, right=True) - 1
    inside = (uniform - starts[where]) * weights.sum() / weights[where]
    return (begins[where] + inside * rows[where] / rows.sum()).clamp(max=1 - 1e-12)


class Place:
    """Where one batch lies: gathered here, and on a GPU copied there beside the updates."""

    def __init__(self, replay: Replay, device: torch.device) -> None:
        self.replay, self.device = replay, device
        self.ready = Event()
        self.gathered: Gathering | None = None  # made once rows are there
        self.held: Any = None  # index, data and which rows live, on the device
        self.error: BaseException | None = None
        moves = device.type == "cuda" and replay.device.type == "cpu"
        self.stream = torch.cuda.Stream(device) if moves else None
        self.pinned: Any = None

    def fill(self, uniform: Tensor) -> None:
        """Gathers a batch; what goes wrong is raised where it is taken."""
        try:
            self.gather(uniform)
        except BaseException as error:
            self.error = error
        self.ready.set()

    def gather(self, uniform: Tensor) -> None:
        replay = self.replay
        if self.gathered is None:
            self.gathered = reading(replay)
        ring = self.gathered.ring
        count = (ring.filled - replay.fold.reach) * replay.slots
        index = ring.draw(uniform.to(ring.device), count, (ring.pushed - ring.filled) * replay.slots)
        batch = index, *self.gathered(index)
        self.held = batch if self.stream is None else self.moved(batch, self.stream)

    def moved(self, batch: Any, stream: torch.cuda.Stream) -> Any:
        """By a stream of its own, from memory that stays in its place."""
        if self.pinned is None:
            self.pinned = ops.map_tree(lambda x: x.new_empty(x.shape).pin_memory(), batch)
            self.held = ops.map_tree(lambda x: torch.empty_like(x, device=self.device), batch)
        ops.map_tree(lambda pin, x: pin.copy_(x), self.pinned, batch)
        with torch.cuda.stream(stream):
            ops.map_tree(lambda kept, x: kept.copy_(x, non_blocking=True), self.held, self.pinned)
        stream.synchronize()  # of this thread's copies alone: the pinned memory is free again
        return self.held

    def empty(self) -> None:
        """The batch is not needed any more, once the updates are over that are under way on the device."""
        self.ready.clear()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def sample(self, at: Progress) -> Sample[Any]:
        if self.error is not None:
            raise self.error
        index, data, live = self.held
        return Sample(data, index, live if self.stream is not None else self.replay.weigh(index, live, None, at))


def reading(replay: Replay) -> Gathering:
    """What gathers the same rows into memory of its own: by another thread."""
    ring = copy(replay.ring)
    ring.gathers, ring.views, ring.index = {}, {}, torch.empty((1, 0), dtype=torch.int64)
    return Gathering(ring, copy(replay.seen), replay.fold)
