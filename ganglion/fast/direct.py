"""A compiled graph called without what torch puts around it, which costs more than a small graph itself.

Torch looks up all parameters at every call, checks what it is given and puts together what is returned. Here none of it
changes: parameters and knobs change in place, and shapes stay. So some calls are watched, and once two in a row agree
on what goes into the graph and what comes of it, later ones go straight there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor

Fn = Callable[..., Any]
Path = tuple[Any, ...]  # the keys that lead from the arguments to one of their tensors
PLAIN = (int, float, bool, str, type(None))
Build = Callable[[Any, Any], Any]  # what was computed, and the arguments -> what is returned
TRIES = 8  # calls that are watched, at most


class Direct:
    """A compiled function; from its third call on, as a rule, the graph in it."""

    def __init__(self, whole: Fn) -> None:
        self.whole = whole
        self.tries = 0
        self.seen: Plan | None = None
        self.straight: Fn | None = None

    def __call__(self, *args: Any) -> Any:
        if self.straight is not None:
            return self.straight(*args)
        if self.tries == TRIES:
            return self.whole(*args)
        self.tries += 1
        calls: list[Call] = []
        with watching(calls):
            gave = self.whole(*args)
        before, self.seen = self.seen, planned(calls, args, gave)
        if before is not None and self.seen is not None and self.seen.agrees(before):
            self.straight = straight(self.seen)
        return gave


class Call(NamedTuple):
    """What a graph was given, and what it computed."""

    graph: Any
    given: list[Any]
    gave: list[Any]


@contextmanager
def watching(calls: list[Call]) -> Iterator[None]:
    """Notes the calls of compiled graphs."""
    from torch._inductor.output_code import CompiledFxGraph

    own = CompiledFxGraph.__call__

    def call(self: Any, inputs: Any) -> Any:
        given = list(inputs)  # which the graph empties
        gave = own(self, inputs)
        calls.append(Call(self, given, list(gave)))
        return gave

    CompiledFxGraph.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = own  # type: ignore[method-assign]


class Plan(NamedTuple):
    """How a call reaches its graph: what is given every time, where in the arguments the rest is, what is returned."""

    graph: Any
    given: list[Any]  # None where an argument belongs
    picks: list[tuple[int, Path]]
    form: Any

    def agrees(self, other: Plan) -> bool:
        same = all(a is b for a, b in zip(self.given, other.given, strict=True))
        return self.graph is other.graph and same and self.picks == other.picks and self.form == other.form


def planned(calls: list[Call], args: Any, gave: Any) -> Plan | None:
    """What one call shows; None where it leaves a doubt, or torch did something of its own with what was computed."""
    found = list(leaves(args))
    counts = Counter(id(leaf) for _, leaf in found)
    tensors = {id(leaf): path for path, leaf in found if isinstance(leaf, Tensor)}
    if len(calls) != 1 or any(not isinstance(part, (Tensor, *PLAIN)) for path, leaf in found for part in (*path, leaf)):
        return None
    graph, given, made = calls[0]
    used: set[int] = set()
    form = formed(gave, tensors, {memory(x): i for i, x in enumerate(made)}, used)
    twice = any(counts[id(x)] > 1 for x in given)  # it could be either from now on
    if form is None or twice or len(used) != len(made):
        return None
    picks = [(place, tensors[id(x)]) for place, x in enumerate(given) if id(x) in tensors]
    return Plan(graph, [None if id(x) in tensors else x for x in given], picks, form)


def memory(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor shows: torch may hand on another one of the same."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """What hangs in tuples and mappings, and where."""
    if isinstance(tree, Mapping | tuple):
        for key, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from leaves(part, (*path, key))
    else:
        yield path, tree


def formed(tree: Any, args: Mapping[int, Path], made: Mapping[Any, int], used: set[int]) -> Any:
    """A description of what is returned, equal for equal forms: None where something in it comes from elsewhere."""
    if isinstance(tree, Tensor):
        if memory(tree) in made:
            used.add(made[memory(tree)])
            return "made", made[memory(tree)]
        return ("arg", args[id(tree)]) if id(tree) in args else None
    if isinstance(tree, Mapping | tuple):
        keys, parts = (tuple(tree), tuple(tree.values())) if isinstance(tree, Mapping) else ((), tree)
        forms = tuple(formed(part, args, made, used) for part in parts)
        known = None not in forms and all(isinstance(key, PLAIN) for key in keys)
        return (type(tree), keys, forms) if known else None
    return ("plain", tree) if isinstance(tree, PLAIN) else None


def straight(plan: Plan) -> Fn:
    """The graph as a function of the arguments. Its loops are short and without calls: each microsecond here is one of
    every step."""
    entry, build, constant = plan.graph.current_callable, builder(plan.form), plan.given
    near = [(place, *path) for place, path in plan.picks if len(path) == 1]
    inner = [(place, *path) for place, path in plan.picks if len(path) == 2]
    third = [(place, *path) for place, path in plan.picks if len(path) == 3]
    deep = [(place, path) for place, path in plan.picks if len(path) > 3]

    def run(*args: Any) -> Any:
        given = constant.copy()
        for place, key in near:
            given[place] = args[key]
        for place, key, part in inner:
            given[place] = args[key][part]
        for place, key, part, leaf in third:
            given[place] = args[key][part][leaf]
        for place, path in deep:
            given[place] = reduce(getitem, path, args)
        was = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # gradients are inside; torch.no_grad() takes five times as long
        try:
            return build(entry(given), args)
        finally:
            torch._C._set_grad_enabled(was)

    return run


def builder(form: Any) -> Build:
    """What puts such a form together."""
    match form:
        case "made", index:
            return lambda made, args: made[index]
        case "arg", path:
            return lambda made, args: reduce(getitem, path, args)
        case "plain", value:
            return lambda made, args: value
    kind, keys, forms = form
    if forms and issubclass(kind, Mapping) and all(part[0] == "made" for part in forms):
        pairs = [(key, part[1]) for key, part in zip(keys, forms, strict=True)]
        return lambda made, args: {key: made[index] for key, index in pairs}
    parts = [builder(part) for part in forms]
    if issubclass(kind, Mapping):
        return lambda made, args: {key: part(made, args) for key, part in zip(keys, parts, strict=True)}
    if not parts:
        return lambda made, args: ()
    return collected(forms, parts, kind if hasattr(kind, "_make") else lambda *values: values)


def collected(forms: Any, parts: list[Build], kind: Fn) -> Build:
    """Several parts as one tuple; those that cost no call are filled in without one."""
    known = {"plain", "made"}
    fixed = [form[1] if form[0] == "plain" else () for form in forms]  # an empty tuple as well
    here = [(place, form[1]) for place, form in enumerate(forms) if form[0] == "made"]
    others = [(i, parts[i]) for i, form in enumerate(forms) if form[0] not in known and form != (tuple, (), ())]

    def build(made: Any, args: Any) -> Any:
        values = fixed.copy()
        for place, index in here:
            values[place] = made[index]
        for place, part in others:
            values[place] = part(made, args)
        return kind(*values)

    return build
