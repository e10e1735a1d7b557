"""Rows, masks and means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ganglion import ops
from ganglion.core import Draw, Noise
from tests.ops.world import Array, Entry, World, each


def counted(x: Array, valid: Array) -> list[float]:
    return [float(x[i]) for i in np.ndindex(x.shape) if valid[i]]


def weighted_mean(x: Array, weight: Array) -> Array:
    kept = counted(np.where(weight > 0, x * weight, 0.0), weight > 0)
    return np.float64(sum(kept) / max(len(kept), 1))


def masked_mean(x: Array, valid: Array) -> Array:
    kept = counted(x, valid)
    return np.float64(sum(kept) / max(len(kept), 1))


def normalise(x: Array, valid: Array | None, eps: float) -> Array:
    valid = np.ones(x.shape, bool) if valid is None else valid
    kept = counted(x, valid)
    mean = sum(kept) / max(len(kept), 1)
    std = np.sqrt(sum((v - mean) ** 2 for v in kept) / max(len(kept), 1) + eps**2)
    return each(lambda v, ok: (v - mean) / std if ok else 0.0, x, valid)


def priority(error: Array, weight: Array | None, eta: float) -> Array:
    out = np.zeros(error.shape[1])
    for b in range(len(out)):
        kept = [abs(error[t, b]) for t in range(len(error)) if weight is None or weight[t, b] > 0]
        if kept:
            out[b] = eta * max(kept) + (1 - eta) * sum(kept) / len(kept)
    return out


def shuffled(rows: int, epochs: int, minibatches: int, uniform: Array) -> Array:
    size = rows // minibatches
    orders = [sorted(range(rows), key=lambda i, e=e: uniform[i, e]) for e in range(epochs)]
    plan = [order[m * size : (m + 1) * size] for order in orders for m in range(minibatches)]
    return np.array(plan, dtype=np.int64).reshape(epochs * minibatches, size)


def masked(w: World) -> tuple[Any, ...]:
    """Rows that do not count may hold anything."""
    live = w.valid()
    return np.where(live, w.normal(), np.nan), live


def weighted(w: World) -> tuple[Any, ...]:
    weight = np.where(w.valid(), w.uniform() + 0.1, 0.0)
    return np.where(weight > 0, w.normal(), np.nan), weight


def lowest(logits: Array, legal: Array | None) -> Array:
    least = float(np.finfo(np.float64).min)
    return each(lambda x, m: [v if m is None or m[i] else least for i, v in enumerate(x)], logits, legal)


def best(q: Array, legal: Array | None) -> Array:
    return each(lambda x, m: max((i for i in range(len(x)) if m is None or m[i]), key=lambda i: x[i]), q, legal)


def at(value: Array, ahead: Array) -> Array:
    rows, slots = ahead.shape
    return np.array([[value[ahead[t, b], b] for b in range(slots)] for t in range(rows)])


def refuses(*arrays: torch.Tensor) -> bool:
    try:
        ops.alike("test", *arrays)
    except ValueError:
        return True
    return False


TABLE = {
    "alike": Entry(
        lambda w: (w.normal(), w.normal(w.n) if w.flag else w.normal()),
        lambda *x: any(y.shape != x[0].shape for y in x),
        refuses,
        (),
    ),
    "within": Entry(
        lambda w: (w.normal(), -0.5, 0.7) if w.flag else (w.normal(), w.normal() - 2, w.normal() + 2),
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        ops.within,
        (0,),
    ),
    "mask": Entry(
        lambda w: ({"x": w.normal(), **({"action_mask": w.legal()} if w.flag else {})},),
        lambda obs: obs.get("action_mask"),
        ops.mask,
        (),
    ),
    "pick": Entry(lambda w: (w.table(), w.action()), lambda *x: each(lambda q, a: q[a], *x), ops.pick, (0,)),
    "blocked": Entry(lambda w: (w.table(), w.legal()), lowest, ops.blocked, (0,)),
    "best": Entry(lambda w: (w.table(), w.legal()), best, ops.best, ()),
    "at": Entry(
        lambda w: (
            w.rng.normal(size=(w.T + 1, w.B, *[w.n] * w.flag)),
            w.rng.integers(0, w.T + 1, (w.T, w.B)),
        ),
        at,
        ops.at,
        (0,),
    ),
    "weighted_mean": Entry(weighted, weighted_mean, ops.weighted_mean, (0,)),
    "masked_mean": Entry(masked, masked_mean, ops.masked_mean, (0,)),
    "masked_means": Entry(
        lambda w: (*reversed(masked(w)), w.normal()),
        lambda valid, *rows: tuple(masked_mean(x, valid) for x in rows),
        ops.masked_means,
        (1, 2),
    ),
    "normalise": Entry(
        lambda w: (*(masked(w) if w.flag else (w.normal(), None)), w.choose([1e-6, 0.1])),
        normalise,
        ops.normalise,
        (0,),
    ),
    "sequence_priority": Entry(
        lambda w: (w.normal(), np.where(w.valid(), w.uniform(), 0.0) if w.flag else None, w.choose([0.9, 0.5])),
        priority,
        ops.sequence_priority,
        (),
    ),
    "shuffled": Entry(
        lambda w: (w.T, w.n, w.rng.integers(1, w.T + 1).item(), w.rng.random((w.T, w.n))),
        shuffled,
        lambda rows, epochs, minibatches, u: ops.shuffled(rows, epochs, minibatches, Noise(u, u)),
        (),
    ),
    "shuffle_draws": Entry(lambda w: (w.n,), lambda n: Draw(uniform=n), ops.shuffle_draws, ()),
    "above": Entry(
        lambda w: (w.normal(), 0.5 if w.flag else None),
        lambda x, limit: None if limit is None else each(lambda v: v > limit, x),
        ops.above,
        (),
    ),
    "empty": Entry(lambda w: (w.action(),), lambda x: np.zeros(0, np.float32), ops.empty, ()),
}
