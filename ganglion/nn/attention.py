"""Attention: a transformer as a memory over the last rows (GTrXL), and over the entities of an observation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ganglion.core import Memory, Past

NOWHERE = -1e30  # the score of what may not be attended to; finite, since rows may have nothing to attend to


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """[B, N, size] -> [B, heads, N, size / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(scores: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Values [B, heads, N, dim] weighted by a softmax of scores [B, heads, M, N] over what is seen: [B, M, size].
    Where nothing is seen, nothing: zeros."""
    weights = torch.softmax(torch.where(seen, scores, NOWHERE), -1) * seen
    return (weights @ values).transpose(1, 2).flatten(2)


class GRUGate(nn.Module):
    """The gated residual of Parisotto et al. (2020): between a stream x and what a layer y adds to it. It starts close
    to the stream alone, by a bias of 2."""

    def __init__(self, size: int, bias: float = 2.0) -> None:
        super().__init__()
        self.from_layer, self.from_stream = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.inner, self.bias = nn.Linear(size, size, bias=False), nn.Parameter(torch.full((size,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (reset, update, new), (reset_x, update_x) = self.from_layer(y).chunk(3, -1), self.from_stream(x).chunk(2, -1)
        update = torch.sigmoid(update + update_x - self.bias)
        new = torch.tanh(new + self.inner(torch.sigmoid(reset + reset_x) * x))
        return torch.lerp(x, new, update)


class GTrXLLayer(nn.Module):
    """Attention of each row to the rows up to `window` before it and to itself, then a perceptron; inputs are
    layer-normalised, and gates stand in for residual sums."""

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        # a bias of keys would have no gradient but rounding errors
        self.query, self.key_value = nn.Linear(size, size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.merge = nn.Linear(size, size)
        self.widen, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.gate, self.last_gate = GRUGate(size), GRUGate(size)
        # Relative positions (Dai et al. 2019), learned: a key of each distance, and biases of both kinds of score
        self.distance = nn.Parameter(torch.zeros(heads, window + 1, size // heads))
        self.content, self.position = (nn.Parameter(torch.zeros(heads, 1, size // heads)) for _ in range(2))

    def forward(self, rows: Tensor, apart: Tensor, seen: Tensor) -> Tensor:
        """Rows [B, window + T, size], the first of which are remembered -> [B, T, size]; `apart` [T, window + T] says
        how far they lie back, and `seen` [B, 1, T, window + T] which may be attended to."""
        x, normed = rows[:, self.window :], self.before(rows)
        query = heads_apart(self.query(normed[:, self.window :]), self.heads)
        key, value = (heads_apart(part, self.heads) for part in self.key_value(normed).chunk(2, -1))
        by_distance = (query + self.position) @ self.distance.transpose(1, 2)  # [B, heads, T, window + 1]
        # picked by products: the gradient of an index adds up in any order on a GPU
        picks = (apart.clamp(0, self.window)[..., None] == torch.arange(self.window + 1, device=apart.device)).to(
            x.dtype
        )
        by_distance = torch.einsum("bhtd,tsd->bhts", by_distance, picks)
        scores = ((query + self.content) @ key.transpose(2, 3) + by_distance) * query.shape[-1] ** -0.5
        x = self.gate(x, torch.relu(self.merge(attend(scores, value, seen))))
        return self.last_gate(x, torch.relu(self.narrow(torch.relu(self.widen(self.between(x))))))


class GTrXL(nn.Module):
    """A gated transformer over the last `window` rows of an episode (Parisotto et al. 2020): [T, B, inputs] ->
    [T, B, size], and the memory after them.

    The memory is what each layer read of those rows, [1, B, window * size] each, and how many there are, [1, B, 1].
    Rows of a sequence are computed side by side, with the numbers of one after the other; no gradient passes to what
    is remembered.
    """

    def __init__(self, inputs: int, size: int, layers: int, heads: int, window: int) -> None:
        super().__init__()
        self.out, self.window = size, window
        self.embed = nn.Linear(inputs, size)
        self.layers = nn.ModuleList(GTrXLLayer(size, heads, window) for _ in range(layers))

    def initial(self, slots: int) -> Memory:
        sizes = [self.window * self.out] * len(self.layers) + [1]
        return tuple(self.embed.weight.new_zeros(1, slots, size) for size in sizes)

    def forward(self, x: Tensor, past: Past) -> tuple[Tensor, Memory]:
        *kept, count = past.memory
        apart, live = self.reach(past.start, count)
        near = (apart >= 0) & (apart <= self.window)
        seen = near & live[0][:, None] & (live[1][:, None] == live[1][:, self.window :, None])  # [B, T, window + T]
        y, after = self.embed(x).transpose(0, 1), []
        for layer, old in zip(self.layers, kept, strict=True):
            rows = torch.cat([old[0].unflatten(-1, (self.window, self.out)), y], 1)
            after.append(rows[:, -self.window :].flatten(1)[None])
            y = layer(rows, apart, seen[:, None])
        now = (live[0] & (live[1] == live[1][:, -1:]))[:, -self.window :].sum(1, keepdim=True)
        return y.transpose(0, 1), (*after, now.to(count.dtype)[None])

    def reach(self, start: Tensor, count: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """How far each row lies before each [T, window + T]; which of the remembered and new rows there are, and the
        number of their episode, [B, window + T] each."""
        begun = start.to(torch.int64).cumsum(0).t()  # [B, T]
        rows = torch.arange(self.window + begun.shape[1], device=begun.device)
        old = rows[: self.window] >= self.window - count[0]  # [B, window]
        episode = torch.cat([torch.zeros_like(begun[:, :1]).expand(-1, self.window), begun], 1)
        there = torch.cat([old, torch.ones_like(begun, dtype=torch.bool)], 1)
        return rows[self.window :, None] - rows, (there, episode)


class Entities(nn.Module):
    """A set of entities [T, B, N, features], not all of which need be there, as one vector [T, B, out]: embedded, once
    attended to by each other, and averaged (Baker et al. 2020). Their order does not matter."""

    def __init__(self, features: int, size: int, heads: int) -> None:
        super().__init__()
        self.out, self.heads = size, heads
        self.embed, self.before, self.after = nn.Linear(features, size), nn.LayerNorm(size), nn.LayerNorm(size)
        self.query_key_value, self.merge = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)

    def forward(self, entities: Tensor, there: Tensor | None = None) -> Tensor:
        """`there` [T, B, N] is true for entities that exist; None: all do."""
        x = self.embed(entities.flatten(0, 1).to(self.embed.weight.dtype))
        live = torch.ones_like(x[..., 0], dtype=torch.bool) if there is None else there.flatten(0, 1).bool()
        parts = self.query_key_value(self.before(x)).chunk(3, -1)
        query, key, value = (heads_apart(part, self.heads) for part in parts)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        y = self.after(x + self.merge(attend(scores, value, live[:, None, None])))
        weight = live.to(y.dtype)[..., None]
        mean = (y * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean.unflatten(0, entities.shape[:2])


class TransformerLayer(nn.Module):
    """Attention to what is seen and a perceptron, each of a layer-normalised stream and added to it (GPT-2). What is
    nearer may count more, by a learned number of each distance."""

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query_key_value, self.merge = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)
        self.widen, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.distance = nn.Parameter(torch.zeros(heads, window))

    def forward(self, x: Tensor, apart: Tensor, seen: Tensor) -> Tensor:
        """x [B, N, size]; `apart` [N, N, window] is one-hot of how far two lie apart, `seen` [B, 1, N, N]."""
        parts = self.query_key_value(self.before(x)).chunk(3, -1)
        query, key, value = (heads_apart(part, self.heads) for part in parts)
        near = torch.einsum("hw,nmw->hnm", self.distance, apart)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5 + near
        x = x + self.merge(attend(scores, value, seen))
        grown: Tensor = x + self.narrow(nn.functional.gelu(self.widen(self.between(x))))
        return grown
