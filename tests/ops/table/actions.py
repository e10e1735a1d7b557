"""Normals, squashed normals, products, and the way from raw outputs to them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, Draw, MultiBinary, MultiDiscrete, Space
from tests.ops.table.distributions import bit_entropy, bit_kl, bit_log_prob, entropy, kl, noise, slot_of, softmax
from tests.ops.world import Array, Entry, World, each

HALF_LOG = 0.5 * np.log(2 * np.pi)


def shape(w: World) -> tuple[int, ...]:
    """The shape of an action: a number, a vector or a matrix."""
    return ((), (w.n,), (2, w.n))[(w.T + w.n) % 3]


def normal(w: World) -> tuple[Any, ...]:
    return w.normal(*shape(w)), w.normal(*shape(w), scale=0.3), len(shape(w))


def normal_pair(w: World) -> tuple[Any, ...]:
    one, two = normal(w), normal(w)
    return *one[:2], *two


def log_density(x: Array, m: Array, s: Array) -> float:
    rows = zip(np.ravel(x), np.ravel(m), np.ravel(s), strict=True)
    return sum(-(((a - b) / np.exp(c)) ** 2) / 2 - c - HALF_LOG for a, b, c in rows)


def normal_kl(m: Array, s: Array, m2: Array, s2: Array) -> float:
    total = 0.0
    for a, x, b, y in zip(*[np.ravel(v) for v in (m, s, m2, s2)], strict=True):
        total += y - x + (np.exp(x) ** 2 + (a - b) ** 2) / (2 * np.exp(y) ** 2) - 0.5
    return total


def normal_sample(m: Array, s: Array, dims: int, z: Array) -> Array:
    size = prod(m.shape[2:])
    return each(lambda m, s, z: m + np.exp(s) * z[:size].reshape(np.shape(m)), m, s, z)


def numbers(w: World) -> Array:
    """More random numbers than any action needs."""
    return w.normal(2 * w.n + 1)


# ------------------------------------------------------------ squashed


def squashed(w: World) -> tuple[Any, ...]:
    m, s, dims = normal(w)
    low = -w.rng.random(shape(w)) - 0.5
    return m, s, np.asarray(low), np.asarray(low + w.rng.random(shape(w)) + 0.5), dims


def stretch(x: Array, low: Array, high: Array) -> Array:
    return low + (high - low) * (np.tanh(x) + 1) / 2


def slope(x: Array, low: Array, high: Array) -> Array:
    """log of 1 / cosh^2 x times half the range: 1 - tanh^2 x would be 0 far out."""
    return -2 * np.log(np.cosh(x)) + np.log((high - low) / 2)


def squashed_log_prob(m: Array, s: Array, low: Array, high: Array, dims: int, x: Array) -> Array:
    """Of the action that x before tanh becomes."""
    return each(lambda m, s, x: log_density(x, m, s) - np.sum(slope(x, low, high)), m, s, x)


def squashed_sample(m: Array, s: Array, low: Array, high: Array, dims: int, z: Array) -> Any:
    x = normal_sample(m, s, dims, z)
    return stretch(x, low, high), squashed_log_prob(m, s, low, high, dims, x)


def squashed_entropy(m: Array, s: Array, low: Array, high: Array, dims: int) -> Array:
    """Entropy of the normal + the mean log slope, by numpy's own quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)

    def row(m: Array, s: Array) -> float:
        mean = sum(p * slope(m + np.exp(s) * z, low, high) for z, p in zip(nodes, weights / sum(weights), strict=True))
        return float(np.sum(s + HALF_LOG + 0.5 + mean))

    return each(row, m, s)


def tanh_normal(*x: Any) -> ops.TanhNormal:
    return ops.TanhNormal(*x)


# ------------------------------------------------------------ products


def parts(w: World) -> tuple[Any, ...]:
    return w.table(), w.legal(), w.normal(w.n), w.normal(2), w.normal(2, scale=0.3)


def product(logits: Any, mask: Any, bits: Any, mean: Any, log_std: Any) -> ops.Product:
    inner = {"choice": ops.Categorical(logits, mask), "move": ops.Normal(mean, log_std)}
    return ops.Product({"bits": ops.Bernoulli(bits), "more": ops.Product(inner)})


def numbered(w: World) -> tuple[Any, ...]:
    return *parts(w), w.uniform(w.n + 1), w.normal(2)


def acted(w: World) -> tuple[Any, ...]:
    logits, mask, bits, mean, log_std = parts(w)
    choice = each(lambda m: list(m).index(True), mask) if mask is not None else w.action()
    action = {"bits": w.rng.integers(0, 2, bits.shape), "more": {"choice": choice, "move": w.normal(2)}}
    return logits, mask, bits, mean, log_std, action


def product_sample(x: Array, m: Any, bits: Array, mean: Array, s: Array, u: Array, z: Array) -> Any:
    n = bits.shape[-1]
    return {
        "bits": each(lambda x, u: [int(u[i] < 1 / (1 + np.exp(-v))) for i, v in enumerate(x)], bits, u),
        "more": {
            "choice": each(lambda x, m, u: slot_of(softmax(x, m), u[n]), x, m, u),
            "move": mean + np.exp(s) * z,
        },
    }


def product_mode(x: Array, m: Any, bits: Array, mean: Array, s: Array) -> Any:
    choice = each(lambda x, m: int(np.argmax(softmax(x, m))), x, m)
    return {"bits": (bits > 0).astype(np.int64), "more": {"choice": choice, "move": mean}}


def product_log_prob(x: Array, m: Any, bits: Array, mean: Array, s: Array, action: Any) -> Array:
    more = action["more"]
    first = each(bit_log_prob, bits, action["bits"])
    second = each(lambda x, m, a: np.log(softmax(x, m)[a]), x, m, more["choice"])
    return first + second + each(log_density, more["move"], mean, s)


def product_entropy(x: Array, m: Any, bits: Array, mean: Array, s: Array) -> Array:
    normals = each(lambda s: sum(s + HALF_LOG + 0.5), s)
    return each(bit_entropy, bits) + each(lambda x, m: entropy(softmax(x, m)), x, m) + normals


def product_kl(x: Array, m: Any, bits: Array, mean: Array, s: Array, y: Array) -> Array:
    """Against another product whose logits are y, its bits 0 and its normals standard."""
    zero = np.zeros(mean.shape)
    first = each(bit_kl, bits, np.zeros(bits.shape)) + each(normal_kl, mean, s, zero, zero)
    return first + each(lambda x, y, m: kl(softmax(x, m), softmax(y, m)), x, y, m)


# ------------------------------------------------------------ spaces


def space(w: World) -> Composite:
    """Everything there is, in an order that differs from draw to draw."""
    box = Box((2, w.n), low=tuple(-1.0 - i for i in range(2 * w.n)), high=(1.0,) * (2 * w.n))
    inner = Composite({"bits": MultiBinary(w.n), "box": box})
    items: dict[str, Space] = {"one": Discrete(w.A), "many": MultiDiscrete((2, w.n)), "more": inner}
    names = list(items)[::-1] if w.flag else list(items)
    return Composite({k: items[k] for k in names})


def size(s: Any) -> int:
    if isinstance(s, Composite):
        return sum(size(part) for part in s.items.values())
    return {Discrete: lambda: s.n, MultiDiscrete: lambda: sum(s.nvec), MultiBinary: lambda: s.n}.get(
        type(s), lambda: 2 * prod(s.shape)
    )()


def draws(s: Any) -> Draw:
    if isinstance(s, Composite):
        each_part = [draws(part) for part in s.items.values()]
        return Draw(sum(d.uniform for d in each_part), sum(d.normal for d in each_part))
    if isinstance(s, Box):
        return Draw(normal=prod(s.shape))
    return Draw(uniform={Discrete: 1, MultiDiscrete: 2}.get(type(s)) or s.n)


def edges(s: Box) -> Any:
    return tuple(np.broadcast_to(np.array(x), (prod(s.shape),)).reshape(s.shape) for x in (s.low, s.high))


def build(raw: Array, s: Any, legal: Any, squash: bool) -> Any:
    """The fields of each distribution, cut from raw one after the other."""
    if isinstance(s, Composite):
        out, start = {}, 0
        for key, part in s.items.items():
            masks = legal.get(key) if isinstance(legal, dict) else None
            out[key] = build(raw[..., start : start + size(part)], part, masks, squash)
            start += size(part)
        return (out,)
    if not isinstance(s, Box):
        return (raw, s.nvec, legal) if isinstance(s, MultiDiscrete) else (raw,) + (legal,) * isinstance(s, Discrete)
    mean, log_std = (x.reshape(*raw.shape[:2], *s.shape) for x in np.split(raw, 2, -1))
    if not squash:
        return mean, log_std, len(s.shape)
    return mean, np.minimum(np.maximum(log_std, -20), 2), *edges(s), len(s.shape)


def head(w: World) -> tuple[Any, ...]:
    s = space(w)
    return w.normal(size(s), scale=9.0), s, {"one": w.legal()} if w.flag else None, w.live > 0


def inside(box: Any, uniform: Array) -> Array:
    """Each number on the way from its low to its high."""
    low, high = (np.asarray(edge).reshape(-1) for edge in edges(box))
    out = np.zeros(uniform.shape)
    for i in np.ndindex(uniform.shape):
        out[i] = low[i[-1]] + (high[i[-1]] - low[i[-1]]) * uniform[i]
    return out.reshape(*uniform.shape[:-1], *box.shape)


TABLE = {
    "Normal.draws": Entry(normal, lambda m, s, d: Draw(0, prod(m.shape[2:])), lambda *x: ops.Normal(*x).draws, ()),
    "Normal.sample": Entry(
        lambda w: (*normal(w), numbers(w)),
        normal_sample,
        lambda m, s, d, z: ops.Normal(m, s, d).sample(noise(normal=z)),
        (0, 1),
    ),
    "Normal.mode": Entry(normal, lambda m, s, d: m, lambda *x: ops.Normal(*x).mode(), (0,)),
    "Normal.log_prob": Entry(
        lambda w: (*normal(w), w.normal(*shape(w))),
        lambda m, s, d, x: each(log_density, x, m, s),
        lambda m, s, d, x: ops.Normal(m, s, d).log_prob(x),
        (0, 1, 3),
    ),
    "Normal.entropy": Entry(
        normal,
        lambda m, s, d: each(lambda s: np.sum(s + HALF_LOG + 0.5), s),
        lambda *x: ops.Normal(*x).entropy(),
        (1,),
    ),
    "Normal.kl": Entry(
        normal_pair,
        lambda m, s, m2, s2, d: each(normal_kl, m, s, m2, s2),
        lambda m, s, m2, s2, d: ops.Normal(m, s, d).kl(ops.Normal(m2, s2, d)),
        (0, 1, 2, 3),
    ),
    "TanhNormal.draws": Entry(squashed, lambda *x: Draw(0, prod(x[0].shape[2:])), lambda *x: tanh_normal(*x).draws, ()),
    "TanhNormal.inner": Entry(squashed, lambda m, s, low, high, d: (m, s, d), lambda *x: tanh_normal(*x).inner(), ()),
    "TanhNormal.stretch": Entry(
        squashed,
        lambda m, s, low, high, d: each(lambda m: stretch(m, low, high), m),
        lambda *x: tanh_normal(*x).stretch(x[0]),
        (0, 2, 3),
    ),
    "TanhNormal.log_slope": Entry(
        squashed,
        lambda m, s, low, high, d: each(lambda m: slope(m, low, high), m),
        lambda *x: tanh_normal(*x).log_slope(x[0]),
        (0, 2, 3),
    ),
    "TanhNormal.sample_and_log_prob": Entry(
        lambda w: (*squashed(w), numbers(w)),
        squashed_sample,
        lambda *x: tanh_normal(*x[:5]).sample_and_log_prob(noise(normal=x[5])),
        (0, 1),
    ),
    "TanhNormal.sample": Entry(
        lambda w: (*squashed(w), numbers(w)),
        lambda *x: squashed_sample(*x)[0],
        lambda *x: tanh_normal(*x[:5]).sample(noise(normal=x[5])),
        (0, 1),
    ),
    "TanhNormal.mode": Entry(
        squashed,
        lambda m, s, low, high, d: each(lambda m: stretch(m, low, high), m),
        lambda *x: tanh_normal(*x).mode(),
        (0,),
    ),
    "TanhNormal.log_prob": Entry(
        lambda w: (*squashed(w), w.normal(*shape(w))),
        squashed_log_prob,
        lambda *x: tanh_normal(*x[:5]).log_prob(tanh_normal(*x[:5]).stretch(x[5])),
        (0, 1, 5),
    ),
    "TanhNormal.entropy": Entry(squashed, squashed_entropy, lambda *x: tanh_normal(*x).entropy(), (0, 1)),
    "TanhNormal.kl": Entry(
        lambda w: (*normal_pair(w), *squashed(w)[2:4]),
        lambda m, s, m2, s2, d, low, high: each(normal_kl, m, s, m2, s2),
        lambda m, s, m2, s2, d, low, high: tanh_normal(m, s, low, high, d).kl(tanh_normal(m2, s2, low, high, d)),
        (0, 1, 2, 3),
    ),
    "Product.draws": Entry(parts, lambda *x: Draw(x[2].shape[-1] + 1, 2), lambda *x: product(*x).draws, ()),
    "Product.slices": Entry(
        numbered,
        lambda *x: {
            "bits": (x[5][..., :-1], x[6][..., :0]),
            "more": (x[5][..., -1:], x[6]),
        },
        lambda *x: {k: part[:2] for k, part in product(*x[:5]).slices(noise(x[5], x[6])).items()},
        (),
    ),
    "Product.sample": Entry(numbered, product_sample, lambda *x: product(*x[:5]).sample(noise(x[5], x[6])), ()),
    "Product.mode": Entry(parts, product_mode, lambda *x: product(*x).mode(), ()),
    "Product.log_prob": Entry(acted, product_log_prob, lambda *x: product(*x[:5]).log_prob(x[5]), (0, 2, 3, 4)),
    "Product.entropy": Entry(parts, product_entropy, lambda *x: product(*x).entropy(), (0, 2, 4)),
    "Product.kl": Entry(
        lambda w: (*parts(w), w.table()),
        product_kl,
        lambda x, m, b, mean, s, y: product(x, m, b, mean, s).kl(product(y, m, 0 * b, 0 * mean, 0 * s)),
        (0, 2, 3, 4, 5),
    ),
    "decisions": Entry(
        lambda w: (w.valid(), {"acts": w.valid()}), lambda valid, extras: valid & extras["acts"], ops.decisions, ()
    ),
    "dist": Entry(head, build, ops.dist, ()),
    "dist_size": Entry(lambda w: (space(w),), size, ops.dist_size, ()),
    "dist_draws": Entry(lambda w: (space(w),), draws, ops.dist_draws, ()),
    "bounds": Entry(
        lambda w: (space(w).items["more"].items["box"], w.normal()), lambda s, like: edges(s), ops.bounds, ()
    ),
    "anywhere": Entry(
        lambda w: (space(w).items["more"].items["box"], w.uniform(space(w).items["more"].items["box"].size)),
        inside,
        ops.anywhere,
        (1,),
    ),
}
