"""Networks from observation to features: an encoder with an optional memory, and a perceptron."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ganglion.config import NetConfig, register
from ganglion.core import Memory, Model, Obs, Past, Space
from ganglion.nn.inputs import IMAGE, flat_size, flatten, image_spaces, images, view
from ganglion.nn.layers import MLP, Activation, Init, Precision
from ganglion.nn.normalisers import ObsNormaliser

Size = Annotated[int, Field(ge=1, le=65_536)]  # units of a layer


@register("net", "mlp")
class MLPConfig(NetConfig):
    """Perceptrons over flat observations; images of 36 x 36 and more pass through convolutions, grids on request."""

    hidden: tuple[Size, ...] = (64, 64)
    activation: Activation = "relu"
    init: Init = "uniform"
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: Size = 64
    normalise: bool = False  # observations, by running mean and deviation
    grid: Literal["flat", "conv"] = "flat"  # smaller images, from 5 x 5: as flat numbers, or through a convolution
    precision: Precision = "float32"  # that layers compute in

    @property
    def recurrent(self) -> bool:
        return self.memory != "none"

    def encoder(self, space: Space) -> Encoder:
        return Encoder(self, space)

    def body(self, inputs: int, count: int = 1) -> MLP:
        return MLP(count, inputs, self.hidden, self.activation, self.init, self.precision)


class Encoder(nn.Module):
    """Observations [T, B, ...] -> [T, B, out]: flat inputs, normalised on request, images, then the memory, if any."""

    def __init__(self, net: MLPConfig, space: Space) -> None:
        super().__init__()
        self.least = 5 if net.grid == "conv" else IMAGE  # pixels a side that convolutions read
        self.space, self.flat = space, flat_size(space, self.least)
        self.pixels = nn.ModuleList(view(part, net.init, net.precision) for part in image_spaces(space, self.least))
        self.norm = ObsNormaliser(self.flat) if net.normalise and self.flat else None
        size = self.flat + sum(part.out for part in self.pixels)  # type: ignore[misc]
        self.cell: nn.LSTMCell | nn.GRUCell | None = None
        if net.memory != "none":
            kind = nn.LSTMCell if net.memory == "lstm" else nn.GRUCell
            self.cell = kind(size, net.memory_size)
        self.out = size if self.cell is None else net.memory_size

    def initial(self, slots: int) -> Memory:
        if self.cell is None:
            return ()
        count = 2 if isinstance(self.cell, nn.LSTMCell) else 1
        return tuple(self.cell.weight_hh.new_zeros(1, slots, self.out) for _ in range(count))

    def forward(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        parts = [see(image) for see, image in zip(self.pixels, images(obs, self.space, self.least), strict=True)]
        if self.flat:
            flat = flatten(obs, self.space, self.least)
            parts.append(flat if self.norm is None else self.norm(flat))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return (x, ()) if self.cell is None else self.remember(self.cell, x, past)

    def remember(self, cell: nn.LSTMCell | nn.GRUCell, x: Tensor, past: Past) -> tuple[Tensor, Memory]:
        """Runs the memory along T; it starts from nothing where an episode starts."""
        keep = (~past.start).to(x.dtype)[..., None]  # [T, B, 1]
        memory = tuple(m[0] for m in past.memory)
        out = []
        for t in range(x.shape[0]):
            kept = tuple(m * keep[t] for m in memory)
            memory = cell(x[t], kept) if isinstance(cell, nn.LSTMCell) else (cell(x[t], kept[0]),)
            out.append(memory[0])
        return torch.stack(out), tuple(m[None] for m in memory)


class Encoded(Model):
    """A model whose networks all read one encoder."""

    def __init__(self, net: MLPConfig, space: Space) -> None:
        super().__init__()
        self.encoder = net.encoder(space)
        self.recurrent = net.recurrent

    def initial(self, slots: int) -> Memory:
        return self.encoder.initial(slots)

    def observe(self, obs: Obs, valid: Tensor) -> None:
        if self.encoder.norm is not None:
            self.encoder.norm.moments.observe(flatten(obs, self.encoder.space, self.encoder.least), valid)

    @property
    def watches(self) -> bool:
        """Whether `observe` does anything."""
        return self.encoder.norm is not None
