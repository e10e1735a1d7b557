"""A slow, obvious replay: whole episodes as Python lists, transitions built by walking them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ganglion import ops
from ganglion.core import Past, Progress, Row


@dataclass
class Naive:
    """Remembers every row ever pushed, per slot."""

    slots: int
    rows: list[list[dict[str, float]]] = field(default_factory=list)

    def push(self, rows: list[dict[str, float]]) -> None:
        self.rows.append(rows)

    def transition(self, time: int, slot: int, n: int, gamma: float) -> tuple[float, float, float]:
        """Reward, discount and next observation of the n-step transition that starts at (time, slot)."""
        total, factor, t = 0.0, 1.0, time
        for _ in range(n):
            row = self.rows[t][slot]
            total += factor * row["reward"]
            factor *= gamma
            t += 1
            if row["terminated"]:
                factor = 0.0
            if row["terminated"] or row["truncated"]:
                break
        return total, factor, self.rows[t][slot]["obs"]


def random_rows(slots: int, count: int, seed: int, memory: bool = False) -> tuple[list[Row], Naive]:
    """Rows of a made-up world whose every observation is different, with endings of both sorts."""
    g = torch.Generator().manual_seed(seed)
    naive, rows = Naive(slots), []
    dead = torch.zeros(slots, dtype=torch.bool)
    start = torch.ones(slots, dtype=torch.bool)
    for t in range(count):
        obs = torch.arange(slots, dtype=torch.float32) + 1000.0 * t
        reward = torch.rand(slots, generator=g) * ~dead
        ends = torch.rand(slots, generator=g)
        terminated, truncated = (ends < 0.15) & ~dead, (ends > 0.85) & ~dead
        remembered = (torch.stack([obs, -obs], -1),) if memory else ()
        row = Row(obs[:, None], torch.full((slots,), t), reward, terminated, truncated, ~dead, start, {}, remembered)
        rows.append(row)
        naive.push([
            {"obs": float(obs[b]), "reward": float(reward[b]), "terminated": bool(terminated[b]),
             "truncated": bool(truncated[b]), "valid": not bool(dead[b]), "start": bool(start[b])}
            for b in range(slots)
        ])  # fmt: skip
        start, dead = dead, terminated | truncated
    return rows, naive


def feed(buffer, rows: list[Row]) -> None:
    for i, row in enumerate(rows):
        buffer.push(block([row]), (row.obs, Past((), row.start[None])), Progress(opt_steps=i))


def block(rows: list[Row]) -> Row:
    """Rows [B, ...] as they are pushed, [T, B, ...]."""
    return ops.stack(rows)
