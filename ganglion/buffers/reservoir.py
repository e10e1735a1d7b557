"""A reservoir (Vitter 1985): of all rows that ever came, so many, each as likely as every other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, MultiBinary, Obs, Space, State
from ganglion.errors import UserError


class Reservoir(nn.Module):
    """Observations and actions on a fixed number of places; all of it is of fixed shape, so that it can be compiled."""

    action: Tensor
    seen: Tensor

    def __init__(self, capacity: int, space: Space) -> None:
        super().__init__()
        self.capacity = capacity
        self.names = []
        for name, x in ops.flatten_names({"obs": zeros(space, capacity + 1)}).items():  # the last place is for nobody
            self.names.append(name)
            self.register_buffer(name, x)
        self.register_buffer("action", torch.zeros(capacity + 1, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # rows that came

    @property
    def rows(self) -> Obs:
        return ops.nest({name: self._buffers[name] for name in self.names})["obs"]

    @torch.no_grad()
    def push(self, obs: Obs, action: Tensor, counts: Tensor, uniform: Tensor) -> None:
        """Rows [N, ...], those that count: number n is kept with probability capacity / n, in place of any other;
        `uniform` [N] decides."""
        number = self.seen + counts.long().cumsum(0) - 1
        drawn = (uniform.double() * (number + 1)).long().minimum(number)
        place = torch.where(number < self.capacity, number, drawn)
        place = torch.where(counts, place.clamp(max=self.capacity), self.capacity)
        again = (place[:, None] == place).triu(1).any(1)  # a later row comes to the same place
        place = torch.where(again, self.capacity, place)
        ops.map_tree(lambda own, x: own.index_copy_(0, place, x.to(own.dtype)), self.rows, obs)
        self.action.index_copy_(0, place, action)
        self.seen += counts.sum()

    def draw(self, uniform: Tensor) -> tuple[Obs, Tensor, Tensor]:
        """As many rows [1, N, ...] as there are random numbers, [N], with their weight: 0 while there are none."""
        filled = self.seen.clamp(max=self.capacity)
        index = (uniform.double() * filled).long().minimum((filled - 1).clamp(min=0))
        weight = (filled > 0).float().expand(1, *index.shape)
        return ops.map_tree(lambda x: x[index][None], self.rows), self.action[index][None], weight

    def state(self) -> State:
        kept = {name: x[: self.capacity] for name, x in self.named_buffers() if name != "seen"}
        return State({**kept, "seen": self.seen})

    def restore(self, state: State) -> None:
        saved = len(state.tensors["action"])
        if saved != self.capacity:
            raise UserError(f"algo.reservoir: the saved one has {saved:,} places, this one {self.capacity:,}.")
        for name, x in self.named_buffers():
            (x if name == "seen" else x[: self.capacity]).copy_(state.tensors[name])


def zeros(space: Space, count: int) -> Obs:
    """So many observations of a space, all zero."""
    match space:
        case Composite(items):
            return {name: zeros(part, count) for name, part in items.items()}
        case Box(shape, dtype):
            return torch.zeros(count, *shape, dtype=dtype)
        case Discrete():
            return torch.zeros(count, dtype=torch.int64)
        case MultiBinary(n):
            return torch.zeros(count, n, dtype=torch.bool)
    return torch.zeros(count, len(space.nvec), dtype=torch.int64)
