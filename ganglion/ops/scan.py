"""The one recursion behind all returns, in O(log T) tensor operations instead of T."""

from __future__ import annotations

import torch
from torch import Tensor


def scan(x: Tensor, factor: Tensor) -> Tensor:
    """y[t] = x[t] + factor[t] * y[t + 1], y[T] = 0, along axis 0: [T, ...] -> [T, ...].

    Odd-even reduction: neighbours are merged, the problem of half the length is solved, and the rows left out follow
    from it. O(T) work in about 5 log2(T) large operations, no division (a factor of 0 cuts exactly), and gradients.
    """
    rows = x.shape[0]
    if rows <= 2:
        return x if rows < 2 else torch.stack([torch.addcmul(x[0], factor[0], x[1]), x[1]])
    half = rows // 2
    even_x, even_f = x[: 2 * half : 2], factor[: 2 * half : 2]
    odd_x, odd_f = x[1::2], factor[1::2]
    pair_x, pair_f = torch.addcmul(even_x, even_f, odd_x), even_f * odd_f
    if rows % 2:  # the last row has no neighbour: it is its own pair
        pair_x, pair_f = torch.cat([pair_x, x[-1:]]), torch.cat([pair_f, factor[-1:]])
    even_y = scan(pair_x, pair_f)  # [half or half + 1, ...]
    return _interleave(even_y, odd_x, odd_f)


def _interleave(even_y: Tensor, odd_x: Tensor, odd_f: Tensor) -> Tensor:
    """y of the odd rows from the even row after each, and both in order."""
    half = odd_x.shape[0]
    if even_y.shape[0] > half:
        odd_y = torch.addcmul(odd_x, odd_f, even_y[1:])
        return torch.cat([torch.stack([even_y[:half], odd_y], 1).flatten(0, 1), even_y[half:]])
    odd_y = torch.cat([torch.addcmul(odd_x[:-1], odd_f[:-1], even_y[1:]), odd_x[-1:]])
    return torch.stack([even_y, odd_y], 1).flatten(0, 1)
