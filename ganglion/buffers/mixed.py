"""Two buffers as one: a fixed share of every batch comes from rows that were there before."""

from __future__ import annotations

from collections.abc import Mapping
from sys import maxsize
from typing import Any

from torch import Tensor

from ganglion import ops
from ganglion.core import Buffer, Obs, Past, Progress, Row, Sample, State, join, under


class Mixed:
    """Rows that are pushed go to `own`; a batch is one of `own` and one of `shown` beside each other, [T, n + m].

    Until `own` has an item, its part of the batch comes from `instead`.
    """

    fresh = False

    def __init__(self, own: Buffer, shown: Buffer, instead: Buffer) -> None:
        self.own, self.shown, self.instead = own, shown, instead
        self.parts = own, shown, instead
        self.taken: tuple[Buffer, int] = (own, 0)  # whom the first columns of the last batch are of, and how many

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        self.own.push(rows, ahead, at)

    def room(self) -> int:
        return maxsize

    @property
    def history(self) -> int:
        return self.own.history

    def restarted(self, rows: Row) -> Row:
        return self.own.restarted(rows)

    def skip_check(self) -> None:
        self.own.skip_check()

    def ready(self) -> bool:
        return self.shown.ready()

    @property
    def wants(self) -> int:
        return sum(part.wants for part in self.parts)

    def take(self, uniform: Tensor, at: Progress) -> Sample[Any]:
        own, shown, instead = uniform.split([part.wants for part in self.parts])
        first, numbers = (self.own, own) if self.own.ready() else (self.instead, instead)
        mine, theirs = first.take(numbers, at), self.shown.take(shown, at)
        self.taken = first, mine.index.shape[1]
        both = alike(mine.data, theirs.data)
        parts = (Sample(data, each.index, each.weight) for data, each in zip(both, (mine, theirs), strict=True))
        made: Sample[Any] = ops.concat(list(parts), 1)
        return made

    def recent(self, rollouts: int) -> Any:
        return self.own.recent(rollouts)

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """To each what came from it."""
        first, count = self.taken
        first.feedback(index[:, :count], priority[:count])
        self.shown.feedback(index[:, count:], priority[count:])

    def rows(self) -> Row:
        return self.own.rows()

    def release(self) -> None:
        """Rows stay."""

    def metrics(self) -> Mapping[str, float]:
        return {**self.own.metrics(), **{f"data_{name}": value for name, value in self.shown.metrics().items()}}

    def state(self) -> State:
        return join({name: part.state() for name, part in zip(NAMES, self.parts, strict=True)})

    def restore(self, state: State) -> None:
        for name, part in zip(NAMES, self.parts, strict=True):
            part.restore(under(state, name))


NAMES = ("own", "shown", "instead")


def alike(mine: Any, theirs: Any) -> list[Any]:
    """Both with the extras that both have, on one device."""
    names = sorted(mine.extras.keys() & theirs.extras.keys())
    device = mine.reward.device
    return [ops.to_device(each._replace(extras={k: each.extras[k] for k in names}), device) for each in (mine, theirs)]
