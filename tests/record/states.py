"""States to save, and what it means for two of them to be equal."""

from __future__ import annotations

import struct
from pathlib import Path

import torch

from ganglion.core import Json, Ring, State
from ganglion.record.checkpoint import CHUNKS

BLOCK, ROWS = 8, 20  # the last block is short


def example(seed: int, pushed: int = 13) -> State:
    """Tensors of every sort and a ring into which `pushed` rows went; rows are the same for every seed."""
    gen = torch.Generator().manual_seed(seed)
    wide = torch.randn(6, 4, generator=gen)
    tensors = {
        "model/weight": wide,
        "model/transposed": wide.T,  # not contiguous, and the same memory as the one above
        "model/row": wide[2],
        "model/scalar": torch.tensor(float(seed), dtype=torch.float64),
        "flags": torch.rand(7, generator=gen) > 0.5,
        "empty": torch.empty(0, 3, dtype=torch.int64),
        "stream": torch.randint(0, 256, (33,), generator=gen, dtype=torch.uint8),
        "count": torch.tensor(2**62 + seed),
        "half": torch.randn(3, generator=gen).to(torch.bfloat16),
    }
    return State(tensors, {"at": seed, "rate": 0.1 * seed}, {"buffer/rows": ring(pushed)})


def ring(pushed: int) -> Ring:
    obs, reward = torch.zeros(ROWS, 3), torch.zeros(ROWS, dtype=torch.float64)
    stamps = [0] * -(-ROWS // BLOCK)
    for row in range(pushed):
        obs[row % ROWS] = float(row + 1)
        reward[row % ROWS] = -float(row + 1)
        stamps[row % ROWS // BLOCK] = row + 1
    return Ring({"obs": obs, "reward": reward}, BLOCK, tuple(stamps))


def same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(_same_tensor(one[k], other[k]) for k in one)


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return not one.numel() or torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)))


def same_json(one: Json, other: Json) -> bool:
    """Bit for bit, with lists for tuples."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, list | tuple) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same_json(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


def same(one: State, other: State) -> bool:
    rings = list(one.rings) == list(other.rings) and all(
        same_tensors(ring.arrays, other.rings[name].arrays) and ring[1:] == other.rings[name][1:]
        for name, ring in one.rings.items()
    )
    return rings and same_tensors(one.tensors, other.tensors) and same_json(one.scalars, other.scalars)


def chunks(folder: Path) -> set[str]:
    return {path.name for path in (folder / CHUNKS).iterdir()}
