"""All choices of an action as one choice: algorithms for Discrete actions then act in other spaces."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from ganglion.config import WrapperConfig, register
from ganglion.core import Action, Box, Composite, Discrete, Env, MultiBinary, MultiDiscrete, Obs, Space, Step
from ganglion.envs.gym_arrays import MASK
from ganglion.envs.gym_spaces import mask_space, to_gym
from ganglion.envs.wrappers import PureWrapper
from ganglion.errors import UserError

MOST = 65_536  # choices


@register("wrapper", "joint")
class JointConfig(WrapperConfig):
    """One Discrete action for every combination of the choices of an action."""

    bins: int | None = Field(None, ge=2, le=10_000)  # values that a number of a Box is chosen from; None: no Box

    def build(self, env: Env) -> Env:
        return Joint(env, self.bins)


class Joint(PureWrapper):
    """Choice k stands for the combination whose digits are those of k, the last choice changing fastest. A mask of the
    choices becomes a mask of their combinations."""

    def __init__(self, env: Env, bins: int | None = None) -> None:
        super().__init__(env)
        self.bins, space = bins, env.spec.action
        self.sizes = self.choices(space)
        count = prod(self.sizes)
        if count > MOST:
            raise UserError(f"env.wrap: joint would make {count:,} choices of {space}; at most {MOST:,} are accepted.")
        self.masked = isinstance(env.spec.obs, Composite) and MASK in env.spec.obs.items
        obs = env.spec.obs
        if isinstance(obs, Composite) and self.masked:
            obs = Composite({**obs.items, MASK: mask_space(count)})
        self.spec = replace(env.spec, action=Discrete(count), obs=obs)

    def choices(self, space: Space) -> list[int]:
        """How many there are at each place of an action."""
        match space:
            case Composite():
                return [n for part in space.items.values() for n in self.choices(part)]
            case Discrete():
                return [space.n]
            case MultiDiscrete():
                return list(space.nvec)
            case MultiBinary():
                return [2] * space.n
            case Box() if self.bins is not None and space.bounded:
                return [self.bins] * space.size
        raise UserError(f"env.wrap: joint makes choices of {space} only with bins and finite bounds: set bins.")

    @property
    def outside(self) -> Any:
        """Actions are choices outside, too."""
        inner = super().outside
        return None if inner is None else (inner[0], to_gym(self.spec.action))

    # ------------------------------------------------------------ actions

    def act(self, action: Action) -> Action:
        digits: list[Tensor] = []
        for size in reversed(self.sizes):
            digits.append(action % size)
            action = action // size
        return self.combined(self.env.spec.action, digits)

    def combined(self, space: Space, digits: list[Tensor]) -> Action:
        """The action of a space, whose digits are taken from the end of a list."""
        match space:
            case Composite():
                return {name: self.combined(part, digits) for name, part in space.items.items()}
            case Discrete():
                return digits.pop()
        own = torch.stack([digits.pop() for _ in self.choices(space)], -1)
        if isinstance(space, Box):
            assert self.bins is not None
            places = own.to(space.dtype).reshape(-1, *space.shape) / (self.bins - 1)
            low, high = (edge(side, space, places) for side in (space.low, space.high))
            return low + (high - low) * places
        return own

    # ------------------------------------------------------------ observations

    def first(self, step: Step) -> tuple[Any, Step]:
        return self.after((), None, step)

    def after(self, own: Any, action: Action, step: Step) -> tuple[Any, Step]:
        if not self.masked:
            return own, step
        legal = torch.ones(len(step.valid), 1, dtype=torch.bool, device=step.valid.device)
        for part in self.masks(self.env.spec.action, step.obs[MASK], step.valid):
            legal = (legal[:, :, None] & part.bool()[:, None, :]).flatten(1)
        return own, step._replace(obs={**step.obs, MASK: legal})

    def masks(self, space: Space, mask: Obs, like: Tensor) -> list[Tensor]:
        """The mask of each choice, [B, n], or [1, n] where all are legal."""
        if isinstance(space, Composite):
            given = mask if isinstance(mask, dict) else {}
            return [one for name, part in space.items.items() for one in self.masks(part, given.get(name), like)]
        sizes = self.choices(space)
        if mask is None:
            return [like.new_ones(1, n) for n in sizes]
        return list(mask.split(sizes, -1))


def edge(side: tuple[float, ...], space: Box, like: Tensor) -> Tensor:
    """A bound of each number of a box. Filled, not copied: safe under capture."""
    filled = torch.cat([like.new_full((1,), value) for value in side])
    return filled.reshape(space.shape) if len(side) > 1 else filled.squeeze()
