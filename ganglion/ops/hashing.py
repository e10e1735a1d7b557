"""Random numbers as a function of integers: no state, the same on every device, compiled or not.

For worlds that live on the GPU: the reset of (seed, slot, episode) needs no generator and can be repeated at will.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF  # 32 bits, kept in int64: the multipliers are below 2^31, so no product overflows


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32 bits in which every input bit moves every output bit about half of the time."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW
    return x ^ (x >> 15)


def hash_bits(*keys: Tensor | int) -> Tensor:
    """32 random bits as int64 from integer keys, at least one of them a tensor; keys broadcast, order matters.

    Two lanes of 32 bits take up the keys, so that two series of numbers meet by chance once in 2^64.
    """
    first = next(k for k in keys if isinstance(k, Tensor))
    left, right = (
        torch.full_like(first, 0x243F6A88, dtype=torch.int64),
        torch.full_like(first, 0x13198A2E, dtype=torch.int64),
    )
    for key in keys:
        key = key.to(torch.int64) if isinstance(key, Tensor) else key
        for word in (key & _LOW, (key >> 32) & _LOW):
            left = _mix((left + word + 0x1E3779B9) & _LOW)
            right = _mix(((right ^ word) + 0x7F4A7C15) & _LOW)
    return _mix(left ^ _mix(right))


def hash_uniform(*keys: Tensor | int) -> Tensor:
    """A float32 in [0, 1) from integer keys; see `hash_bits`."""
    return (hash_bits(*keys) >> 8).to(torch.float32) * 2.0**-24


def hash_normal(*keys: Tensor | int) -> Tensor:
    """A standard normal float32 from integer keys. Box and Muller 1958."""
    radius = torch.sqrt(-2 * torch.log1p(-hash_uniform(*keys, 1)))
    return radius * torch.cos(2 * pi * hash_uniform(*keys, 2))
