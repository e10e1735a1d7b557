"""Observations of any space as what a network reads: one flat vector, and images."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from ganglion.core import Box, Composite, Discrete, MultiBinary, MultiDiscrete, Obs, Space


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
            ready = len(space.shape) == 1 and obs.dtype == torch.float32
            return obs if ready else obs.reshape(*obs.shape[:2], -1).float()
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
