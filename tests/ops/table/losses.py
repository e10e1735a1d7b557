"""Losses per row, gradient rules and distances."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from ganglion import ops
from tests.ops.table.td import log_softmax
from tests.ops.world import Array, Entry, World, each


def huber(x: float, delta: float = 1.0) -> float:
    return 0.5 * x * x if abs(x) <= delta else delta * (abs(x) - delta / 2)


def surrogate(log_ratio: Array, advantage: Array, clip: float, dual: float | None) -> Array:
    def row(x: float, a: float) -> float:
        r = np.exp(x)
        objective = min(r * a, min(max(r, 1 - clip), 1 + clip) * a)
        return -(max(objective, dual * a) if dual is not None and a < 0 else objective)

    return each(row, log_ratio, advantage)


def value_loss(value: Array, old: Array, goal: Array, clip: float | None) -> Array:
    def row(v: float, o: float, g: float) -> float:
        near = v if clip is None else o + min(max(v - o, -clip), clip)
        return max((v - g) ** 2, (near - g) ** 2) / 2

    return each(row, value, old, goal)


def acer(log_pi: Array, log_mu: Array, q: Array, goal: Array, action: Array, clip: float) -> Array:
    def row(log_pi: Array, log_mu: Array, q: Array, goal: float, a: int) -> float:
        pi, rho = np.exp(log_pi), np.exp(log_pi - log_mu)
        value = sum(pi * q)
        total = -min(clip, rho[a]) * (goal - value) * log_pi[a]
        for i in range(len(q)):
            total -= max(0.0, 1 - clip / rho[i]) * pi[i] * (q[i] - value) * log_pi[i]
        return total

    return each(row, log_pi, log_mu, q, goal, action)


def acer_weights(log_pi: Array, log_mu: Array, q: Array, goal: Array, action: Array, clip: float) -> Array:
    def row(log_pi: Array, log_mu: Array, q: Array, goal: float, a: int) -> Array:
        pi, rho = np.exp(log_pi), np.exp(log_pi - log_mu)
        value = sum(pi * q)
        weights = [max(0.0, 1 - clip / rho[i]) * pi[i] * (q[i] - value) for i in range(len(q))]
        weights[a] += min(clip, rho[a]) * (goal - value)
        return np.array(weights)

    return each(row, log_pi, log_mu, q, goal, action)


def trust_region(gradient: Array, kl: Array, limit: float) -> Array:
    def row(g: Array, k: Array) -> Array:
        dot, size = sum(k * g), sum(k * k)
        return g - max(0.0, (dot - limit) / size) * k

    return each(row, gradient, kl)


def smoothed(logits: Array, label: Array, ratio: float) -> Array:
    def row(x: Array, label: int) -> float:
        others = max(len(x) - 1, 1)
        return -sum((1 - ratio if i == label else ratio / others) * p for i, p in enumerate(log_softmax(x)))

    return each(row, logits, label)


def focal(logits: Array, label: Array, gamma: float) -> Array:
    def row(x: Array, label: int) -> float:
        logp = log_softmax(x)[label]
        return -(max(1 - np.exp(logp), 0.0) ** gamma) * logp

    return each(row, logits, label)


def info_nce(x: Array, y: Array, temperature: float) -> Array:
    n = len(x)
    return np.array([-log_softmax(np.array([sum(x[i] * y[j]) / temperature for j in range(n)]))[i] for i in range(n)])


def multi_logits(logits: Array, labels: Array) -> Array:
    def row(logits: Array, labels: Array) -> float:
        m = len(labels)
        cost = [[-log_softmax(logits[i])[labels[j]] for j in range(m)] for i in range(m)]
        return min(sum(cost[i][p[i]] for i in range(m)) for p in permutations(range(m)))

    return each(row, logits, labels)


# ------------------------------------------------------------ gradient rules


def norm(arrays: list[Array]) -> float:
    return float(np.sqrt(sum(float(v) ** 2 for x in arrays for v in x.ravel())))


def bounded(x: Array, limit: Array) -> Array:
    return np.array([min(max(v, -m), m) for v, m in zip(x.ravel(), limit.ravel(), strict=True)]).reshape(x.shape)


def clip_norm(grads: list[Array], limit: float) -> list[Array]:
    return [x * min(1.0, limit / max(norm(grads), 1e-300)) for x in grads]


def clip_momentum(grads: list[Array], second: list[Array], limit: float) -> list[Array]:
    return [bounded(x, limit * np.sqrt(v)) for x, v in zip(grads, second, strict=True)]


def ignored(grads: list[Array], too_large: bool) -> list[Array]:
    return [np.zeros(x.shape) if too_large else x for x in grads]


def any_beyond(grads: list[Array], second: list[Array], limit: float) -> bool:
    pairs = [(v, s) for x, y in zip(grads, second, strict=True) for v, s in zip(x.ravel(), y.ravel(), strict=True)]
    return any(abs(v) > limit * np.sqrt(s) for v, s in pairs)


def usual(second: list[Array]) -> float:
    return norm([np.sqrt(v) for v in second])


def ones(grads: list[Array]) -> list[Array]:
    return [np.ones(x.shape) for x in grads]


def grads(w: World, scale: float = 1.0) -> list[Array]:
    return [w.normal(scale=scale), w.rng.normal(size=w.A) * scale]


def limits(w: World) -> float:
    return w.choose([0.3, 1.0, 2.5, 50.0])


def momentum(w: World) -> tuple[Any, ...]:
    return grads(w), [np.abs(x) + 0.1 for x in grads(w)], limits(w)


def pcgrad(grads: Array, uniform: Array) -> Array:
    out = []
    for i, g in enumerate(grads):
        for j in np.argsort(uniform[i]):
            dot = sum(g * grads[j])
            if j != i and dot < 0:
                g = g - dot / sum(grads[j] ** 2) * grads[j]
        out.append(g)
    return np.array(out)


# ------------------------------------------------------------ distances


def levenshtein(a: Array, b: Array, a_length: Any, b_length: Any, cost: Any) -> Array:
    """The table of the paper for each pair, one cell at a time."""
    out = np.zeros(len(a))
    for k in range(len(a)):
        n = a.shape[1] if a_length is None else a_length[k]
        m = b.shape[1] if b_length is None else b_length[k]
        d = {(i, j): float(i + j) for i in range(n + 1) for j in range(m + 1)}
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                price = float(a[k, i - 1] != b[k, j - 1]) if cost is None else cost[k, i - 1, j - 1]
                d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + price)
        out[k] = d[n, m]
    return out


def words(w: World) -> tuple[Any, ...]:
    a, b = w.rng.integers(0, 3, (w.T, w.A)), w.rng.integers(0, 3, (w.T, w.n))
    lengths = [w.rng.integers(0, size + 1, w.T) if w.flag else None for size in (w.A, w.n)]
    return a, b, *lengths, w.rng.random((w.T, w.A, w.n)) * 2 if w.live > 0.5 else None


def hamming(a: Array, b: Array, weight: Any) -> Array:
    weight = np.broadcast_to(weight, a.shape[-1:])
    return each(lambda x, y: sum(m * float(i != j) for i, j, m in zip(x, y, weight, strict=True)), a, b)


def bound(w: World) -> Any:
    """A clip as a knob comes: a number, or a tensor of no axes."""
    return np.array(0.2) if w.T % 2 else 0.2


def rows(count: int) -> Any:
    return lambda w: tuple(w.normal() for _ in range(count))


TABLE = {
    "huber": Entry(
        lambda w: (w.normal(scale=2.0), w.choose([0.5, 1.0, 2.0])),
        lambda e, d: each(lambda x: huber(x, d), e),
        ops.huber,
        (0,),
    ),
    "penalty": Entry(
        lambda w: (w.normal(scale=2.0), "huber" if w.flag else "mse"),
        lambda e, kind: each(huber if kind == "huber" else np.square, e),
        ops.penalty,
        (0,),
    ),
    "clipped_surrogate": Entry(
        lambda w: (w.normal(), w.normal(), bound(w), 3.0 if w.flag else None), surrogate, ops.clipped_surrogate, (0, 1)
    ),
    "value_loss": Entry(lambda w: (*rows(3)(w), bound(w) if w.flag else None), value_loss, ops.value_loss, (0, 1, 2)),
    "kl_k1": Entry(rows(1), lambda x: each(lambda v: -v, x), ops.kl_k1, (0,)),
    "kl_k2": Entry(rows(1), lambda x: each(lambda v: v * v / 2, x), ops.kl_k2, (0,)),
    "kl_k3": Entry(rows(1), lambda x: each(lambda v: np.exp(v) - 1 - v, x), ops.kl_k3, (0,)),
    "policy_gradient": Entry(rows(2), lambda *x: each(lambda p, a: -a * p, *x), ops.policy_gradient, (0,)),
    "upgo_loss": Entry(
        rows(4), lambda *x: each(lambda p, r, g, v: -min(1.0, np.exp(r)) * (g - v) * p, *x), ops.upgo_loss, (0,)
    ),
    "ppg_joint": Entry(
        lambda w: (*rows(4)(w), 0.7),
        lambda k, a, v, g, beta: each(lambda k, a, v, g: (a - g) ** 2 / 2 + beta * k + (v - g) ** 2 / 2, *(k, a, v, g)),
        ops.ppg_joint,
        (0, 1, 2),
    ),
    "counterfactual": Entry(
        lambda w: (w.table(), w.action(), np.exp(w.log_probs())),
        lambda *x: each(lambda q, a, p: q[a] - sum(p * q), *x),
        ops.counterfactual,
        (),
    ),
    "acer_policy": Entry(
        lambda w: (
            *(w.log_probs(), w.log_probs(), w.table(), w.normal(), w.action()),
            w.choose([0.5, 1.0, 10.0]),
        ),
        acer,
        ops.acer_policy,
        (),
    ),
    "acer_weights": Entry(
        lambda w: (
            *(w.log_probs(), w.log_probs(), w.table(), w.normal(), w.action()),
            w.choose([0.5, 1.0, 10.0]),
        ),
        acer_weights,
        ops.acer_weights,
        (),
    ),
    "trust_region": Entry(lambda w: (w.table(), w.table(), 0.3), trust_region, ops.trust_region, (0, 1)),
    "label_smoothed": Entry(
        lambda w: (w.table(), w.action(), w.choose([0.0, 0.1, 0.5])), smoothed, ops.label_smoothed, (0,)
    ),
    "soft_focal": Entry(lambda w: (w.table(), w.action(), w.choose([2.0, 1.0])), focal, ops.soft_focal, (0,)),
    "info_nce": Entry(
        lambda w: (w.rng.normal(size=(w.T, w.n)), w.rng.normal(size=(w.T, w.n)), w.choose([0.5, 1.0])),
        info_nce,
        ops.info_nce,
        (0, 1),
    ),
    "multi_logits": Entry(
        lambda w: (w.normal(min(w.n, 4), w.A), w.action(min(w.n, 4))), multi_logits, ops.multi_logits, (0,)
    ),
    "grad_norm": Entry(lambda w: (grads(w),), lambda g: np.float64(norm(g)), ops.grad_norm, (0,)),
    "second_moment": Entry(
        lambda w: (grads(w), [np.abs(x) for x in grads(w)], 0.9),
        lambda g, v, d: [d * y + (1 - d) * x * x for x, y in zip(g, v, strict=True)],
        ops.second_moment,
        (0, 1),
    ),
    "clip_value": Entry(
        lambda w: (grads(w), limits(w)),
        lambda g, limit: clip_momentum(g, ones(g), limit),
        ops.clip_value,
        (0,),
    ),
    "clip_norm": Entry(lambda w: (grads(w, w.live), limits(w)), clip_norm, ops.clip_norm, (0,)),
    "clip_momentum": Entry(momentum, clip_momentum, ops.clip_momentum, (0, 1)),
    "clip_momentum_norm": Entry(
        momentum, lambda g, v, limit: clip_norm(g, limit * usual(v)), ops.clip_momentum_norm, (0, 1)
    ),
    "ignore_value": Entry(
        lambda w: (grads(w), limits(w)),
        lambda g, limit: ignored(g, any_beyond(g, ones(g), limit)),
        ops.ignore_value,
        (0,),
    ),
    "ignore_norm": Entry(
        lambda w: (grads(w), limits(w)), lambda g, limit: ignored(g, norm(g) > limit), ops.ignore_norm, (0,)
    ),
    "ignore_momentum": Entry(
        momentum, lambda g, v, limit: ignored(g, any_beyond(g, v, limit)), ops.ignore_momentum, (0,)
    ),
    "ignore_momentum_norm": Entry(
        momentum, lambda g, v, limit: ignored(g, norm(g) > limit * usual(v)), ops.ignore_momentum_norm, (0,)
    ),
    "pcgrad": Entry(lambda w: (w.rng.normal(size=(w.B, w.n)), w.rng.random((w.B, w.B))), pcgrad, ops.pcgrad, (0,)),
    "levenshtein": Entry(words, levenshtein, ops.levenshtein, (4,)),
    "hamming": Entry(
        lambda w: (w.action(w.n), w.action(w.n), w.rng.random(w.n) if w.flag else 1.0), hamming, ops.hamming, (2,)
    ),
}
