"""Distances between sequences of symbols, batched."""

from __future__ import annotations

import torch
from torch import Tensor


def levenshtein(
    a: Tensor, b: Tensor, a_length: Tensor | None = None, b_length: Tensor | None = None, cost: Tensor | None = None
) -> Tensor:
    """Fewest insertions, deletions and replacements that turn a into b: [B, N], [B, M] -> [B]. Levenshtein 1966.

    Rows are as long as their lengths say (all of it where None); `cost` [B, N, M] replaces the 0 / 1 price of pairing.
    d[i, j] = min(d[i-1, j] + 1, d[i, j-1] + 1, d[i-1, j-1] + cost[i, j]),  d[i, 0] = i, d[0, j] = j
    """
    batch, n, m = a.shape[0], a.shape[1], b.shape[1]
    price = (a.unsqueeze(2) != b.unsqueeze(1)).to(torch.float32) if cost is None else cost
    steps = torch.arange(m + 1, dtype=price.dtype, device=a.device)
    table = [steps.expand(batch, m + 1)]
    for i in range(n):
        above = table[-1]
        best = torch.cat([above[:, :1] + 1, torch.minimum(above[:, 1:] + 1, above[:, :-1] + price[:, i])], 1)
        table.append((best - steps).cummin(1).values + steps)  # insertions: min over k <= j of best[k] + (j - k)
    whole = torch.stack(table)  # [N + 1, B, M + 1]
    slots = torch.arange(batch, device=a.device)
    return whole[n if a_length is None else a_length, slots, m if b_length is None else b_length]


def hamming(a: Tensor, b: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Weighted number of places that differ: [..., n], [..., n] -> [...]. Hamming 1950."""
    return ((a != b) * weight).sum(-1)
