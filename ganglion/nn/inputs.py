"""Observations of any space as what a network reads: one flat vector, and images."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ganglion.core import CENTRAL, Box, Composite, Discrete, MultiBinary, MultiDiscrete, Obs, Space
from ganglion.errors import UserError
from ganglion.nn.kernels import untouched
from ganglion.nn.kernels.conv import convolved, scaled
from ganglion.nn.layers import PRECISIONS, Init, Precision, initialise

IMAGE = 36  # pixels a side that Mnih et al.'s convolutions need; what is smaller is a grid


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image as [C, H, W]; channels are the end beside a square, else the shorter end."""
    square = (shape[0] == shape[1]) - (shape[1] == shape[2])
    last = square > 0 or (square == 0 and shape[2] < shape[0])
    return (shape[2], *shape[:2]) if last else shape


class Reading(NamedTuple):
    """How parts of an observation are read: what is less than `least` pixels high or wide is flat input; Boxes
    [entities, features] are sets, or flat as well."""

    least: int = IMAGE
    sets: bool = False


READING = Reading()


def is_image(space: Box, how: Reading = READING) -> bool:
    """Whether convolutions read it."""
    return len(space.shape) == 3 and min(channels_first(space.shape)[1:]) >= how.least


def is_set(space: Space, how: Reading) -> bool:
    """Whether it is a Box [entities, features] that attention reads."""
    return how.sets and type(space) is Box and len(space.shape) == 2


def is_flat(space: Box, how: Reading) -> bool:
    return not is_image(space, how) and not is_set(space, how)


def flat_size(space: Space, how: Reading = READING) -> int:
    """How many numbers `flatten` makes of a space; images, sets and masks are none of its business."""
    match space:
        case Box():
            return space.size if is_flat(space, how) else 0
        case Discrete() | MultiBinary():
            return space.n
        case MultiDiscrete():
            return sum(space.nvec)
        case Composite():
            return sum(flat_size(part, how) for part in seen(space, how).values())


def seen(space: Composite, how: Reading = READING) -> dict[str, Space]:
    """The parts a network looks at by themselves: all but the action mask, masks of sets and what is central."""
    masks = {"action_mask", CENTRAL, *(f"{name}_mask" for name, part in space.items.items() if is_set(part, how))}
    return {name: part for name, part in space.items.items() if name not in masks}


def one_hot(choice: Tensor, n: int) -> Tensor:
    """[...] int64 -> [..., n] float; torch's own reads the tensor on the host."""
    return (choice[..., None] == torch.arange(n, device=choice.device)).float()


def flatten(obs: Obs, space: Space, how: Reading = READING) -> Tensor:
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
            kept = [(name, part) for name, part in seen(space, how).items() if flat_size(part, how)]
            parts = [flatten(obs[name], part, how) for name, part in kept]
            return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


Path = tuple[str, ...]


def boxes(space: Space, how: Reading, within: Path = ()) -> list[tuple[Path, Box]]:
    """Where images and sets are in an observation, in order, and their spaces."""
    match space:
        case Composite():
            return [found for name, part in seen(space, how).items() for found in boxes(part, how, (*within, name))]
        case Box() if not is_flat(space, how):
            return [(within, space)]
    return []


def part_at(obs: Obs, path: Path) -> Obs:
    for name in path:
        obs = obs[name]
    return obs


def set_mask(space: Space, path: Path, entities: int) -> Path | None:
    """Where the mask of the set at a path is: `NAME_mask` beside it, a MultiBinary; None where there is none."""
    if not path:
        return None
    for name in path[:-1]:
        space = space.items[name]  # type: ignore[union-attr]
    name = f"{path[-1]}_mask"
    mask = space.items.get(name)  # type: ignore[union-attr]
    if mask is not None and mask != MultiBinary(entities):
        raise UserError(f"env: {name} masks {entities} entities and should be MultiBinary({entities}), not {mask}.")
    return None if mask is None else (*path[:-1], name)


def view(space: Box, init: Init, precision: Precision = "float32") -> Pixels | Cells:
    """The convolutions for an image or a grid."""
    dtype = PRECISIONS[precision]
    made = Pixels(space.shape, dtype) if is_image(space) else Cells(space, dtype)
    init_convs(made, init)
    return made


def init_convs(module: nn.Module, init: Init) -> None:
    """Draws the weights of all convolutions anew, unless they are to begin as torch's own do."""
    for layer in module.modules() if init != "uniform" else ():
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is not None
            area = prod(layer.kernel_size)
            initialise(layer.weight, layer.bias, layer.in_channels * area, layer.out_channels * area, init, 2**0.5)


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
