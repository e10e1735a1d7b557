"""The residual network for images of Espeholt et al. (2018), IMPALA's large one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ganglion.core import Box
from ganglion.nn.inputs import channels_first
from ganglion.nn.kernels.conv import scaled

CHANNELS = (16, 32, 32)


class ResidualConvs(nn.Module):
    """x + two 3 x 3 convolutions of it, each of what was rectified."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + y


class ResNet(nn.Module):
    """Three times a convolution, halved by a maximum, and two residual blocks; then one layer of `size` units: an image
    [T, B, C, H, W] or [T, B, H, W, C] -> [T, B, out]. `width` multiplies the channels."""

    def __init__(self, shape: tuple[int, ...], width: int, dtype: torch.dtype, size: int = 256) -> None:
        super().__init__()
        channels, *sides = channels_first(shape)
        self.turned, self.dtype, self.out = (channels, *sides) != shape, dtype, size
        stages: list[nn.Module] = []
        for wide in (width * base for base in CHANNELS):
            stages += [nn.Conv2d(channels, wide, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [ResidualConvs(wide), ResidualConvs(wide)]
            channels, sides = wide, [(side + 1) // 2 for side in sides]
        self.stages, self.last = nn.Sequential(*stages), nn.Linear(channels * sides[0] * sides[1], size)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(0, 1)
        x = scaled(x.movedim(-1, 1) if self.turned else x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            x = torch.relu(self.last(torch.relu(self.stages(x)).flatten(1)))
        return x.float().unflatten(0, image.shape[:2])


class Tower(nn.Module):
    """Residual blocks at full resolution, as boards are read (Silver et al. 2017): a grid [T, B, C, H, W] or
    [T, B, H, W, C] -> [T, B, out]. 16 channels times `width`; no normalisation of batches."""

    def __init__(self, space: Box, width: int, blocks: int, dtype: torch.dtype) -> None:
        super().__init__()
        (channels, *sides), wide = channels_first(space.shape), 16 * width
        self.turned, self.dtype, self.out = (channels, *sides) != space.shape, dtype, 8 * sides[0] * sides[1]
        self.most = max(space.high) if space.dtype == torch.uint8 else 1.0
        first, last = nn.Conv2d(channels, wide, 3, padding=1), nn.Conv2d(wide, 8, 1)
        self.stages = nn.Sequential(first, *(ResidualConvs(wide) for _ in range(blocks)), nn.ReLU(), last)

    def forward(self, grid: Tensor) -> Tensor:
        x = grid.flatten(0, 1)
        x = scaled(x.movedim(-1, 1) if self.turned else x, self.most)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            x = torch.relu(self.stages(x)).flatten(1)
        return x.float().unflatten(0, grid.shape[:2])
