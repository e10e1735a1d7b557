"""Memories of recurrent cells, and their steps: the library's own, plain operations inside vmap."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ganglion.core import Memory, Past
from ganglion.torch_private import vmap_level


def inside_vmap() -> bool:
    """Whether the code that asks is computed for several models at once."""
    return vmap_level() is not None


class CellMemory(nn.Module):
    """A recurrent cell run along T: [T, B, inputs] -> [T, B, size], and the memory after them."""

    def __init__(self, kind: str, inputs: int, size: int) -> None:
        super().__init__()
        self.out, self.count = size, 2 if kind == "lstm" else 1
        self.cell = nn.LSTMCell(inputs, size) if kind == "lstm" else nn.GRUCell(inputs, size)

    def initial(self, slots: int) -> Memory:
        return tuple(self.cell.weight_hh.new_zeros(1, slots, self.out) for _ in range(self.count))

    def forward(self, x: Tensor, past: Past) -> tuple[Tensor, Memory]:
        """It starts from nothing where an episode starts."""
        keep = (~past.start).to(x.dtype)[..., None]  # [T, B, 1]
        memory = tuple(m[0] for m in past.memory)
        out = []
        for t in range(x.shape[0]):
            kept = tuple(m * keep[t] for m in memory)
            memory = step(self.cell, x[t], kept)
            out.append(memory[0])
        return torch.stack(out), tuple(m[None] for m in memory)


def step(cell: nn.LSTMCell | nn.GRUCell, x: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The memory after a row x [B, ...]; the first of its tensors is what the cell says."""
    if isinstance(cell, nn.LSTMCell):
        return lstm(cell, x, *memory) if inside_vmap() else cell(x, memory)
    return (gru(cell, x, memory[0]) if inside_vmap() else cell(x, memory[0]),)


def lstm(cell: nn.LSTMCell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    gates = F.linear(x, cell.weight_ih, cell.bias_ih) + F.linear(h, cell.weight_hh, cell.bias_hh)
    enter, forget, new, leave = gates.chunk(4, -1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(c), c


def gru(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    seen, kept = F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)
    (reset, update, new), (reset_h, update_h, new_h) = seen.chunk(3, -1), kept.chunk(3, -1)
    update = torch.sigmoid(update + update_h)
    new = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
    return new + update * (h - new)
