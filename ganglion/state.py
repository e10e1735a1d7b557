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
