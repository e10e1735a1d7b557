"""Observations of any space as what a network reads: one flat vector, and images."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from ganglion.core import CENTRAL, Box, Composite, Discrete, MultiBinary, MultiDiscrete, Obs, Space
from ganglion.nn.kernels import untouched
from ganglion.nn.kernels.conv import convolved, scaled
from ganglion.nn.layers import PRECISIONS, Init, Precision

IMAGE = 36  # pixels a side that Mnih et al.'s convolutions need; what is smaller is a grid


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image as [C, H, W]; channels are the end beside a square, else the shorter end."""
    square = (shape[0] == shape[1]) - (shape[1] == shape[2])
    last = square > 0 or (square == 0 and shape[2] < shape[0])
    return (shape[2], *shape[:2]) if last else shape


def is_image(space: Space, least: int = IMAGE) -> bool:
    """Whether convolutions read it; what is less than `least` pixels high or wide is flat input."""
    return isinstance(space, Box) and len(space.shape) == 3 and min(channels_first(space.shape)[1:]) >= least


def flat_size(space: Space, least: int = IMAGE) -> int:
    """How many numbers `flatten` makes of a space; images and action masks are none of its business."""
    match space:
        case Box():
            return 0 if is_image(space, least) else space.size
        case Discrete() | MultiBinary():
            return space.n
        case MultiDiscrete():
            return sum(space.nvec)
        case Composite():
            return sum(flat_size(part, least) for part in seen(space).values())


def seen(space: Composite) -> dict[str, Space]:
    """The parts a network looks at: all but the action mask and what is central."""
    return {name: part for name, part in space.items.items() if name not in ("action_mask", CENTRAL)}


def one_hot(choice: Tensor, n: int) -> Tensor:
    """[...] int64 -> [..., n] float; torch's own reads the tensor on the host."""
    return (choice[..., None] == torch.arange(n, device=choice.device)).float()


def flatten(obs: Obs, space: Space, least: int = IMAGE) -> Tensor:
    """Any observation as one float vector [T, B, flat_size]: choices one-hot, parts side by side."""
    match space:
        case Box():
            ready = len(space.shape) == 1 and obs.dtype == torch.float32
            return obs if ready else obs.reshape(*obs.shape[:2], -1).float()
        case Discrete():
            return one_hot(obs, space.n)
        case MultiDiscrete():
            return torch.cat([one_hot(obs[..., i], n) for i, n in enumerate(space.nvec)], -1)
        case MultiBinary():
            return obs.float()
        case Composite():
            kept = [(name, part) for name, part in seen(space).items() if flat_size(part, least)]
            parts = [flatten(obs[name], part, least) for name, part in kept]
            return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def images(obs: Obs, space: Space, least: int = IMAGE) -> list[Tensor]:
    """The images of an observation, in order."""
    if isinstance(space, Composite):
        return [found for name, part in seen(space).items() for found in images(obs[name], part, least)]
    return [obs] if is_image(space, least) else []


def image_spaces(space: Space, least: int = IMAGE) -> list[Box]:
    """The spaces of those images."""
    if isinstance(space, Composite):
        return [found for part in seen(space).values() for found in image_spaces(part, least)]
    return [space] if isinstance(space, Box) and is_image(space, least) else []


def view(space: Box, init: Init, precision: Precision = "float32") -> Pixels | Cells:
    """The convolutions for an image or a grid."""
    dtype = PRECISIONS[precision]
    made = Pixels(space.shape, dtype) if is_image(space) else Cells(space, dtype)
    for layer in made.modules():
        if isinstance(layer, nn.Conv2d) and init == "orthogonal":
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return made


class Pixels(nn.Module):
    """The convolutions of Mnih et al. (2015): an image [T, B, C, H, W] or [T, B, H, W, C] -> [T, B, out]."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
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
        if all(untouched(layer, nn.Conv2d) or untouched(layer, nn.ReLU) for layer in self.convs):
            for layer in self.convs:  # the rectifiers are part of what is computed for each convolution
                x = convolved(layer, x, self.dtype) if isinstance(layer, nn.Conv2d) else x
        else:
            x = self.convs(scaled(x))
        return x.flatten(1).unflatten(0, image.shape[:2]).float()


class Cells(nn.Module):
    """The convolution of Young and Tian (2019) for small grids, 3 x 3 with 16 channels: [T, B, H, W, C] -> [T, B, out].

    Bytes are divided by what the space says is their most: ones and zeros stay as they are.
    """

    def __init__(self, space: Box, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        first = channels_first(space.shape)
        self.turned = first != space.shape
        self.most = max(space.high) if space.dtype == torch.uint8 else 1.0
        self.conv = nn.Conv2d(first[0], 16, 3)
        self.out = 16 * (first[1] - 2) * (first[2] - 2)

    def forward(self, grid: Tensor) -> Tensor:
        x = grid.flatten(0, 1)
        x = x.movedim(-1, 1) if self.turned else x
        known = untouched(self.conv, nn.Conv2d)
        x = convolved(self.conv, x, self.dtype, self.most) if known else torch.relu(self.conv(scaled(x, self.most)))
        return x.flatten(1).unflatten(0, grid.shape[:2]).float()
