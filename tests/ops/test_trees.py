"""Trees: round trips over nested mappings, tuples and NamedTuples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion import ops
from ganglion.core import Past, Step

few = settings(max_examples=30)


def make(structure: Any, rows: int = 4, slots: int = 3) -> Any:
    """Random leaves [rows, slots, ...] for a structure of dicts and tuples whose leaves are trailing shapes (lists)."""
    if isinstance(structure, dict):
        return {k: make(v, rows, slots) for k, v in structure.items()}
    if isinstance(structure, tuple):
        return tuple(make(v, rows, slots) for v in structure)
    return torch.randn(rows, slots, *structure)


leaf = st.lists(st.integers(1, 3), max_size=2)
structures = st.recursive(
    leaf,
    lambda s: st.dictionaries(st.sampled_from("abcd"), s, max_size=3) | st.tuples(s, s) | st.just(()),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    x, y = ops.flatten_names(a), ops.flatten_names(b)
    return list(x) == list(y) and all(torch.equal(x[k], y[k]) for k in x) and ops.same_shape(a, b)


@few
@given(structures)
def test_round_trips(structure: Any) -> None:
    tree = make(structure)
    assert same(ops.map_tree(lambda x: x, tree), tree)
    assert same(ops.unflatten(tree, ops.flatten_names(tree)), tree)
    assert same(ops.to_tensor(ops.to_numpy(tree)), tree)
    assert same(ops.to_device(tree, "cpu"), tree)
    assert same(ops.unfold(ops.fold(tree), 4), tree)
    assert len(ops.leaves(tree)) == len(ops.flatten_names(tree))
    assert ops.first(tree) is next(iter(ops.leaves(tree)), None)
    if ops.leaves(tree):
        assert same(ops.stack(ops.unstack(tree)), tree)
        index = torch.tensor([2, 0])
        for dim in (0, 1):
            taken = ops.take(tree, index, dim)
            assert all(torch.equal(x, y.index_select(dim, index)) for x, y in zip(ops.leaves(taken), ops.leaves(tree)))
            assert same(ops.put(tree, index, taken, dim), tree)
        before = ops.map_tree(torch.clone, tree)
        changed = ops.put(tree, index, ops.take(ops.zeros(tree), index))
        assert same(tree, before) and all((x[0] == 0).all() and (x[2] == 0).all() for x in ops.leaves(changed))
        ops.put_(tree, index, ops.take(ops.zeros(tree), index))
        assert same(tree, changed)


def test_named_tuples_keep_their_type_and_names() -> None:
    x = torch.zeros(2)
    step = Step({"image": x, "action_mask": x}, x, x, x, x)
    assert type(ops.map_tree(lambda y: y + 1, step)) is Step
    assert list(ops.flatten_names(step)) == [
        "obs/image",
        "obs/action_mask",
        "reward",
        "terminated",
        "truncated",
        "valid",
    ]
    assert list(ops.flatten_names((x, x), "memory")) == ["memory/0", "memory/1"]
    assert ops.flatten_names(x, "obs") == {"obs": x}
    past = ops.stack([Past((), x), Past((), x)])
    assert past.memory == () and past.start.shape == (2, 2)
    assert type(ops.unflatten(step, ops.flatten_names(step))) is Step


def test_nest_and_lists() -> None:
    assert ops.nest({"a/b": 1, "a/c/d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert ops.to_list({"a": torch.tensor([1, 2]), "b": (torch.tensor(0.5),)}) == {"a": [1, 2], "b": (0.5,)}
    assert isinstance(ops.to_numpy({"a": torch.zeros(1)})["a"], np.ndarray)


def test_split_and_merge() -> None:
    tree = {"a": torch.arange(10).reshape(5, 2), "b": (torch.arange(5),)}
    pieces = ops.split(tree, 2)
    assert [len(p["b"][0]) for p in pieces] == [2, 2, 1]
    assert same(ops.concat(pieces), tree)
    assert [p["a"].shape for p in ops.split({"a": tree["a"]}, 1, dim=1)] == [(5, 1), (5, 1)]
    first = {"a": {"x": 1, "y": 2}, "b": 3}
    assert ops.merge(first, {"a": {"y": 9}, "b": {"z": 4}}) == {"a": {"x": 1, "y": 9}, "b": {"z": 4}}
    assert first == {"a": {"x": 1, "y": 2}, "b": 3}


def test_types() -> None:
    tree = {"a": torch.zeros(1), "b": torch.zeros(1, dtype=torch.int64)}
    half = ops.to_dtype(tree, torch.float16)
    assert half["a"].dtype == torch.float16 and half["b"].dtype == torch.int64
    grad = torch.zeros(1, requires_grad=True)
    assert not ops.detach({"a": grad})["a"].requires_grad
    assert torch.equal(ops.concat([tree, tree])["a"], torch.zeros(2))


def test_same_shape_sees_every_difference() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 4)
    assert ops.same_shape({"a": (x, None)}, {"a": (x + 1, None)})
    for other in ({"a": (y, None)}, {"b": (x, None)}, {"a": (x,)}, {"a": x}, {"a": (x, x)}, x, {"a": Past((), x)}):
        assert not ops.same_shape({"a": (x, None)}, other)
        assert not ops.same_shape(other, {"a": (x, None)})
