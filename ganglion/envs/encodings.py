"""Feature engineering: pure functions of batched tensors, usable alone and in `envs.elements`.

Values come in any shape [...]; what is encoded becomes a new axis, the last one unless said otherwise. Nothing here
waits for the device or raises on a value: one that has no place becomes zeros, one beyond a range its nearest end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

import torch
from torch import Tensor

# ------------------------------------------------------------ one-hot


def one_hot(x: Tensor, n: int, dim: int = -1) -> Tensor:
    """1 in the place of x among n: [...] -> [..., n] float32; `dim` puts the new axis elsewhere (-3: image planes).

    A value outside 0 .. n - 1 has no place: zeros.
    """
    places = torch.arange(n, device=x.device)
    return (x.unsqueeze(-1) == places).to(torch.float32).movedim(-1, dim)


def clip_one_hot(x: Tensor, n: int, dim: int = -1) -> Tensor:
    """One-hot of x clipped to 0 .. n - 1."""
    return one_hot(x.clamp(0, n - 1), n, dim)


def sqrt_one_hot(x: Tensor, largest: int, dim: int = -1) -> Tensor:
    """One-hot of floor(sqrt(x)), x clipped to 0 .. largest, in isqrt(largest) + 1 places; exact for whole numbers."""
    clipped = x.clamp(0, largest).to(torch.float64)
    root = clipped.sqrt().floor()
    root = root - (root * root > clipped).to(root.dtype) + ((root + 1) * (root + 1) <= clipped).to(root.dtype)
    return one_hot(root, isqrt(largest) + 1, dim)


def div_one_hot(x: Tensor, largest: float, ratio: float, dim: int = -1) -> Tensor:
    """One-hot of floor(x / ratio), x clipped to 0 .. largest, in floor(largest / ratio) + 1 places."""
    places = int(largest // ratio) + 1
    exact = not x.is_floating_point() and float(ratio).is_integer()
    clipped = x.clamp(0, largest)
    kind = clipped.to(torch.int64) if exact else clipped.to(torch.float64)
    step = int(ratio) if exact else ratio
    return clip_one_hot(torch.div(kind, step, rounding_mode="floor"), places, dim)


# ------------------------------------------------------------ other orders


def table(order: Mapping[int, int] | Sequence[int]) -> Tensor:
    """An order as a tensor to look values up in: old value -> new place, -1 where there is none."""
    if not isinstance(order, Mapping):
        return torch.tensor(list(order), dtype=torch.int64)
    if any(key < 0 for key in order):
        raise ValueError(f"an order names values from 0 on, not {min(order)}")
    found = torch.full((max(order, default=-1) + 1,), -1, dtype=torch.int64)
    for old, new in order.items():
        found[old] = new
    return found


def reorder(x: Tensor, order: Tensor) -> Tensor:
    """The new place of each value by a `table`; -1 for a value it does not know."""
    known = (x >= 0) & (x < order.shape[0])
    return torch.where(known, order.to(x.device)[x.clamp(0, order.shape[0] - 1)], -1)


def reorder_one_hot(x: Tensor, order: Tensor, n: int, dim: int = -1) -> Tensor:
    """One-hot of the new place of each value; zeros for a value the table does not know."""
    return one_hot(reorder(x, order), n, dim)


def multi_hot(x: Tensor, n: int) -> Tensor:
    """Which of n values are among the last axis: [..., k] -> [..., n]; -1 fills a list that is shorter than k."""
    return one_hot(x, n).amax(-2)


def reorder_multi_hot(x: Tensor, order: Tensor, n: int) -> Tensor:
    """Which of n new places are among the last axis: [..., k] -> [..., n]."""
    return multi_hot(reorder(x, order), n)


# ------------------------------------------------------------ numbers


def binary(x: Tensor, bits: int) -> Tensor:
    """Bits of whole numbers, the highest first: [...] -> [..., bits] float32; x clipped to 0 .. 2^bits - 1."""
    whole = x.to(torch.int64).clamp(0, 2**bits - 1)
    shifts = torch.arange(bits - 1, -1, -1, device=x.device)
    return ((whole.unsqueeze(-1) >> shifts) & 1).to(torch.float32)


def divide(x: Tensor, by: float, dim: int | None = None) -> Tensor:
    """x / by as float32, with a new axis at `dim`."""
    whole = x.to(torch.float32) / by
    return whole if dim is None else whole.unsqueeze(dim)


def affine(x: Tensor, scale: float | Tensor, shift: float | Tensor = 0.0, clip: bool = False) -> Tensor:
    """scale * x + shift; `clip` first brings x into [-1, 1]."""
    return (x.clamp(-1.0, 1.0) if clip else x) * scale + shift


def rescale(x: Tensor, low: float | Tensor, high: float | Tensor, clip: bool = False) -> Tensor:
    """[-1, 1] onto [low, high]; with `clip` never outside it."""
    low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (low, high))
    moved = affine(x, (high - low) / 2, (high + low) / 2, clip)
    return moved.clamp(low, high) if clip else moved


def unscale(x: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """[low, high] onto [-1, 1]: the inverse of `rescale`."""
    low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (low, high))
    return (2 * x - (high + low)) / (high - low)


# ------------------------------------------------------------ positions


def frequencies(size: int) -> Tensor:
    """The size / 2 frequencies of a position vector: 10000^(-2 i / size)."""
    return 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)


def waves(x: Tensor) -> Tensor:
    """Sine and cosine in turn, element i with frequency i: [..., k] -> [..., 2 k] (Vaswani et al. 2017)."""
    angle = x.to(torch.float64) * frequencies(2 * x.shape[-1]).to(x.device)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(torch.float32)


def position(x: Tensor, size: int = 64) -> Tensor:
    """The vector of a position: [...] -> [..., size]; sine and cosine at every frequency."""
    return waves(x.unsqueeze(-1).expand(*x.shape, size // 2))
