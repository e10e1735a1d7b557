"""What an algorithm did wrong, said by name: random numbers that `draws` did not declare, parts that `parts` forgot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from operator import methodcaller
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ganglion import ops
from ganglion.core import Algorithm, Noise, Stateful

NOISY = ("predict", "explore", "plan", "learn", "learn_late")  # methods that are given random numbers


def told(error: Exception) -> str:
    """What failed, in one line."""
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


# ------------------------------------------------------------ draws


class Blamed(TorchFunctionMode):
    """Notes whether an operation that failed was given some of these random numbers."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.own = [x for x in ops.leaves(noise) if torch.is_tensor(x)]  # kept: their ids are not used again
        self.failed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in args if torch.is_tensor(x)]
        ours = [x for x in given if any(x is mine for mine in self.own)]
        try:
            gave = func(*args, **(kwargs or {}))
        except Exception:
            self.failed |= bool(ours)
            raise
        if ours:  # what is made of them alone, or is as empty as they are
            results = gave if type(gave) in (tuple, list) else (gave,)
            alone = len(ours) == len(given)
            self.own += [x for x in results if torch.is_tensor(x) and (alone or not x.numel())]
        return gave


def beyond_draws(error: Exception) -> str | None:
    """Says which method took more random numbers than were declared, where that is why it failed. The method is run
    once more, on a copy."""
    for frame, _ in walk_tb(error.__traceback__):
        name, known = frame.f_code.co_name, frame.f_locals
        match known.get("self"), known.get("noise"):
            case Algorithm() as algo, Noise() as noise if name in NOISY:
                code, watch = frame.f_code, Blamed(noise)
                given = (known[name] for name in code.co_varnames[1 : code.co_argcount])
                try:
                    with watch:
                        methodcaller(name, *given)(deepcopy(algo))
                except Exception:
                    if watch.failed:
                        had = f"uniform={noise.uniform.shape[-1]}, normal={noise.normal.shape[-1]}"
                        return f"{type(algo).__name__}.{name} takes more random numbers than draws() declares ({had})"
    return None


# ------------------------------------------------------------ parts


class Forgotten:
    """Finds what an algorithm changes and no part of it saves, by comparing both."""

    def __init__(self, algo: Algorithm[Any, Any]) -> None:
        self.algo = algo
        self.before = {name: ops.map_tree(copied, read) for name, read in self.unsaved()}

    def unsaved(self) -> Iterator[tuple[str, Any]]:
        """The attributes that parts do not hold as they are, and what is in them."""
        parts = list(self.algo.parts().values())
        saved = {x.data_ptr() for part in parts for x in part.state().tensors.values()}
        for name, value in vars(self.algo).items():
            read = contents(value)
            alive = [x for x in ops.leaves(read) if torch.is_tensor(x) and x.numel()]
            if not any(value is part for part in parts) and not (alive and all(x.data_ptr() in saved for x in alive)):
                yield name, read

    def names(self) -> list[str]:
        """Attributes that have changed since, and are not found among what is saved, by value. (A network must be
        saved itself: a target that was just copied has the values of its model.)"""
        states = [part.state() for part in self.algo.parts().values()]
        saved = [x for state in states for x in (*state.tensors.values(), *state.scalars.values())]
        found = []
        for name, read in self.unsaved():
            now = ops.leaves(read)
            network = issubclass(type(vars(self.algo)[name]), nn.Module)
            kept = not network and all(any(alike(x, y) for y in saved) for x in now)
            if not kept and not same(ops.leaves(self.before.get(name, ())), now):
                found.append(name)
        return found


def contents(value: Any) -> Any:
    """What can change in an attribute, as a tree; nothing of what is no state: configs, spaces, functions."""
    match value:
        case nn.Module():
            return dict(value.state_dict())
        case torch.optim.Optimizer():
            return contents(value.state_dict()["state"])
        case Stateful():
            state = value.state()
            return {"tensors": dict(state.tensors), "scalars": repr(sorted(state.scalars.items()))}
        case Tensor() | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): contents(part) for key, part in value.items()}
        case list():
            return {str(place): contents(part) for place, part in enumerate(value)}
    return ()


def copied(leaf: Any) -> Any:
    return leaf.detach().clone() if torch.is_tensor(leaf) else leaf


def alike(one: Any, other: Any) -> bool:
    if not torch.is_tensor(one) or not torch.is_tensor(other):
        return type(one) is type(other) and one == other
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(alike, one, other))
