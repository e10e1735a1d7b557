"""Slow and obvious: every recursion as a loop over time and slots in float64 numpy, one number at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

Array = Any


class Case(NamedTuple):
    """A rollout with endings of both kinds; `after` is unrelated to `value`, so a wrong index cannot hide."""

    reward: Array
    value: Array
    after: Array
    discount: Array
    cut: Array
    log_ratio: Array

    def tensors(self) -> list[torch.Tensor]:
        return [torch.as_tensor(x) for x in self]


@st.composite
def cases(draw: Any, rows: int = 17) -> Case:
    shape = (draw(st.integers(1, rows)), draw(st.integers(1, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ends = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    terminated = rng.random(shape) < ends
    truncated = rng.random(shape) < ends * 0.5
    gamma = rng.uniform(0.5, 1.0, shape) if draw(st.booleans()) else np.full(shape, 0.99)
    numbers = [rng.normal(size=shape) for _ in range(4)]
    return Case(*numbers[:3], np.where(terminated, 0.0, gamma), terminated | truncated, numbers[3])


def backwards(shape: tuple[int, int], step: Any) -> Array:
    """out[t, b] = step(t, b, out[t + 1, b]) with None after the last row."""
    out = np.zeros(shape)
    for b in range(shape[1]):
        later = None
        for t in reversed(range(shape[0])):
            later = out[t, b] = step(t, b, later)
    return out


def gae(c: Case, lam: float) -> Array:
    def step(t: int, b: int, later: float | None) -> float:
        delta = c.reward[t, b] + c.discount[t, b] * c.after[t, b] - c.value[t, b]
        if later is None or c.cut[t, b]:
            return delta
        return delta + c.discount[t, b] * lam * later

    return backwards(c.reward.shape, step)


def lambda_returns(c: Case, lam: Array) -> Array:
    def step(t: int, b: int, later: float | None) -> float:
        if later is None or c.cut[t, b]:
            return c.reward[t, b] + c.discount[t, b] * c.after[t, b]
        mixed = (1 - lam[t, b]) * c.after[t, b] + lam[t, b] * later
        return c.reward[t, b] + c.discount[t, b] * mixed

    return backwards(c.reward.shape, step)


def vtrace(c: Case, lam: float, clips: tuple[float, float, float]) -> tuple[Array, Array]:
    """By the paper's sum over s of products of c, not by a recursion."""
    rows, slots = c.reward.shape
    rho = np.minimum(np.exp(c.log_ratio), clips[0])
    trace = lam * np.minimum(np.exp(c.log_ratio), clips[1])
    goal, advantage = np.zeros((rows, slots)), np.zeros((rows, slots))
    for b in range(slots):
        for t in range(rows):
            total, weight = 0.0, 1.0
            for s in range(t, rows):
                total += weight * rho[s, b] * (c.reward[s, b] + c.discount[s, b] * c.after[s, b] - c.value[s, b])
                if c.cut[s, b]:
                    break
                weight *= c.discount[s, b] * trace[s, b]
            goal[t, b] = c.value[t, b] + total
    for b in range(slots):
        for t in range(rows):
            ahead = c.after[t, b]
            if t + 1 < rows and not c.cut[t, b]:
                ahead += goal[t + 1, b] - c.value[t + 1, b]
            rho_pg = min(np.exp(c.log_ratio[t, b]), clips[2])
            advantage[t, b] = rho_pg * (c.reward[t, b] + c.discount[t, b] * ahead - c.value[t, b])
    return goal, advantage


def upgo(c: Case) -> Array:
    rows = c.reward.shape[0]

    def step(t: int, b: int, later: float | None) -> float:
        if later is None or c.cut[t, b]:
            return c.reward[t, b] + c.discount[t, b] * c.after[t, b]
        assert t + 1 < rows
        better = c.reward[t + 1, b] + c.discount[t + 1, b] * c.after[t + 1, b] >= c.value[t + 1, b]
        return c.reward[t, b] + c.discount[t, b] * (later if better else c.after[t, b])

    return backwards(c.reward.shape, step)


def retrace(c: Case, lam: float) -> Array:
    q = c.value

    def step(t: int, b: int, later: float | None) -> float:
        ahead = c.after[t, b]
        if later is not None and not c.cut[t, b]:
            ahead += lam * min(1.0, np.exp(c.log_ratio[t + 1, b])) * (later - q[t + 1, b])
        return c.reward[t, b] + c.discount[t, b] * ahead

    return backwards(c.reward.shape, step)


def n_step(c: Case, n: int) -> tuple[Array, Array, Array]:
    rows, slots = c.reward.shape
    total, product = np.zeros((rows, slots)), np.ones((rows, slots))
    ahead = np.zeros((rows, slots), dtype=np.int64)
    for b in range(slots):
        for t in range(rows):
            row = t
            while row < rows and row < t + n:
                total[t, b] += product[t, b] * c.reward[row, b]
                product[t, b] *= c.discount[row, b]
                row += 1
                if c.cut[row - 1, b]:
                    break
            ahead[t, b] = row
    return total, product, ahead


def project(reward: float, discount: float, support: Array, probs: Array) -> Array:
    """Algorithm 1 of Bellemare et al. 2017, with the mass of an exact hit given back (l == u)."""
    n, step = len(support), support[1] - support[0]
    out = np.zeros(n)
    for j in range(n):
        b = (min(max(reward + discount * support[j], support[0]), support[-1]) - support[0]) / step
        low, high = int(np.floor(b + 1e-12)), int(np.ceil(b - 1e-12))
        if low >= high:
            out[low] += probs[j]
        else:
            out[low] += probs[j] * (high - b)
            out[high] += probs[j] * (b - low)
    return out


def quantile_huber(theta: Array, tau: Array, goal: Array, kappa: float) -> float:
    total = 0.0
    for i in range(len(theta)):
        for j in range(len(goal)):
            u = goal[j] - theta[i]
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(tau[i] - (1.0 if u < 0 else 0.0)) * huber / kappa / len(goal)
    return total
