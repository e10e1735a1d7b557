"""Trees and the Adder, against numpy on a tree whose shape is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ganglion import ops
from tests.ops.world import Array, Entry, World

GAMMA, LAM = 0.9, 0.8


def tree(w: World) -> Any:
    return {"a": w.normal(w.n), "b": (w.normal(), {"c": w.action(2)}), "d": ()}


def over(fn: Callable[..., Any], *trees: Any) -> Any:
    """fn on the three leaves of such trees."""
    return {
        "a": fn(*[t["a"] for t in trees]),
        "b": (fn(*[t["b"][0] for t in trees]), {"c": fn(*[t["b"][1]["c"] for t in trees])}),
        "d": (),
    }


def paths(t: Any) -> dict[str, Any]:
    return {"a": t["a"], "b/0": t["b"][0], "b/1/c": t["b"][1]["c"]}


def index(w: World, dim: int) -> Array:
    size = (w.T, w.B)[dim]
    return w.rng.permutation(size)[: w.rng.integers(1, size + 1)]


def rows(w: World) -> tuple[Any, ...]:
    dim = int(w.flag)
    return tree(w), index(w, dim), dim


def put_args(w: World) -> tuple[Any, ...]:
    t, at, dim = rows(w)
    return t, at, over(lambda x: np.take(x, at, dim) * 2, t), dim


def put(t: Any, at: Array, values: Any, dim: int) -> Any:
    def leaf(x: Array, v: Array) -> Array:
        out = x.copy()
        for k, i in enumerate(at):
            out[(slice(None),) * dim + (i,)] = v[(slice(None),) * dim + (k,)]
        return out

    return over(leaf, t, values)


def put_in_place(t: Any, at: Any, values: Any, dim: int) -> Any:
    """On a copy, so that the same inputs serve again."""
    copy = ops.map_tree(torch.clone, t)
    ops.put_(copy, at, values, dim)
    return copy


def several(w: World) -> tuple[Any, ...]:
    return [tree(w) for _ in range(w.n)], int(w.flag)


def along(w: World) -> tuple[Any, ...]:
    return tree(w), int(w.flag)


def pieces(t: Any, size: int, dim: int) -> list[Any]:
    length = t["a"].shape[dim]
    return [over(lambda x, i=i: np.take(x, range(i, min(i + size, length)), dim), t) for i in range(0, length, size)]


def alikes(w: World) -> tuple[Any, ...]:
    t = tree(w)
    others = [over(lambda x: x + 1, t), {**t, "a": t["a"][..., :0]}, {**t, "e": t["a"]}, {"b": t["b"]}]
    return t, others[w.rng.integers(4)]


def same_shape(t: Any, other: Any) -> bool:
    return list(paths_or(t)) == list(paths_or(other)) and all(
        x.shape == y.shape for x, y in zip(paths_or(t).values(), paths_or(other).values(), strict=True)
    )


def paths_or(t: Any) -> dict[str, Any]:
    return {f"{k}": v for k, v in t.items() if isinstance(v, np.ndarray)}


# ------------------------------------------------------------ the Adder


def episode(w: World) -> tuple[Any, ...]:
    """One slot: reward, value, terminated, truncated, the value after each row, and after the last one."""
    terminated, truncated = w.uniform()[:, 0] < w.ends, w.uniform()[:, 0] < w.ends
    return w.normal()[:, 0], w.normal()[:, 0], terminated, truncated & ~terminated, w.normal()[:, 0]


def transitions(reward: Any, value: Any, terminated: Any, truncated: Any, after: Any) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for t in range(len(reward)):
        row = {"obs": torch.tensor(t), "next_obs": torch.tensor(t + 1), "reward": reward[t], "value": value[t]}
        row |= {"terminated": terminated[t], "truncated": truncated[t]}
        out.append(row | ({"next_value": after[t]} if truncated[t] or t == len(reward) - 1 else {}))
    return out


def advantages(r: Array, v: Array, terminated: Array, truncated: Array, after: Array) -> Array:
    out, later = np.zeros(len(r)), 0.0
    for t in reversed(range(len(r))):
        last = t == len(r) - 1 or truncated[t]
        ahead = 0.0 if terminated[t] else GAMMA * (after[t] if last else v[t + 1])
        later = 0.0 if terminated[t] or truncated[t] else later
        later = out[t] = r[t] + ahead - v[t] + GAMMA * LAM * later
    return out


def default_last(r: Array, v: Array, terminated: Array, truncated: Array, after: Array) -> Array:
    if terminated[-1]:
        return advantages(r, v, terminated, truncated, after)
    shorter = [x[:-1] for x in (r, v, terminated, truncated)]
    return advantages(*shorter, np.where(shorter[3], after[:-1], v[1:]))


def folded(r: Array, v: Array, terminated: Array, truncated: Array, after: Array, n: int) -> Any:
    rewards, discounts, ends = np.zeros((len(r), n)), np.ones(len(r)), np.zeros(len(r), np.int64)
    for t in range(len(r)):
        for k in range(min(n, len(r) - t)):
            rewards[t, k] = r[t + k]
            discounts[t] *= 0.0 if terminated[t + k] else GAMMA
            ends[t] = t + k + 1
            if terminated[t + k] or truncated[t + k]:
                break
    return rewards, discounts, ends


def fold_items(*x: Any) -> Any:
    items = ops.Adder.get_nstep_return_data(transitions(*x[:5]), x[5], GAMMA)
    return tuple(torch.stack([item[k] for item in items]) for k in ("reward", "discount", "next_n_obs"))


def samples(length: int, size: int, last: str) -> list[list[int]]:
    if size == 1:
        return [[i] for i in range(length)]
    out = [list(range(i, i + size)) for i in range(0, length - size + 1, size)]
    rest = length % size
    if rest and last == "last":
        out.append([i % length for i in range(size)] if length < size else list(range(length - size, length)))
    if rest and last == "null_padding":
        out.append([*range(length - rest, length), *[0] * (size - rest)])
    return out


def sample_items(length: int, size: int, last: Any) -> list[list[int]]:
    items = ops.Adder.get_train_sample(
        [{"obs": torch.tensor(i), "terminated": False} for i in range(length)], size, last
    )
    return [item["obs"].reshape(-1).tolist() for item in items]


def stacked(fn: Any) -> Any:
    def call(*x: Any) -> torch.Tensor:
        out = [row["adv"] for row in fn(transitions(*x))]
        return torch.stack(out) if out else x[0][:0]

    return call


def long_enough(w: World) -> tuple[Any, ...]:
    w.T = max(w.T, 2)
    return episode(w)


TABLE = {
    "map_tree": Entry(
        lambda w: (tree(w), tree(w)),
        lambda t, u: over(lambda x, y: x + 2 * y, t, u),
        lambda t, u: ops.map_tree(lambda x, y: x + 2 * y, t, u),
        (),
    ),
    "leaves": Entry(lambda w: (tree(w),), lambda t: list(paths(t).values()), ops.leaves, ()),
    "first": Entry(lambda w: (tree(w),), lambda t: next(iter(paths(t).values())), ops.first, ()),
    "stack": Entry(several, lambda ts, dim: over(lambda *x: np.stack(x, dim), *ts), ops.stack, ()),
    "unstack": Entry(
        along,
        lambda t, dim: [over(lambda x, i=i: np.take(x, i, dim), t) for i in range(t["a"].shape[dim])],
        ops.unstack,
        (),
    ),
    "concat": Entry(several, lambda ts, dim: over(lambda *x: np.concatenate(x, dim), *ts), ops.concat, ()),
    "split": Entry(lambda w: (tree(w), w.n, int(w.flag)), pieces, ops.split, ()),
    "select": Entry(
        lambda w: (tree(w), 0, int(w.flag)),
        lambda t, i, dim: over(lambda x: x[:, i] if dim else x[i], t),
        ops.select,
        (),
    ),
    "take": Entry(
        rows,
        lambda t, at, dim: over(lambda x: np.stack([np.take(x, i, dim) for i in at], dim), t),
        ops.take,
        (),
    ),
    "put": Entry(put_args, put, ops.put, ()),
    "put_": Entry(put_args, put, put_in_place, ()),
    "fold": Entry(
        lambda w: (tree(w),),
        lambda t: over(lambda x: np.array([[x[i] for i in np.ndindex(x.shape[:2])]]), t),
        ops.fold,
        (),
    ),
    "unfold": Entry(
        lambda w: (over(lambda x: x.reshape(1, w.T * w.B, *x.shape[2:]), tree(w)), w.T),
        lambda t, rows: over(lambda x: np.stack(np.split(x[0], rows)), t),
        ops.unfold,
        (),
    ),
    "detach": Entry(lambda w: (tree(w),), lambda t: t, ops.detach, ()),
    "zeros": Entry(lambda w: (tree(w),), lambda t: over(lambda x: x * 0, t), ops.zeros, ()),
    "to_device": Entry(lambda w: (tree(w),), lambda t: t, lambda t: ops.to_device(t, t["a"].device), ()),
    "to_dtype": Entry(
        lambda w: (tree(w),),
        lambda t: over(lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x, t),
        lambda t: ops.to_dtype(t, torch.float32),
        (),
    ),
    "to_numpy": Entry(lambda w: (tree(w),), lambda t: t, ops.to_numpy, ()),
    "to_tensor": Entry(
        lambda w: (tree(w),), lambda t: t, lambda t: ops.to_tensor(ops.map_tree(lambda x: x.numpy(), t)), ()
    ),
    "to_list": Entry(lambda w: (tree(w),), lambda t: over(lambda x: x.tolist(), t), ops.to_list, ()),
    "same_shape": Entry(alikes, same_shape, ops.same_shape, ()),
    "flatten_names": Entry(lambda w: (tree(w),), paths, ops.flatten_names, ()),
    "unflatten": Entry(
        lambda w: (tree(w), tree(w)), lambda t, u: u, lambda t, u: ops.unflatten(t, ops.flatten_names(u)), ()
    ),
    "nest": Entry(
        lambda w: ({"a": w.normal(), "b/c": w.normal(), "b/d/e": w.action()},),
        lambda x: {"a": x["a"], "b": {"c": x["b/c"], "d": {"e": x["b/d/e"]}}},
        ops.nest,
        (),
    ),
    "merge": Entry(
        lambda w: ({"a": {"x": w.normal(), "y": w.normal()}, "b": w.normal()}, {"a": {"y": w.normal()}}),
        lambda x, y: {"a": {"x": x["a"]["x"], "y": y["a"]["y"]}, "b": x["b"]},
        ops.merge,
        (),
    ),
    "Adder.get_gae": Entry(
        episode,
        advantages,
        stacked(lambda rows: ops.Adder.get_gae(rows, rows[-1]["next_value"], GAMMA, LAM)),
        (),
    ),
    "Adder.get_gae_with_default_last_value": Entry(
        long_enough,
        default_last,
        stacked(lambda rows: ops.Adder.get_gae_with_default_last_value(rows, GAMMA, LAM)),
        (),
    ),
    "Adder.get_nstep_return_data": Entry(lambda w: (*episode(w), w.n), folded, fold_items, ()),
    "Adder.get_train_sample": Entry(
        lambda w: (w.T, w.n, w.choose(["last", "drop", "null_padding"])), samples, sample_items, ()
    ),
    "Adder.get_traj": Entry(
        lambda w: (list(range(w.T)), w.n, w.choose([0, 1])),
        lambda cache, n, kept: ([], cache) if len(cache) < n else (cache[:n], cache[n - kept :]),
        ops.Adder.get_traj,
        (),
    ),
}
