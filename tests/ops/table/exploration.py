"""Noise on actions and parameters, and hashed random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganglion import ops
from tests.ops.world import Array, Entry, World, each


def gaussian(action: Array, normal: Array, std: float, low: Array, high: Array, limit: float | None) -> Array:
    def row(a: Array, z: Array) -> list[float]:
        out = []
        for i in range(len(a)):
            noise = std * z[i]
            noise = noise if limit is None else min(max(noise, -limit), limit)
            out.append(min(max(a[i] + noise * (high[i] - low[i]) / 2, low[i]), high[i]))
        return out

    return each(row, action, normal)


def coloured(normal: Array, beta: float) -> Array:
    """By the sums of the Fourier transform itself; the lowest frequency that T rows can tell stands in for 0."""
    rows = len(normal)
    scale = np.array([max(min(f, rows - f), 1) / rows for f in range(rows)]) ** (-beta / 2)
    scale = scale / np.sqrt(sum(scale**2) / rows)
    out = np.zeros(normal.shape)
    for i in np.ndindex(normal.shape[1:]):
        x = normal[(slice(None), *i)]
        spectrum = [scale[f] * sum(x[t] * np.exp(-2j * np.pi * f * t / rows) for t in range(rows)) for f in range(rows)]
        for t in range(rows):
            total = sum(spectrum[f] * np.exp(2j * np.pi * f * t / rows) for f in range(rows)) / rows
            out[(t, *i)] = total.real
    return out


def pink_step(state: Array, normal: Array) -> Any:
    def row(state: Array, normal: Array) -> Array:
        out = np.zeros(state.shape)
        for i, k in np.ndindex(state.shape):
            keep = np.exp(-1 / 2.0**k)
            out[i, k] = keep * state[i, k] + np.sqrt(1 - keep**2) * normal[i * state.shape[1] + k]
        return out

    moved = each(row, state, normal)
    return moved, each(lambda s: [sum(x) / np.sqrt(len(x)) for x in s], moved)


def factorised(into: Array, out: Array) -> Array:
    def root(x: float) -> float:
        return np.sign(x) * np.sqrt(abs(x))

    return np.array([[root(o) * root(i) for i in into] for o in out])


# ------------------------------------------------------------ hashing, with the integers of Python

LOW = 0xFFFFFFFF


def mix(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x21F0AAAD & LOW
    x = (x ^ (x >> 15)) * 0x735A2D97 & LOW
    return x ^ (x >> 15)


def hashed(*keys: int) -> int:
    left, right = 0x243F6A88, 0x13198A2E
    for key in keys:
        for word in (key & LOW, key >> 32 & LOW):
            left = mix((left + word + 0x1E3779B9) & LOW)
            right = mix(((right ^ word) + 0x7F4A7C15) & LOW)
    return mix(left ^ mix(right))


def hash_bits(seed: int, a: Array, b: Array) -> Array:
    return each(lambda x, y: hashed(seed, int(x), int(y)), a, b)


def uniform(*keys: int) -> float:
    return (hashed(*keys) >> 8) / 2.0**24


def hash_normal(seed: int, a: Array, b: Array) -> Array:
    def row(x: int, y: int) -> float:
        keys = seed, int(x), int(y)
        return np.sqrt(-2 * np.log(1 - uniform(*keys, 1))) * np.cos(2 * np.pi * uniform(*keys, 2))

    return each(row, a, b)


def keys(w: World) -> tuple[Any, ...]:
    wide = [w.rng.integers(-(2**62), 2**62, (w.T, w.B)) for _ in range(2)]
    return w.rng.integers(-(2**40), 2**40).item(), *wide


TABLE = {
    "epsilon_ladder": Entry(
        lambda w: (w.T, 0.4, w.choose([7.0, 3.0]), w.choose([(0, 1), (1, 3)])),
        lambda n, eps, alpha, part: np.array(
            [eps ** (1 + alpha * (part[0] * n + i) / max(part[1] * n - 1, 1)) for i in range(n)]
        ),
        ops.epsilon_ladder,
        (),
    ),
    "gaussian": Entry(
        lambda w: (
            *(w.normal(w.n), w.normal(w.n), w.choose([0.2, 1.0])),
            *(-1 - w.rng.random(w.n), 1 + w.rng.random(w.n), 0.3 if w.flag else None),
        ),
        gaussian,
        ops.gaussian,
        (0,),
    ),
    "ou_step": Entry(
        lambda w: (w.normal(w.n), w.normal(w.n), 0.5, 0.2, 0.4, 0.1),
        lambda x, z, mu, theta, sigma, dt: x + theta * (mu - x) * dt + sigma * dt**0.5 * z,
        ops.ou_step,
        (0, 1),
    ),
    "coloured": Entry(lambda w: (w.normal(), w.choose([1.0, 0.0, 2.0])), coloured, ops.coloured, (0,)),
    "pink_step": Entry(lambda w: (w.normal(w.n, w.A), w.normal(w.n * w.A)), pink_step, ops.pink_step, (0, 1)),
    "perturb": Entry(
        lambda w: ({"w": w.normal(), "b": (w.table(),)}, {"w": w.normal(), "b": (w.table(),)}, 0.3),
        lambda p, z, sigma: {"w": p["w"] + sigma * z["w"], "b": (p["b"][0] + sigma * z["b"][0],)},
        ops.perturb,
        (0,),
    ),
    "adapt_sigma": Entry(
        lambda w: (w.uniform(), w.uniform(), 0.5, 1.1),
        lambda s, d, target, factor: each(lambda x, y: x * factor if y < target else x / factor, s, d),
        ops.adapt_sigma,
        (0,),
    ),
    "epsilon_distance": Entry(
        lambda w: (w.choose([0.0, 0.1, 0.9]), w.A),
        lambda eps, n: -float(np.log(1 - eps + eps / n)),
        ops.epsilon_distance,
        (),
    ),
    "factorised": Entry(lambda w: (w.rng.normal(size=w.A), w.rng.normal(size=w.n)), factorised, ops.factorised, (0, 1)),
    "hash_bits": Entry(keys, hash_bits, ops.hash_bits, ()),
    "hash_uniform": Entry(
        keys,
        lambda s, a, b: each(lambda x, y: uniform(s, int(x), int(y)), a, b),
        ops.hash_uniform,
        (),
    ),
    "hash_normal": Entry(keys, hash_normal, ops.hash_normal, ()),
}
