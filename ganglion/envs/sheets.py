"""Tensors for steps to come, made many at once: making one costs more than writing what a few slots saw into it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from ganglion.core import Step
from ganglion.envs.arrays import Array

STEPS = 64  # on one sheet
SMALL = 4_096  # bytes of a step's observations above which a sheet holds one step: it lives as long as any on it


class Sheets:
    """Steps whose observations are one array [B, ...], each in a place of its own on a sheet of many."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.used = self.count = STEPS if prod(shape) * np.dtype(dtype).itemsize <= SMALL else 1
        self.arrays: list[Any] = []
        self.steps: list[Step] = []

    def turn(self) -> None:
        """A new sheet; the old one is left to whoever still looks at it."""
        slots, self.used = self.shape[0], 0
        obs, reward = np.empty((self.count, *self.shape), self.dtype), np.empty((self.count, slots), np.float32)
        flags = np.empty((3, self.count, slots), np.bool_)
        arrays = obs, reward, *flags
        self.arrays = list(zip(*arrays, strict=True))
        self.steps = [Step(*row) for row in zip(*(torch.from_numpy(x).unbind() for x in arrays), strict=True)]

    def next(self) -> tuple[Any, Step]:
        """A step, and its arrays to be written."""
        if self.used == self.count:
            self.turn()
        now, self.used = self.used, self.used + 1
        return self.arrays[now], self.steps[now]

    def step(self, obs: Array, reward: Array, terminated: Array, truncated: Array, valid: Array) -> Step:
        """A step that holds these."""
        (to_obs, to_reward, to_terminated, to_truncated, to_valid), step = self.next()
        to_obs[...], to_reward[...] = obs, reward
        to_terminated[...], to_truncated[...], to_valid[...] = terminated, truncated, valid
        return step
