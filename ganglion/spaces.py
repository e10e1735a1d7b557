"""Spaces: what observations and actions can be, without any environment library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

import torch


@dataclass(frozen=True)
class Box:
    """Real vectors or images; `low` and `high` hold one bound, or one per element."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: tuple[float, ...] = (-inf,)
    high: tuple[float, ...] = (inf,)

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Discrete:
    """One of n choices, always 0 .. n - 1 inside Ganglion."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once."""

    nvec: tuple[int, ...]


@dataclass(frozen=True)
class MultiBinary:
    """n independent bits."""

    n: int


@dataclass(frozen=True)
class Composite:
    """Named parts: gymnasium's Dict, and its Tuple with the keys "0", "1", ..."""

    items: Mapping[str, Space]


Space = Box | Discrete | MultiDiscrete | MultiBinary | Composite


@dataclass(frozen=True)
class EnvSpec:
    """What an algorithm may know of an environment."""

    obs: Space
    action: Space
    slots: int = 1
    name: str = ""
    agents: tuple[str, ...] = ("agent",)
    frame: Space | None = None  # where observations are stacks of the last frames (FrameStack): what one frame is
