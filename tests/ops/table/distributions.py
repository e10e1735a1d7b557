"""Distributions, one row at a time by the sums and densities of a textbook."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganglion import ops
from ganglion.core import Draw, Noise
from tests.ops.table.rows import best
from tests.ops.world import Array, Entry, World, each


def softmax(x: Array, legal: Array | None = None) -> list[float]:
    weights = [np.exp(v - max(x)) if legal is None or legal[i] else 0.0 for i, v in enumerate(x)]
    return [v / sum(weights) for v in weights]


def entropy(p: list[float]) -> float:
    return -sum(x * np.log(x) for x in p if x > 0)


def kl(p: list[float], q: list[float]) -> float:
    return sum(x * np.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def slot_of(p: list[float], u: float) -> int:
    """The first index at which the cumulated probabilities pass u."""
    total = 0.0
    for i, x in enumerate(p):
        total += x
        if u * sum(p) < total:
            return i
    raise AssertionError("u is below 1")


def nth_legal(legal: Array, u: float) -> int:
    allowed = [i for i, ok in enumerate(legal) if ok]
    return allowed[int(u * len(allowed))]


# ------------------------------------------------------------ categorical


def one(w: World) -> tuple[Any, ...]:
    return w.table(), w.legal()


def chosen(w: World) -> tuple[Any, ...]:
    action = w.action()
    return w.table(), w.legal(action=action), action


def pair(w: World) -> tuple[Any, ...]:
    return w.table(), w.table(), w.legal()


def sampled(w: World) -> tuple[Any, ...]:
    return *one(w), w.uniform(3)


def categorical_probs(x: Array, m: Any) -> Array:
    return each(softmax, x, m)


def coin(q: Array, m: Any, eps: Any, u: Array) -> Array:
    """Epsilon-greedy; eps is one number, or one per slot."""
    legal = np.ones(q.shape, bool) if m is None else m
    other, first = each(lambda m, u: nth_legal(m, u[1]), legal, u), best(q, m)
    eps = np.broadcast_to(eps, first.shape)
    return each(lambda u, e, a, b: a if u[0] < e else b, u, eps, other, first)


def coin_args(w: World) -> tuple[Any, ...]:
    return *one(w), w.rng.random(w.B) if w.flag else 0.5, w.uniform(2)


def branch_args(w: World) -> tuple[Any, ...]:
    eps = w.rng.random(w.B) if w.flag else 0.5
    return w.normal(w.n, w.A), w.legal(w.n, w.A), eps, w.uniform(2 * w.n + 1)


def branches(q: Array, m: Any, eps: Any, u: Array) -> Array:
    parts = [
        coin(q[:, :, k], None if m is None else m[:, :, k], eps, u[..., 2 * k : 2 * k + 2]) for k in range(q.shape[2])
    ]
    return np.stack(parts, -1)


def branch_modes(q: Array, m: Any) -> Array:
    return np.stack([best(q[:, :, k], None if m is None else m[:, :, k]) for k in range(q.shape[2])], -1)


# ------------------------------------------------------------ several choices


def choices(w: World) -> tuple[int, ...]:
    return (w.A, 2, w.n)


def cuts(nvec: tuple[int, ...], x: Array | None) -> list[Any]:
    """The pieces of each choice; of nothing, nothing."""
    ends = np.cumsum(nvec)
    return [None if x is None else x[..., e - n : e] for e, n in zip(ends, nvec, strict=True)]


def many(w: World) -> tuple[Any, ...]:
    nvec = choices(w)
    logits = w.normal(sum(nvec))
    masks = [w.legal(n) for n in nvec]
    return logits, nvec, None if masks[0] is None else np.concatenate(masks, -1)


def many_chosen(w: World) -> tuple[Any, ...]:
    logits, nvec, mask = many(w)
    draws = [best(x, m) for x, m in zip(cuts(nvec, w.normal(sum(nvec))), cuts(nvec, mask), strict=True)]
    return logits, nvec, mask, np.stack(draws, -1)


def per_choice(fn: Any, nvec: tuple[int, ...], *arrays: Any) -> list[Array]:
    return [each(fn, *parts) for parts in zip(*[cuts(nvec, x) for x in arrays], strict=True)]


def many_sample(x: Array, nvec: tuple[int, ...], m: Any, u: Array) -> Array:
    probs = per_choice(softmax, nvec, x, m)
    return np.stack([each(lambda p, u, k=k: slot_of(list(p), u[k]), probs[k], u) for k in range(len(nvec))], -1)


def many_log_prob(x: Array, nvec: tuple[int, ...], m: Any, action: Array) -> Array:
    probs = per_choice(softmax, nvec, x, m)
    return sum(each(lambda p, a, k=k: np.log(p[a[k]]), probs[k], action) for k in range(len(nvec)))


def many_kl(x: Array, y: Array, nvec: tuple[int, ...], m: Any) -> Array:
    return sum(per_choice(lambda a, b, m: kl(softmax(a, m), softmax(b, m)), nvec, x, y, m))


# ------------------------------------------------------------ bits


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def bit_log_prob(x: Array, bits: Array) -> float:
    return sum(np.log(sigmoid(v) if b else 1 - sigmoid(v)) for v, b in zip(x, bits, strict=True))


def bit_entropy(x: Array) -> float:
    return sum(entropy([sigmoid(v), 1 - sigmoid(v)]) for v in x)


def bit_kl(x: Array, y: Array) -> float:
    pairs = zip(x, y, strict=True)
    return sum(kl([sigmoid(a), 1 - sigmoid(a)], [sigmoid(b), 1 - sigmoid(b)]) for a, b in pairs)


def noise(uniform: Any = None, normal: Any = None) -> Noise:
    some = uniform if normal is None else normal
    return Noise(some[..., :0] if uniform is None else uniform, some[..., :0] if normal is None else normal)


TABLE = {
    "inverse_cdf": Entry(
        lambda w: (w.uniform(w.A) * (w.legal() if w.flag else 1.0), w.uniform()),
        lambda *x: each(lambda p, u: slot_of(list(p), u), *x),
        ops.inverse_cdf,
        (),
    ),
    "uniform_legal": Entry(
        lambda w: (np.ones((w.T, w.B, w.A), bool) if not w.flag else w.legal(), w.uniform()),
        lambda *x: each(nth_legal, *x),
        ops.uniform_legal,
        (),
    ),
    "add_draws": Entry(
        lambda w: ([Draw(w.T, w.B), Draw(w.A), Draw(normal=w.n)],),
        lambda draws: Draw(sum(d[0] for d in draws), sum(d[1] for d in draws)),
        ops.add_draws,
        (),
    ),
    "Categorical.draws": Entry(one, lambda x, m: Draw(1, 0), lambda x, m: ops.Categorical(x, m).draws, ()),
    "Categorical.log_probs": Entry(
        lambda w: (w.table(),),
        lambda x: np.log(categorical_probs(x, None)),
        lambda x: ops.Categorical(x).log_probs(),
        (0,),
    ),
    "Categorical.probs": Entry(one, categorical_probs, lambda x, m: ops.Categorical(x, m).probs(), (0,)),
    "Categorical.sample": Entry(
        sampled,
        lambda x, m, u: each(lambda x, m, u: slot_of(softmax(x, m), u[0]), x, m, u),
        lambda x, m, u: ops.Categorical(x, m).sample(noise(u)),
        (),
    ),
    "Categorical.mode": Entry(one, best, lambda x, m: ops.Categorical(x, m).mode(), ()),
    "Categorical.log_prob": Entry(
        chosen,
        lambda *x: each(lambda x, m, a: np.log(softmax(x, m)[a]), *x),
        lambda x, m, a: ops.Categorical(x, m).log_prob(a),
        (0,),
    ),
    "Categorical.entropy": Entry(
        one,
        lambda *x: each(lambda x, m: entropy(softmax(x, m)), *x),
        lambda x, m: ops.Categorical(x, m).entropy(),
        (0,),
    ),
    "Categorical.kl": Entry(
        pair,
        lambda *x: each(lambda x, y, m: kl(softmax(x, m), softmax(y, m)), *x),
        lambda x, y, m: ops.Categorical(x, m).kl(ops.Categorical(y, m)),
        (0, 1),
    ),
    "MultiCategorical.draws": Entry(many, lambda x, n, m: Draw(3, 0), lambda *x: ops.MultiCategorical(*x).draws, ()),
    "MultiCategorical.parts": Entry(
        many,
        lambda x, n, m: list(zip(cuts(n, x), cuts(n, m), strict=True)),
        lambda *x: [tuple(part) for part in ops.MultiCategorical(*x).parts()],
        (),
    ),
    "MultiCategorical.sample": Entry(
        lambda w: (*many(w), w.uniform(3)),
        many_sample,
        lambda x, n, m, u: ops.MultiCategorical(x, n, m).sample(noise(u)),
        (),
    ),
    "MultiCategorical.mode": Entry(
        many,
        lambda x, n, m: np.stack([best(a, b) for a, b in zip(cuts(n, x), cuts(n, m), strict=True)], -1),
        lambda *x: ops.MultiCategorical(*x).mode(),
        (),
    ),
    "MultiCategorical.log_prob": Entry(
        many_chosen, many_log_prob, lambda x, n, m, a: ops.MultiCategorical(x, n, m).log_prob(a), (0,)
    ),
    "MultiCategorical.entropy": Entry(
        many,
        lambda x, n, m: sum(per_choice(lambda x, m: entropy(softmax(x, m)), n, x, m)),
        lambda *x: ops.MultiCategorical(*x).entropy(),
        (0,),
    ),
    "MultiCategorical.kl": Entry(
        lambda w: (w.normal(sum(choices(w))), *many(w)),
        many_kl,
        lambda x, y, n, m: ops.MultiCategorical(x, n, m).kl(ops.MultiCategorical(y, n, m)),
        (0, 1),
    ),
    "Bernoulli.draws": Entry(
        lambda w: (w.normal(w.n),), lambda x: Draw(x.shape[-1], 0), lambda x: ops.Bernoulli(x).draws, ()
    ),
    "Bernoulli.sample": Entry(
        lambda w: (w.normal(w.n), w.uniform(w.n + 1)),
        lambda *x: each(lambda x, u: [int(u[i] < sigmoid(v)) for i, v in enumerate(x)], *x),
        lambda x, u: ops.Bernoulli(x).sample(noise(u)),
        (),
    ),
    "Bernoulli.mode": Entry(
        lambda w: (w.normal(w.n),),
        lambda x: each(lambda x: [int(sigmoid(v) > 0.5) for v in x], x),
        lambda x: ops.Bernoulli(x).mode(),
        (),
    ),
    "Bernoulli.log_prob": Entry(
        lambda w: (w.normal(w.n), w.rng.integers(0, 2, (w.T, w.B, w.n))),
        lambda *x: each(bit_log_prob, *x),
        lambda x, a: ops.Bernoulli(x).log_prob(a),
        (0,),
    ),
    "Bernoulli.entropy": Entry(
        lambda w: (w.normal(w.n),), lambda x: each(bit_entropy, x), lambda x: ops.Bernoulli(x).entropy(), (0,)
    ),
    "Bernoulli.kl": Entry(
        lambda w: (w.normal(w.n), w.normal(w.n)),
        lambda *x: each(bit_kl, *x),
        lambda x, y: ops.Bernoulli(x).kl(ops.Bernoulli(y)),
        (0, 1),
    ),
    "Greedy.draws": Entry(one, lambda q, m: Draw(2, 0), lambda q, m: ops.Greedy(q, m).draws, ()),
    "Sure.mode": Entry(lambda w: (w.normal(w.n),), lambda a: a, lambda a: ops.Sure(a).mode(), (0,)),
    "Greedy.mode": Entry(one, best, lambda q, m: ops.Greedy(q, m).mode(), ()),
    "Greedy.sample": Entry(sampled, lambda q, m, u: best(q, m), lambda q, m, u: ops.Greedy(q, m).sample(noise(u)), ()),
    "Greedy.epsilon": Entry(coin_args, coin, lambda q, m, eps, u: ops.Greedy(q, m).epsilon(eps, noise(u)), ()),
    "Greedy.boltzmann": Entry(
        one,
        lambda q, m: each(lambda q, m: softmax(q / 0.5, m), q, m),
        lambda q, m: ops.Greedy(q, m).boltzmann(0.5).probs(),
        (0,),
    ),
    "BranchGreedy.draws": Entry(
        branch_args,
        lambda q, m, eps, u: Draw(2 * q.shape[2], 0),
        lambda q, m, eps, u: ops.BranchGreedy(q, m).draws,
        (),
    ),
    "BranchGreedy.mode": Entry(
        branch_args,
        lambda q, m, eps, u: branch_modes(q, m),
        lambda q, m, eps, u: ops.BranchGreedy(q, m).mode(),
        (),
    ),
    "BranchGreedy.sample": Entry(
        branch_args,
        lambda q, m, eps, u: branch_modes(q, m),
        lambda q, m, eps, u: ops.BranchGreedy(q, m).sample(noise(u)),
        (),
    ),
    "BranchGreedy.epsilon": Entry(
        branch_args, branches, lambda q, m, eps, u: ops.BranchGreedy(q, m).epsilon(eps, noise(u)), ()
    ),
}
