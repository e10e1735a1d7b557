"""Rollout storage: the last `horizon` rows of every slot, used for one learning phase and forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers.storage import RowRing, row_of, tree_of
from ganglion.config import BufferConfig, Fold, register
from ganglion.core import Buffer, EnvSpec, Obs, Past, Progress, Rollout, Row, State, read_count, under
from ganglion.errors import UserError


@register("buffer", "rollout")
class RolloutConfig(BufferConfig):
    """The last rows of every slot, learned from once."""

    episodes: bool = False  # whole ones, each of at most so many rows

    def fitted(self, fold: Fold) -> Fold:
        if not fold.rollouts:
            raise UserError(
                "algo.replay.kind: rollout keeps whole rollouts, and this algorithm learns from transitions."
            )
        return fold._replace(episodes=self.episodes)

    def build(self, spec: EnvSpec, device: torch.device, fold: Fold) -> Buffer:
        if self.episodes:
            from ganglion.buffers.episodes import Episodes

            return Episodes(fold.length, spec.slots, fold.gamma, device, fold.keep)
        return RolloutBuffer(fold.length, fold.gamma, device, fold.keep)


class RolloutBuffer:
    """Rows [horizon, B] and the observation that follows them; the last `keep` rollouts stay at hand."""

    fresh = True  # an item is learned from once
    wants = history = 0

    def __init__(self, horizon: int, gamma: float, device: torch.device, keep: int = 1) -> None:
        self.horizon, self.gamma, self.device, self.size = horizon, gamma, device, horizon * keep
        self.ring = RowRing(self.size, device, block=horizon)
        self.filled = 0  # rows of the rollout that is being collected
        self.ends: dict[int, tuple[Obs, Past]] = {}  # what follows each rollout that is kept

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        if (count := rows.reward.shape[0]) > self.room():
            raise ValueError(f"{count} rows for a rollout that has room for {self.room()}: it is learned from first")
        self.ring.push(rows)
        self.filled += count
        if self.ready():
            obs, past = ahead
            end = ops.map_tree(lambda x: x.to(self.device)[None], obs), past
            self.ends[self.ring.pushed // self.horizon - 1] = end

    def room(self) -> int:
        return self.horizon - self.filled

    def restarted(self, rows: Row) -> Row:
        """A rollout holds rows of one stream: it begins where they do."""
        return rows

    def skip_check(self) -> None:
        """Nothing is compared here."""

    def ready(self) -> bool:
        return self.filled == self.horizon

    def take(self, uniform: Tensor, at: Progress) -> Rollout:
        return self.recent(1)

    def recent(self, rollouts: int) -> Rollout:
        rows, count = self.rows(rollouts), self.ring.pushed // self.horizon
        ends = ops.concat([self.ends[k] for k in range(count - rollouts, count)], 1)
        return rollout_of(self.beside(rows, rollouts), ends, self.gamma)

    def beside(self, rows: Row, rollouts: int) -> Row:
        """Rows of rollouts one after another as [horizon, rollouts * B, ...]: they need not follow each other."""
        if rollouts == 1:
            return rows
        split = (rollouts, self.horizon)
        return ops.map_tree(lambda x: x.unflatten(0, split).transpose(0, 1).flatten(1, 2), rows)

    def rows(self, rollouts: int = 1) -> Row:
        assert self.ring.rows is not None
        last = self.ring.pushed
        if (first := last - rollouts * self.horizon) < 0:
            raise ValueError(f"{rollouts} rollouts were asked for, of {last // self.horizon} that are kept")
        return ops.map_tree(lambda x: x[first:last], self.ring.rows) if last - first < self.size else self.ring.rows

    def release(self) -> None:
        """The learning phase is over: the next rollout comes after the last, or anew where no more are kept."""
        self.filled = 0
        self.ring.pushed %= self.size

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """Rollouts have no priorities."""

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state(self) -> State:
        if self.ring.rows is None:
            return State({}, {"pushed": 0, "filled": 0})
        rows = {f"rows/{k}": v for k, v in ops.flatten_names(self.ring.rows).items()}
        where = {"pushed": self.ring.pushed, "filled": self.filled, "ends": len(self.ends)}
        return State({**rows, **self.ends_named()}, where)

    def ends_named(self) -> dict[str, Tensor]:
        if not self.ends:
            return {}
        obs, past = ops.concat([self.ends[k] for k in range(len(self.ends))], 1)
        tree = {"obs": obs, "start": past.start, "memory": past.memory}
        return {f"last/{k}": v for k, v in ops.flatten_names(tree).items()}

    def restore(self, state: State) -> None:
        held = next((len(x) for name, x in state.tensors.items() if name.startswith("rows/")), self.size)
        if held != self.size:
            raise UserError(f"algo.horizon: the saved rollout has {held} rows, not {self.size}; it cannot be changed.")
        self.ring.pushed = read_count(state.scalars["pushed"], self.size)
        self.filled = read_count(state.scalars["filled"], self.horizon)
        rows, last = ({k: v.to(self.device) for k, v in under(state, p).tensors.items()} for p in ("rows", "last"))
        if rows:
            self.ring.hold(row_of(rows))
        if last:
            count = max(read_count(state.scalars.get("ends", 1), self.size // self.horizon), 1)
            each = [tree_of({k: v.chunk(count, 1)[i] for k, v in last.items()}) for i in range(count)]
            self.ends = {i: (tree["obs"], Past(tree["memory"], tree["start"])) for i, tree in enumerate(each)}


def rollout_of(rows: Row, last: tuple[Obs, Past], gamma: float | Tensor) -> Rollout:
    """Consecutive rows [T, B, ...] and what follows them, [1, B, ...], as a rollout."""
    discount = gamma * (~rows.terminated).float()
    past = Past(tuple(m[:1] for m in rows.memory), rows.start)
    cut = rows.terminated | rows.truncated
    return Rollout(rows.obs, rows.action, rows.reward, discount, cut, rows.valid, rows.extras, past, last)
