"""Tensors for steps to come, made many at once: making one costs more than writing what a few slots saw into it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ganglion.core import Step
from ganglion.envs.gym_arrays import Array

STEPS = 64  # on one sheet
SMALL = 4_096  # bytes of a step's observations above which a sheet holds one step: it lives as long as any on it


class StepBlock:
    """Room for so many steps whose observations are one array each: [T, B, ...]."""

    __slots__ = ("obs", "reward", "terminated", "truncated", "valid")

    def __init__(self, count: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.obs, self.reward = np.empty((count, *shape), dtype), np.empty((count, shape[0]), np.float32)
        self.terminated, self.truncated, self.valid = np.empty((3, count, shape[0]), np.bool_)

    def steps(self) -> Step:
        """All of them as one."""
        return Step(*(torch.from_numpy(getattr(self, name)) for name in self.__slots__))


class StepBlocks:
    """Steps whose observations are one array [B, ...], each in a place of its own on a sheet of many."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.used, self.count = 0, STEPS if prod(shape) * np.dtype(dtype).itemsize <= SMALL else 1
        self.sheet = StepBlock(0, shape, dtype)
        self.steps: Sequence[Step] = ()

    def turn(self) -> None:
        """A new sheet; the old one is left to whoever still looks at it."""
        self.sheet, self.used = StepBlock(self.count, self.shape, self.dtype), 0
        self.steps = [Step(*row) for row in zip(*(part.unbind() for part in self.sheet.steps()[:5]), strict=True)]

    def next(self) -> tuple[StepBlock, int, Step]:
        """The sheet to be written on, the place there, and the step that this is."""
        if self.used == len(self.steps):
            self.turn()
        now, self.used = self.used, self.used + 1
        return self.sheet, now, self.steps[now]

    def step(self, obs: Array, reward: Array, terminated: Array, truncated: Array, valid: Array) -> Step:
        """A step that holds these."""
        sheet, now, step = self.next()
        sheet.obs[now], sheet.reward[now] = obs, reward
        sheet.terminated[now], sheet.truncated[now], sheet.valid[now] = terminated, truncated, valid
        return step
