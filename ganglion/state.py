"""State: all that changes in a part, as named tensors and JSON scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

Json = Any  # what json.dumps takes


class Ring(NamedTuple):
    """Large row storage. A checkpoint writes only the blocks whose stamp has changed."""

    arrays: Mapping[str, Tensor]  # each [rows, ...]
    block: int  # rows per block
    stamps: tuple[int, ...]  # per block: rows ever pushed when it last changed, 0 when never written


class State(NamedTuple):
    """All that changes in a part: named tensors, JSON scalars, and large row storage."""

    tensors: Mapping[str, Tensor] = {}
    scalars: Mapping[str, Json] = {}
    rings: Mapping[str, Ring] = {}


def read_count(value: Json, most: int = 1 << 62) -> int:
    """A whole number of a state that was read, checked: a file may say anything."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no number from 0 to {most}")
    return value


def read_number(value: Json) -> float:
    """Any number of a state that was read, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return value


class Stateful(Protocol):
    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


def join(parts: Mapping[str, State]) -> State:
    """Several states as one, names prefixed by `part/`."""
    tensors = {f"{p}/{k}": v for p, s in parts.items() for k, v in s.tensors.items()}
    scalars = {f"{p}/{k}": v for p, s in parts.items() for k, v in s.scalars.items()}
    return State(tensors, scalars, {f"{p}/{k}": v for p, s in parts.items() for k, v in s.rings.items()})


def under(state: State, part: str) -> State:
    """The state of one part of a joined state."""
    cut = len(part) + 1

    def pick(named: Mapping[str, Any]) -> dict[str, Any]:
        return {k[cut:]: v for k, v in named.items() if k.startswith(part + "/")}

    return State(pick(state.tensors), pick(state.scalars), pick(state.rings))
