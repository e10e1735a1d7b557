"""Whole episodes: rollouts of them, and replayed sequences that begin where an episode does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers.rollout import rollout_of
from ganglion.buffers.storage import RowRing, SampledRing
from ganglion.core import Obs, Past, Progress, Rollout, Row, State, join, read_count, under
from ganglion.errors import UserError


class WholeEpisode(NamedTuple):
    """Rows of one slot that follow each other: a whole episode, or so many rows of a longer one."""

    slot: int
    first: int  # row, counted from the first one ever
    length: int  # rows that are decisions


class Episodes:
    """As many whole episodes as there are slots, [horizon, B]; those that are longer come in parts of `horizon` rows.

    Whichever slots end theirs first give them; who is in the middle of one goes on, and gives it later. Rows beyond an
    episode's end show its last observation, and are not valid.
    """

    fresh = True  # an item is learned from once
    wants = history = 0

    def __init__(self, horizon: int, slots: int, gamma: float, device: torch.device, keep: int = 1) -> None:
        self.horizon, self.slots, self.gamma, self.device, self.keep = horizon, slots, gamma, device, keep
        # one that ended may wait for the slowest of the others, and began as many rows before
        self.ring = RowRing((keep + 2) * (horizon + 2), device)
        self.open = [-1] * slots  # the row in which each slot's episode, or part of it, begins; -1: none
        self.ended: list[WholeEpisode] = []  # the oldest first
        self.used = 0  # of these, how many have been learned from

    # ------------------------------------------------------------ in

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        now = self.ring.pushed
        self.ring.push(rows)
        starts, valid = rows.start.tolist(), rows.valid.tolist()
        for t in range(len(starts)):
            for slot in range(self.slots):
                self.follow(slot, now + t, starts[t][slot], valid[t][slot])

    def follow(self, slot: int, row: int, start: bool, valid: bool) -> None:
        """Notes an episode once the row after its last one is there."""
        first = self.open[slot]
        if first >= 0 and (start or not valid or row - first == self.horizon):
            length = row - first - (valid and start)  # what follows the last row is another episode's: it is left out
            if length > 0:
                self.ended.append(WholeEpisode(slot, first, length))
            self.open[slot] = row if valid else -1
        elif first < 0 and valid:
            self.open[slot] = row

    def room(self) -> int:
        """An episode may end with any row."""
        return 1

    def restarted(self, rows: Row) -> Row:
        return rows

    def skip_check(self) -> None:
        """Nothing is compared here."""

    # ------------------------------------------------------------ out

    def ready(self) -> bool:
        return len(self.ended) - self.used >= self.slots

    def take(self, uniform: Tensor, at: Progress) -> Rollout:
        return self.recent(1)

    def recent(self, rollouts: int) -> Rollout:
        rows, last, within = self.gathered(rollouts)
        whole = rollout_of(rows, (last.obs, Past(last.memory, last.start)), self.gamma)
        return whole._replace(cut=whole.cut | within.diff(dim=0, append=torch.zeros_like(within[:1])))

    def rows(self) -> Row:
        return self.gathered(1)[0]

    def gathered(self, rollouts: int) -> tuple[Row, Row, Tensor]:
        """The rows of the last so many items [horizon, rollouts * B, ...], the one that follows them [1, ...], and
        which of them are within their episodes."""
        slot, first, length = torch.tensor(self.last(rollouts), device=self.device).unbind(1)
        times = torch.arange(self.horizon + 1, device=self.device)[:, None]
        place = (first + torch.minimum(times, length)) % self.ring.length  # beyond its end: what follows the last row
        got: Row = ops.map_tree(lambda x: x[place, slot], self.ring.rows)
        within = times[:-1] < length
        rows: Row = ops.map_tree(lambda x: x[:-1], got)
        rows = rows._replace(valid=rows.valid & within, reward=rows.reward * within, start=rows.start & within)
        return rows, ops.map_tree(lambda x: x[-1:], got), within

    def last(self, rollouts: int) -> list[WholeEpisode]:
        """The episodes of the item to learn from, after those of items before it."""
        end = self.used + self.slots
        if (first := end - rollouts * self.slots) < 0:
            raise ValueError(f"{rollouts} items of episodes were asked for, of {end // self.slots} that are kept")
        return self.ended[first:end]

    def release(self) -> None:
        """The learning phase is over; as many items as are kept stay."""
        self.used += self.slots
        gone = max(self.used - (self.keep - 1) * self.slots, 0)
        self.ended, self.used = self.ended[gone:], self.used - gone

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Episodes have no priorities here."""

    # ------------------------------------------------------------ state

    def metrics(self) -> Mapping[str, float]:
        waiting = self.ended[self.used :]
        return {"episode_rows": sum(one.length for one in waiting) / len(waiting)} if waiting else {}

    def state(self) -> State:
        table = torch.tensor([*self.ended, *([-1, first, 0] for first in self.open)], dtype=torch.int64).reshape(-1, 3)
        return join({"own": State({"episodes": table}, {"used": self.used}), "ring": self.ring.state()})

    def restore(self, state: State) -> None:
        own = under(state, "own")
        self.ring.restore(under(state, "ring"))
        if (held := self.ring.rows) is not None and len(held.reward) != self.ring.length:
            raise UserError(f"algo.horizon: {len(held.reward)} rows were saved, not {self.ring.length}; it is fixed.")
        table = own.tensors["episodes"].tolist()
        self.ended = [WholeEpisode(*map(read_count, row)) for row in table[: -self.slots]]
        self.open = [read_count(row[1] + 1) - 1 for row in table[-self.slots :]]
        self.used = read_count(own.scalars["used"], len(self.ended))
        oldest = self.ring.pushed - self.ring.filled
        rows = [one.first for one in self.ended] + [first for first in self.open if first >= 0]
        if any(not oldest <= row <= self.ring.pushed for row in rows) or any(x.slot >= self.slots for x in self.ended):
            raise ValueError("episodes that lie outside of the rows that are kept")


class EpisodeStarts:
    """Where episodes begin in a ring whose rows are drawn."""

    def __init__(self, ring: SampledRing, reach: int) -> None:
        self.ring, self.reach = ring, reach
        self.looked, self.found = -1, torch.empty(0, dtype=torch.int64)  # rows pushed by then; flat positions

    def look(self, lost: int) -> Tensor:
        """Of those whose later rows are all there, without the `lost` oldest rows."""
        ring = self.ring
        if self.looked != ring.pushed:
            first, last = ring.pushed - ring.filled + lost, ring.pushed - self.reach
            times = torch.arange(first, max(last, first), device=ring.device) % ring.length
            row, slot = ring.held.start[times].nonzero(as_tuple=True)
            self.looked, self.found = ring.pushed, times[row] * ring.held.start.shape[1] + slot
        return self.found

    def any(self, lost: int) -> bool:
        return len(self.look(lost)) > 0

    def draw(self, uniform: Tensor, lost: int) -> Tensor:
        """Flat positions [1, N], each episode as likely as any other."""
        found = self.look(lost)
        return found[(uniform * len(found)).long()][None]
