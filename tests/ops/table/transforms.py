"""Scales and running moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganglion import ops
from tests.ops.world import Array, Entry, World, each


def rescale(x: float, eps: float) -> float:
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x


def unrescale(y: float, eps: float) -> float:
    if eps == 0:
        return np.sign(y) * ((abs(y) + 1) ** 2 - 1)
    return np.sign(y) * (((np.sqrt(1 + 4 * eps * (abs(y) + 1 + eps)) - 1) / (2 * eps)) ** 2 - 1)


def support(w: World) -> Array:
    """Rising, evenly or not."""
    return np.cumsum(w.rng.uniform(0.1, 1.0, w.n + 1)) - 2 if w.flag else np.linspace(-2.0, 2.0, w.n + 1)


def two_hot(x: Array, support: Array) -> Array:
    def row(v: float) -> Array:
        out, v = np.zeros(len(support)), min(max(v, support[0]), support[-1])
        i = max(k for k in range(len(support) - 1) if k == 0 or support[k] <= v)
        out[i + 1] = (v - support[i]) / (support[i + 1] - support[i])
        out[i] = 1 - out[i + 1]
        return out

    return each(row, x)


def on_points(w: World) -> tuple[Any, ...]:
    """Between the points, or exactly on them."""
    points = support(w)
    return w.normal(scale=2.0) if w.live else w.rng.choice(points, (w.T, w.B)), points


def moments(x: Array, valid: Array | None) -> Any:
    lead = x.shape[:1] if valid is None else valid.shape
    kept = [x[i] for i in np.ndindex(lead) if valid is None or valid[i]]
    zero = np.zeros(x.shape[len(lead) :])
    mean = sum(kept, zero) / max(len(kept), 1)
    var = sum([(row - mean) ** 2 for row in kept], zero) / max(len(kept), 1)
    return mean, var, np.float64(len(kept))


def merged(a: ops.Moments, b: ops.Moments) -> Any:
    """By sums and sums of squares."""
    count = float(a.rows + b.rows)
    if count == 0:
        return a.mean, a.var, np.float64(0)
    mean = (a.rows * a.mean + b.rows * b.mean) / count
    square = (a.rows * (a.var + a.mean**2) + b.rows * (b.var + b.mean**2)) / count
    return mean, square - mean**2, np.float64(count)


def some_moments(w: World, rows: float | None = None) -> ops.Moments:
    count = float(w.rng.integers(0, 9)) if rows is None else rows
    return ops.Moments(w.rng.normal(size=w.A), w.rng.random(w.A) + 0.1, np.array(count))


def two_moments(w: World) -> tuple[Any, ...]:
    a, b = some_moments(w), some_moments(w)
    if w.live == 0:  # nothing seen at all
        a, b = (ops.Moments(np.zeros(w.A), np.zeros(w.A), np.array(0.0)) for _ in range(2))
    return a, b


def popart(weight: Array, bias: Array, old: ops.Moments, new: ops.Moments) -> Any:
    w, b = np.zeros(weight.shape), np.zeros(bias.shape)
    for i in range(len(bias)):
        s, t = np.sqrt(old.var[i] + 1e-8), np.sqrt(new.var[i] + 1e-8)
        w[i] = weight[i] * s / t
        b[i] = (s * bias[i] + old.mean[i] - new.mean[i]) / t
    return w, b


def normalised(m: ops.Moments, x: Array, limit: float) -> Array:
    def row(x: Array) -> list[float]:
        z = [(x[i] - m.mean[i]) / np.sqrt(m.var[i] + 1e-8) for i in range(len(x))]
        return [min(max(v, -limit), limit) for v in z]

    return each(row, x)


def wide(w: World) -> Array:
    return np.exp(w.normal(scale=3.0)) * np.sign(w.normal())


TABLE = {
    "rescale": Entry(
        lambda w: (wide(w), w.choose([1e-2, 0.0, 1.0])),
        lambda x, eps: each(lambda v: rescale(v, eps), x),
        ops.rescale,
        (0,),
    ),
    "unrescale": Entry(
        lambda w: (w.normal(scale=3.0), w.choose([1e-2, 0.0, 1.0])),
        lambda x, eps: each(lambda v: unrescale(v, eps), x),
        ops.unrescale,
        (0,),
    ),
    "symlog": Entry(
        lambda w: (wide(w),), lambda x: each(lambda v: np.sign(v) * np.log(1 + abs(v)), x), ops.symlog, (0,)
    ),
    "symexp": Entry(
        lambda w: (w.normal(),), lambda x: each(lambda v: np.sign(v) * (np.exp(abs(v)) - 1), x), ops.symexp, (0,)
    ),
    "two_hot": Entry(on_points, two_hot, ops.two_hot, (0,)),
    "from_two_hot": Entry(
        lambda w: (w.uniform(w.n + 1), support(w)),
        lambda p, z: each(lambda p: sum(p * z), p),
        ops.from_two_hot,
        (0, 1),
    ),
    "moments": Entry(lambda w: (w.table(scale=3.0), w.valid() if w.flag else None), moments, ops.moments, (0,)),
    "merge_moments": Entry(two_moments, merged, ops.merge_moments, (0, 1)),
    "Moments.std": Entry(
        lambda w: (some_moments(w), w.choose([1e-8, 0.1])),
        lambda m, eps: np.array([np.sqrt(v + eps) for v in m.var]),
        lambda m, eps: m.std(eps),
        (0,),
    ),
    "Moments.normalise": Entry(
        lambda w: (some_moments(w), w.table(), w.choose([10.0, 0.5])),
        normalised,
        lambda m, x, limit: m.normalise(x, limit),
        (1,),
    ),
    "popart": Entry(
        lambda w: (w.rng.normal(size=(w.A, w.n)), w.rng.normal(size=w.A), some_moments(w), some_moments(w)),
        popart,
        ops.popart,
        (0, 1),
    ),
}
