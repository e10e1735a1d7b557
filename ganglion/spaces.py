"""Spaces: what observations and actions can be, without any environment library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, Protocol

import torch
from torch import Tensor


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

    @property
    def bounded(self) -> bool:
        """Whether all bounds are finite."""
        return all(abs(x) < inf for x in (*self.low, *self.high))


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


def alike(one: Space, other: Space) -> bool:
    """Whether their values have the same parts, shapes and types; bounds may differ."""
    match one, other:
        case Composite(), Composite():
            return one.items.keys() == other.items.keys() and all(
                alike(one.items[k], other.items[k]) for k in one.items
            )
        case Box(), Box():
            return (one.shape, one.dtype) == (other.shape, other.dtype)
    return one == other


# The key of an observation's part that is the same for all agents of a copy: what those who learn together may know.
# Networks that act do not see it.
CENTRAL = "central_state"


def central(obs: Space) -> Space | None:
    """The central state of an observation; None where there is none."""
    return obs.items.get(CENTRAL) if isinstance(obs, Composite) else None


def mask_misfit(mask: Space, action: Space) -> str:
    """What an action mask should be where it does not fit the actions; empty where it does."""
    if isinstance(action, Composite):
        if not isinstance(mask, Composite) or not mask.items.keys() <= action.items.keys():
            return f"a Dict or Tuple of masks, of any of the parts {', '.join(action.items)}"
        wrong = {key: mask_misfit(part, action.items[key]) for key, part in mask.items.items()}
        return next((f"at {key} {wanted}" for key, wanted in wrong.items() if wanted), "")
    if not isinstance(action, Discrete | MultiDiscrete):
        return f"absent: {type(action).__name__} actions have no mask"
    count = action.n if isinstance(action, Discrete) else sum(action.nvec)
    size = mask.size if isinstance(mask, Box) else mask.n if isinstance(mask, MultiBinary) else 0
    return "" if size == count else f"{count} numbers, one per choice"


class Rules(Protocol):
    """A world that can be played in thought, as pure functions of tensors; a state is [B, ...]."""

    discount: float  # of what follows: -1 where the other player moves next

    def read(self, obs: Any) -> Tensor:
        """The state that observations show."""
        ...

    def play(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The state after an action, the reward of whoever acted, whether it ended the episode."""
        ...

    def show(self, state: Tensor) -> Any:
        """The observations of states."""
        ...

    def turned(self, obs: Any, weights: Tensor, uniform: Tensor) -> tuple[Any, Tensor]:
        """Observations [T, B, ...] and weights of their actions [T, B, A], each changed by a symmetry of the world."""
        ...


@dataclass(frozen=True)
class EnvSpec:
    """What an algorithm may know of an environment."""

    obs: Space
    action: Space
    slots: int = 1  # copies of the game times its agents: all copies of the first agent, then all of the second, ...
    name: str = ""
    agents: tuple[str, ...] = ("agent",)  # of one copy
    turns: bool = False  # whether agents take turns: `Step.acts` says who decides
    rules: Rules | None = field(default=None, compare=False, repr=False)  # where a search can know them
    frame: Space | None = None  # where observations are stacks of the last frames (FrameStack): what one frame is

    @property
    def copies(self) -> int:
        """Of the game."""
        return self.slots // len(self.agents)

    def place(self, agents: Sequence[str]) -> slice:
        """The slots of some agents, which must follow each other."""
        first = self.agents.index(agents[0])
        return slice(first * self.copies, (first + len(agents)) * self.copies)
