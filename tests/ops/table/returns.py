"""Recursions along time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganglion import ops
from tests.ops import reference
from tests.ops.reference import Case
from tests.ops.world import Array, Entry, World, each

TAIL = ("reward", "value", "after", "discount", "cut")


def columns(w: World, *names: str) -> tuple[Array, ...]:
    c = w.case()
    return tuple(getattr(c, name) for name in names)


def case(**named: Array) -> Case:
    """A Case of which only some columns matter."""
    some = next(iter(named.values()))
    return Case(**{k: named.get(k, np.zeros(some.shape)) for k in Case._fields})


def scan(x: Array, factor: Array) -> Array:
    return reference.backwards(x.shape, lambda t, b, later: x[t, b] + factor[t, b] * (later or 0.0))


def discounted_sum(reward: Array, discount: Array, last: Array | None) -> Array:
    def step(t: int, b: int, later: float | None) -> float:
        end = 0.0 if last is None else last[b]
        return reward[t, b] + discount[t, b] * (end if later is None else later)

    return reference.backwards(reward.shape, step)


def gae(reward: Array, value: Array, after: Array, discount: Array, cut: Array, lam: float) -> Array:
    return reference.gae(case(reward=reward, value=value, after=after, discount=discount, cut=cut), lam)


def lambda_returns(reward: Array, after: Array, discount: Array, cut: Array, lam: Any) -> Array:
    lam = np.zeros(reward.shape) + lam
    return reference.lambda_returns(case(reward=reward, after=after, discount=discount, cut=cut), lam)


def td_lambda_error(value: Array, reward: Array, after: Array, discount: Array, cut: Array, lam: Any) -> Array:
    return value - lambda_returns(reward, after, discount, cut, lam)


def vtrace(log_ratio: Array, *rest: Any) -> Any:
    return reference.vtrace(Case(*rest[:5], log_ratio), *rest[5:])


def retrace(log_ratio: Array, *rest: Any) -> Array:
    return reference.retrace(Case(*rest[:5], log_ratio), rest[5])


def n_step(reward: Array, discount: Array, cut: Array, n: int) -> Any:
    return reference.n_step(case(reward=reward, discount=discount, cut=cut), n)


def lam(w: World) -> Any:
    return w.choose([0.0, 0.5, 0.95, 1.0])


def rows_lam(w: World) -> Any:
    return w.uniform() if w.flag else lam(w)


TABLE = {
    "scan": Entry(lambda w: (w.normal(), w.discount()), scan, ops.scan, (0, 1)),
    "discounted_sum": Entry(
        lambda w: (*columns(w, "reward", "discount"), w.rng.normal(size=w.B) if w.flag else None),
        discounted_sum,
        ops.discounted_sum,
        (0, 1, 2),
    ),
    "gae": Entry(lambda w: (*columns(w, *TAIL), lam(w)), gae, ops.gae, (0, 1, 2, 3)),
    "lambda_returns": Entry(
        lambda w: (*columns(w, "reward", "after", "discount", "cut"), rows_lam(w)),
        lambda_returns,
        ops.lambda_returns,
        (0, 1, 2, 4),
    ),
    "td_lambda_error": Entry(
        lambda w: (*columns(w, "value", "reward", "after", "discount", "cut"), rows_lam(w)),
        td_lambda_error,
        ops.td_lambda_error,
        (0,),
    ),
    "n_step": Entry(
        lambda w: (*columns(w, "reward", "discount", "cut"), w.choose([1, 2, 3, 7])), n_step, ops.n_step, (0, 1)
    ),
    "importance": Entry(
        lambda w: (w.normal(), w.normal(), w.choose([None, 1.0, 2.0])),
        lambda pi, mu, clip: each(lambda x, y: min(np.exp(x - y), clip or np.inf), pi, mu),
        ops.importance,
        (0, 1),
    ),
    "vtrace": Entry(
        lambda w: (*columns(w, "log_ratio", *TAIL), lam(w), w.choose([(1.0, 1.0, 1.0), (2.0, 0.9, 1.5)])),
        vtrace,
        ops.vtrace,
        (0, 1, 2, 3, 4),
    ),
    "upgo_returns": Entry(
        lambda w: columns(w, *TAIL),
        lambda *x: reference.upgo(Case(*x, np.zeros(x[0].shape))),
        ops.upgo_returns,
        (0, 2, 3),
    ),
    "retrace": Entry(lambda w: (*columns(w, "log_ratio", *TAIL), lam(w)), retrace, ops.retrace, (0, 1, 2, 3, 4)),
}
