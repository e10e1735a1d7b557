"""Networks from observation to features: inputs of any space, an optional memory, and a perceptron."""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ganglion.config import NetConfig, register
from ganglion.core import Box, Composite, Discrete, Memory, Model, MultiBinary, MultiDiscrete, Obs, Past, Space
from ganglion.nn.layers import MLP, Activation, Init
from ganglion.nn.normalisers import ObsNormaliser

Size = Annotated[int, Field(ge=1, le=65_536)]  # units of a layer


@register("net", "mlp")
class MLPConfig(NetConfig):
    """Perceptrons over flat observations; images of 36 x 36 and more pass through convolutions first."""

    hidden: tuple[Size, ...] = (64, 64)
    activation: Activation = "relu"
    init: Init = "uniform"
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: Size = 64
    normalise: bool = False  # observations, by running mean and deviation

    @property
    def recurrent(self) -> bool:
        return self.memory != "none"

    def encoder(self, space: Space) -> Encoder:
        return Encoder(self, space)

    def body(self, inputs: int, count: int = 1) -> MLP:
        return MLP(count, inputs, self.hidden, self.activation, self.init)


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image as [C, H, W]; channels are the shorter end."""
    return (shape[2], *shape[:2]) if shape[2] < shape[0] else shape


def is_image(space: Space) -> bool:
    """Whether convolutions can read it; a smaller grid is flat input."""
    return isinstance(space, Box) and len(space.shape) == 3 and min(channels_first(space.shape)[1:]) >= 36


def flat_size(space: Space) -> int:
    """How many numbers `flatten` makes of a space; images and action masks are none of its business."""
    match space:
        case Box():
            return 0 if is_image(space) else space.size
        case Discrete() | MultiBinary():
            return space.n
        case MultiDiscrete():
            return sum(space.nvec)
        case Composite():
            return sum(flat_size(part) for part in seen(space).values())


def seen(space: Composite) -> dict[str, Space]:
    """The parts a network looks at: all but the action mask."""
    return {name: part for name, part in space.items.items() if name != "action_mask"}


def one_hot(choice: Tensor, n: int) -> Tensor:
    """[...] int64 -> [..., n] float; torch's own reads the tensor on the host."""
    return (choice[..., None] == torch.arange(n, device=choice.device)).float()


def flatten(obs: Obs, space: Space) -> Tensor:
    """Any observation as one float vector [T, B, flat_size]: choices one-hot, parts side by side."""
    match space:
        case Box():
            return (
                obs if len(space.shape) == 1 and obs.dtype == torch.float32 else obs.reshape(*obs.shape[:2], -1).float()
            )
        case Discrete():
            return one_hot(obs, space.n)
        case MultiDiscrete():
            return torch.cat([one_hot(obs[..., i], n) for i, n in enumerate(space.nvec)], -1)
        case MultiBinary():
            return obs.float()
        case Composite():
            parts = [flatten(obs[name], part) for name, part in seen(space).items() if flat_size(part)]
            return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def images(obs: Obs, space: Space) -> list[Tensor]:
    """The images of an observation, in order."""
    if isinstance(space, Composite):
        return [found for name, part in seen(space).items() for found in images(obs[name], part)]
    return [obs] if is_image(space) else []


def image_shapes(space: Space) -> list[tuple[int, ...]]:
    if isinstance(space, Composite):
        return [shape for part in seen(space).values() for shape in image_shapes(part)]
    return [space.shape] if isinstance(space, Box) and is_image(space) else []


class Pixels(nn.Module):
    """The convolutions of Mnih et al. (2015): an image [T, B, C, H, W] or [T, B, H, W, C] -> [T, B, out]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        first = channels_first(shape)
        self.turned = first != shape
        self.convs = nn.Sequential(
            nn.Conv2d(first[0], 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
        )
        with torch.no_grad():
            self.out = prod(self.convs(torch.zeros(1, *first)).shape)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(0, 1)
        x = x.movedim(-1, 1) if self.turned else x
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return self.convs(x).flatten(1).unflatten(0, image.shape[:2])


class Encoder(nn.Module):
    """Observations [T, B, ...] -> [T, B, out]: flat inputs, normalised on request, images, then the memory, if any."""

    def __init__(self, net: MLPConfig, space: Space) -> None:
        super().__init__()
        self.space, self.flat = space, flat_size(space)
        self.pixels = nn.ModuleList(Pixels(shape) for shape in image_shapes(space))
        self.norm = ObsNormaliser(self.flat) if net.normalise and self.flat else None
        size = self.flat + sum(view.out for view in self.pixels)  # type: ignore[misc]
        self.cell: nn.LSTMCell | nn.GRUCell | None = None
        if net.memory != "none":
            self.cell = (
                nn.LSTMCell(size, net.memory_size) if net.memory == "lstm" else nn.GRUCell(size, net.memory_size)
            )
        self.out = size if self.cell is None else net.memory_size

    def initial(self, slots: int) -> Memory:
        if self.cell is None:
            return ()
        count = 2 if isinstance(self.cell, nn.LSTMCell) else 1
        return tuple(self.cell.weight_hh.new_zeros(1, slots, self.out) for _ in range(count))

    def forward(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        parts = [view(image) for view, image in zip(self.pixels, images(obs, self.space), strict=True)]
        if self.flat:
            flat = flatten(obs, self.space)
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
            self.encoder.norm.moments.observe(flatten(obs, self.encoder.space), valid)
