"""Trees of tensors: a leaf, a mapping, a tuple or a NamedTuple of trees. Plain recursion, so compilers trace it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # Tensor | Mapping[str, Tree] | tuple[Tree, ...]; None and () stay what they are
Fn = Callable[..., Any]


def _rebuild(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    if type(like) is not tuple and hasattr(like, "_fields"):
        return type(like)(*parts)
    return tuple(parts)


def _children(tree: tuple[Any, ...]) -> list[tuple[str, Any]]:
    fields: Sequence[str] = getattr(tree, "_fields", ()) or [str(i) for i in range(len(tree))]
    return list(zip(fields, tree, strict=True))


def map_tree(fn: Fn, *trees: Tree) -> Tree:
    """The tree of `fn(leaf, leaf, ...)` over trees of one shape. Mappings come back as dicts."""
    if len(trees) == 1:
        return _map_one(fn, trees[0])
    first = trees[0]
    if isinstance(first, Tensor):  # asked first: most are, and asking for a Mapping takes longer
        return fn(*trees)
    if isinstance(first, tuple):
        return _rebuild(first, [map_tree(fn, *parts) for parts in zip(*trees, strict=True)])
    if isinstance(first, (dict, Mapping)):
        return {k: map_tree(fn, *[t[k] for t in trees]) for k in first}
    return None if first is None else fn(*trees)


def _map_one(fn: Fn, tree: Tree) -> Tree:
    """`map_tree` of a single tree, as most are; plain tensors are told from trees without a call."""
    if isinstance(tree, Tensor):
        return fn(tree)
    if isinstance(tree, tuple):
        return _rebuild(tree, [fn(x) if type(x) is Tensor else _map_one(fn, x) for x in tree]) if tree else tree
    if isinstance(tree, (dict, Mapping)):
        return {k: fn(x) if type(x) is Tensor else _map_one(fn, x) for k, x in tree.items()}
    return None if tree is None else fn(tree)


def leaves(tree: Tree) -> list[Any]:
    """Every leaf, in order."""
    found: list[Any] = []
    _collect(tree, found)
    return found


def first(tree: Tree) -> Any:
    """The first leaf, without a look at the others; None where there is none."""
    found = tree
    while isinstance(found, tuple) and found:
        found = found[0]
    return found if isinstance(found, Tensor) else next(iter(leaves(tree)), None)


def _collect(tree: Tree, found: list[Any]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, tuple):
        for part in tree:
            if type(part) is Tensor:
                found.append(part)
            elif part is not None:
                _collect(part, found)
    elif isinstance(tree, (dict, Mapping)):
        for part in tree.values():
            _collect(part, found)
    elif tree is not None:
        found.append(tree)


def stack(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Trees of one shape as one tree with a new axis."""
    return map_tree(lambda *xs: torch.stack(xs, dim), *trees)


def unstack(tree: Tree, dim: int = 0) -> list[Tree]:
    """The inverse of `stack`: one tree per index along `dim` (lists of rows from arrays of rows)."""
    parts = map_tree(lambda x: list(x.unbind(dim)), tree)  # a list is a leaf
    return [map_tree(lambda xs, i=i: xs[i], parts) for i in range(len(leaves(parts)[0]))]


def concat(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Trees of one shape joined along an axis they have."""
    return map_tree(lambda *xs: torch.cat(xs, dim), *trees)


def split(tree: Tree, size: int, dim: int = 0) -> list[Tree]:
    """Consecutive pieces of `size` rows, the last one shorter where it must be."""
    pieces = map_tree(lambda x: list(x.split(size, dim)), tree)  # a list is a leaf
    return [map_tree(lambda xs, i=i: xs[i], pieces) for i in range(len(leaves(pieces)[0]))]


def select(tree: Tree, i: int, dim: int = 0) -> Tree:
    """One index of every leaf; the axis goes away."""
    return map_tree(lambda x: x.select(dim, i), tree)


def take(tree: Tree, index: Tensor, dim: int = 0) -> Tree:
    """The rows `index` [n] of every leaf along `dim`; the axis keeps its place with n entries."""
    return map_tree(lambda x: x.index_select(dim, index), tree)


def put(tree: Tree, index: Tensor, values: Tree, dim: int = 0) -> Tree:
    """A copy of the tree with `values` at rows `index` along `dim`; the inverse of `take`."""
    return map_tree(lambda x, v: x.index_copy(dim, index, v.to(x.dtype)), tree, values)


def put_(tree: Tree, index: Tensor, values: Tree, dim: int = 0) -> None:
    """`put` in place, for storage."""
    map_tree(lambda x, v: x.index_copy_(dim, index, v.to(x.dtype)), tree, values)


def fold(tree: Tree) -> Tree:
    """[T, B, ...] as one row of T * B slots: [1, T * B, ...]."""
    return map_tree(lambda x: x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]), tree)


def unfold(tree: Tree, rows: int) -> Tree:
    """The inverse of `fold`: [1, T * B, ...] as [T, B, ...] with T = `rows`."""
    return map_tree(lambda x: x.reshape(rows, x.shape[1] // rows, *x.shape[2:]), tree)


def detach(tree: Tree) -> Tree:
    """The same values, cut from the graph of gradients."""
    return map_tree(lambda x: x.detach(), tree)


def zeros(tree: Tree) -> Tree:
    """Zeros shaped like the tree: the null row of padding."""
    return map_tree(torch.zeros_like, tree)


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    """Every tensor on `device`; what is there already is not copied."""
    return map_tree(lambda x: x.to(device), tree)


def to_dtype(tree: Tree, dtype: torch.dtype) -> Tree:
    """Floating leaves as `dtype`; integers and booleans keep theirs."""
    return map_tree(lambda x: x.to(dtype) if x.is_floating_point() else x, tree)


def to_numpy(tree: Tree) -> Tree:
    """Every tensor as a numpy array (a view where it lives on the CPU)."""
    return map_tree(lambda x: x.detach().cpu().numpy(), tree)


def to_tensor(tree: Tree) -> Tree:
    """Numpy arrays and numbers as tensors (views where they can be)."""
    return map_tree(torch.as_tensor, tree)


def to_list(tree: Tree) -> Tree:
    """Every leaf as plain Python numbers and lists, for JSON. Waits for the device."""
    return map_tree(lambda x: x.tolist(), tree)


def same_shape(*trees: Tree) -> bool:
    """Whether all trees have the same structure and equal leaf shapes."""
    first = trees[0]
    if isinstance(first, Mapping):
        alike = all(isinstance(t, Mapping) and list(t) == list(first) for t in trees)
        return alike and all(same_shape(*[t[k] for t in trees]) for k in first)
    if isinstance(first, tuple):
        alike = all(type(t) is type(first) and len(t) == len(first) for t in trees)
        return alike and all(same_shape(*parts) for parts in zip(*trees, strict=True))
    if first is None or any(t is None or isinstance(t, (Mapping, tuple)) for t in trees):
        return all(t is None for t in trees)
    return all(t.shape == first.shape for t in trees)


def flatten_names(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves by path: "a/b" for mappings, field names for NamedTuples, positions for tuples."""
    if tree is None:
        return {}
    if isinstance(tree, Mapping):
        parts = [(str(k), v) for k, v in tree.items()]
    elif isinstance(tree, tuple):
        parts = _children(tree)
    else:
        return {prefix: tree}
    named: dict[str, Any] = {}
    for key, part in parts:
        named.update(flatten_names(part, f"{prefix}/{key}" if prefix else key))
    return named


def unflatten(like: Tree, named: Mapping[str, Any], prefix: str = "") -> Tree:
    """The tree shaped like `like` with the leaves of `flatten_names`."""
    if like is None:
        return None
    if isinstance(like, Mapping):
        return {k: unflatten(v, named, f"{prefix}/{k}" if prefix else str(k)) for k, v in like.items()}
    if isinstance(like, tuple):
        return _rebuild(like, [unflatten(v, named, f"{prefix}/{k}" if prefix else k) for k, v in _children(like)])
    return named[prefix]


def merge(tree: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, nested mappings merged in turn; `other` wins."""
    mixed = dict(tree)
    for key, part in other.items():
        both = isinstance(part, Mapping) and isinstance(mixed.get(key), Mapping)
        mixed[key] = merge(mixed[key], part) if both else part
    return mixed


def nest(named: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts from "a/b" paths, where no tree to be shaped like is at hand."""
    root: dict[str, Any] = {}
    for path, leaf in named.items():
        *folders, last = path.split("/")
        place = root
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = leaf
    return root
