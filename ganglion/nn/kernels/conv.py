"""Convolutions of images [N, C, H, W] in the layout that is fastest for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MANY = 64  # images that a processor convolves faster with the channels of a pixel side by side
WORD = 4  # bytes that are moved as one number
# In which order the numbers of a tile come: channel, row, column, or row, column, channel.
PLANES, PIXELS = (1, 3, 5), (3, 5, 1)


def convolved(conv: nn.Conv2d, x: Tensor, dtype: torch.dtype, most: float = 255.0) -> Tensor:
    """A convolution and a rectifier in a precision; bytes are divided by their `most`."""
    assert conv.bias is not None
    weight, bias, stride = conv.weight.to(dtype), conv.bias.to(dtype), conv.stride[0]  # the same both ways
    most = most if x.dtype == torch.uint8 else 1.0
    if in_tiles(conv, x, dtype):
        order = PLANES if x.dtype == torch.uint8 else PIXELS  # what lies together, mostly, stays together
        x, weight, stride = tiles(x, stride, order).to(dtype), tiles(weight, stride, order), 1
    else:
        x = laid(x, dtype)
    return torch.relu(nn.functional.conv2d(x if most == 1.0 else x / most, weight, bias, stride))


def scaled(x: Tensor, most: float = 255.0) -> Tensor:
    """Images as convolutions that are called as modules read them."""
    return x.float() / most if x.dtype == torch.uint8 else x


def laid(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Images of a type; many on a CPU with channels last, which its convolutions are faster with."""
    if x.device.type != "cpu" or x.shape[0] < MANY:
        return x.to(dtype)
    return x.movedim(1, -1).to(dtype, memory_format=torch.contiguous_format).movedim(-1, 1)  # which vmap knows, too


# ------------------------------------------------------------ tiles


def in_tiles(conv: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether a convolution is better said in tiles as wide as its stride, over which it has the stride 1.

    The sums are the same, but of more channels: in bfloat16 a processor has faster code for that, for the gradient of
    weights most of all. The kernel and the image must be whole tiles.
    """
    side = conv.stride[0]
    whole = side > 1 and not any(size % side for size in (*conv.kernel_size, *x.shape[2:]))
    return whole and dtype == torch.bfloat16 and x.device.type == "cpu" and x.shape[0] >= MANY


def tiles(x: Tensor, side: int, order: tuple[int, int, int]) -> Tensor:
    """Images, or weights, [N, C, H, W] -> [N, C * side * side, H / side, W / side]; in memory, channels are last."""
    if x.dtype == torch.uint8 and side == WORD and order == PLANES:
        words = x.contiguous().view(torch.int32).unflatten(2, (-1, side)).permute(0, 2, 4, 1, 3)
        return words.contiguous().view(torch.uint8).flatten(3).movedim(-1, 1)
    parts = x.unflatten(2, (-1, side)).unflatten(4, (-1, side))  # [N, C, rows, row, columns, column]
    return parts.permute(0, 2, 4, *order).flatten(3).movedim(-1, 1)
