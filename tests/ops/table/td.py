"""Temporal differences and distributions of returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganglion import ops
from tests.ops import reference
from tests.ops.table.transforms import rescale, unrescale
from tests.ops.world import Array, Entry, World, each


def q_args(w: World) -> tuple[Any, ...]:
    return w.table(), w.action(), w.normal(), w.discount(), w.table(scale=20.0), w.action()


def q_td(*arrays: Array) -> Array:
    return each(lambda q, a, r, g, next_q, b: q[a] - (r + g * next_q[b]), *arrays)


def q_td_rescaled(q: Array, a: Array, r: Array, g: Array, next_q: Array, b: Array, eps: float) -> Array:
    def row(q: Array, a: int, r: float, g: float, next_q: Array, b: int) -> float:
        return q[a] - rescale(r + g * unrescale(next_q[b], eps), eps)

    return each(row, q, a, r, g, next_q, b)


def soft(q: Array, tau: float, legal: Array | None) -> float:
    return tau * np.log(sum(np.exp(x / tau) for i, x in enumerate(q) if legal is None or legal[i]))


def munchausen(q: Array, action: Array, tau: float, low: float, legal: Array | None) -> Array:
    return each(lambda q, a, m: min(max(q[a] - soft(q, tau, m), low), 0.0), q, action, legal)


def munchausen_args(w: World) -> tuple[Any, ...]:
    action = w.action()
    return w.table(), action, 0.3, w.choose([-1.0, -0.5]), w.legal(action=action)


def branching(q: Array, action: Array, r: Array, g: Array, next_q: Array, chooser: Array) -> Array:
    def row(q: Array, a: Array, r: float, g: float, next_q: Array, chooser: Array) -> list[float]:
        ahead = sum(next_q[k, chooser[k].argmax()] for k in range(len(q))) / len(q)
        return [q[k, a[k]] - (r + g * ahead) for k in range(len(q))]

    return each(row, q, action, r, g, next_q, chooser)


def support(w: World) -> Array:
    return np.linspace(-2.0, 3.0, w.n + 1)


def project_args(w: World) -> tuple[Any, ...]:
    probs = w.rng.dirichlet(np.ones(w.n + 1), size=(w.T, w.B))
    if w.flag:  # targets that fall on the atoms themselves
        return np.zeros((w.T, w.B)), np.where(w.discount() > 0, 1.0, 0.0), support(w), probs
    return w.normal(scale=3.0), w.discount(), support(w), probs


def log_softmax(x: Array) -> Array:
    return x - x.max() - np.log(sum(np.exp(y - x.max()) for y in x))


def quantile_huber(theta: Array, tau: Array, goal: Array, kappa: float) -> Array:
    def row(theta: Array, tau: Array, goal: Array) -> float:
        if kappa > 0:
            return reference.quantile_huber(theta, tau, goal, kappa)
        pairs = [(t, g - x) for x, t in zip(theta, tau, strict=True) for g in goal]
        return sum(abs(t - (u < 0)) * abs(u) for t, u in pairs) / len(goal)

    return each(row, theta, np.broadcast_to(tau, theta.shape), goal)


def quantile_args(w: World) -> tuple[Any, ...]:
    shared = (np.arange(w.n) + 0.5) / w.n
    tau = w.uniform(w.n) if w.flag else shared
    return w.normal(w.n, scale=2.0), tau, w.normal(w.A, scale=2.0), w.choose([0.0, 0.5, 1.0, 2.0])


def fractions(logits: Array) -> Any:
    def tau(x: Array) -> list[float]:
        p = np.exp(log_softmax(x))
        return [0.0, *[sum(p[: i + 1]) for i in range(len(p) - 1)], 1.0]

    points = each(tau, logits)
    return points, each(lambda p: [(p[i] + p[i + 1]) / 2 for i in range(len(p) - 1)], points)


def fraction_loss(tau: Array, at_tau: Array, at_middle: Array) -> Array:
    def row(tau: Array, f: Array, mid: Array) -> float:
        return float(sum((2 * f[i] - mid[i + 1] - mid[i]) * tau[i + 1] for i in range(len(f))))

    return each(row, tau, at_tau, at_middle)


TABLE = {
    "td_goal": Entry(
        lambda w: (w.normal(), w.discount(), w.normal()),
        lambda *x: each(lambda r, g, v: r + g * v, *x),
        ops.td_goal,
        (),
    ),
    "v_td": Entry(
        lambda w: (w.normal(), w.normal(), w.discount(), w.normal()),
        lambda *x: each(lambda v, r, g, ahead: v - (r + g * ahead), *x),
        ops.v_td,
        (0,),
    ),
    "q_td": Entry(q_args, q_td, ops.q_td, (0,)),
    "q_td_rescaled": Entry(lambda w: (*q_args(w), w.choose([1e-2, 0.0, 0.5])), q_td_rescaled, ops.q_td_rescaled, (0,)),
    "expected_value": Entry(
        lambda w: (w.table(), np.exp(w.log_probs())),
        lambda *x: each(lambda q, p: sum(a * b for a, b in zip(q, p, strict=True)), *x),
        ops.expected_value,
        (0, 1),
    ),
    "soft_value": Entry(
        lambda w: (w.table(), 0.3, w.legal()),
        lambda q, tau, legal: each(lambda x, m: soft(x, tau, m), q, legal),
        ops.soft_value,
        (0,),
    ),
    "munchausen_bonus": Entry(munchausen_args, munchausen, ops.munchausen_bonus, (0,)),
    "branching_td": Entry(
        lambda w: (
            *(w.normal(w.n, w.A), w.action(w.n), w.normal(), w.discount()),
            *(w.normal(w.n, w.A), w.normal(w.n, w.A)),
        ),
        branching,
        ops.branching_td,
        (0,),
    ),
    "margin": Entry(
        lambda w: (w.table(), w.action(), w.choose([0.8, 0.1])),
        lambda q, a, size: each(lambda q, a: max(x + size * (i != a) for i, x in enumerate(q)) - q[a], q, a),
        ops.margin,
        (0,),
    ),
    "atoms": Entry(
        lambda w: (-2.0, 3.0, w.n + 1, w.normal()),
        lambda low, high, n, like: np.array([low + i * (high - low) / (n - 1) for i in range(n)]),
        ops.atoms,
        (),
    ),
    "project": Entry(
        project_args,
        lambda r, g, z, p: each(lambda r, g, p: reference.project(r, g, z, p), r, g, p),
        ops.project,
        (3,),
    ),
    "categorical_td": Entry(
        lambda w: (w.normal(w.n), w.rng.dirichlet(np.ones(w.n), size=(w.T, w.B))),
        lambda *x: each(lambda x, goal: -sum(goal * log_softmax(x)), *x),
        ops.categorical_td,
        (0,),
    ),
    "pick_atoms": Entry(
        lambda w: (w.normal(w.A, w.n), w.action()),
        lambda *x: each(lambda values, a: values[a], *x),
        ops.pick_atoms,
        (0,),
    ),
    "midpoints": Entry(
        lambda w: (w.n, w.normal()),
        lambda n, like: np.array([(2 * i + 1) / (2 * n) for i in range(n)]),
        ops.midpoints,
        (),
    ),
    "quantile_huber": Entry(quantile_args, quantile_huber, ops.quantile_huber, (0,)),
    "fractions": Entry(lambda w: (w.normal(w.n),), fractions, ops.fractions, (0,)),
    "fraction_loss": Entry(
        lambda w: (np.sort(w.uniform(w.n + 1), -1), w.normal(w.n - 1), w.normal(w.n)),
        fraction_loss,
        ops.fraction_loss,
        (0,),
    ),
}
