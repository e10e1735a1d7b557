"""ALE's own vector environment as slots of the contract. Promise: restart, for it neither gives its state away nor
repeats an episode: it takes seeds, but loads the cartridge again for each, which takes as long as 400 steps, so that
episodes after the first follow from its own random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from ganglion.core import Box, Env
from ganglion.envs.gym_arrays import Array
from ganglion.envs.vector import VectorGymEnv


class ArcadeEnv(VectorGymEnv):
    """Next-step autoreset. A life lost is an ending after which the game goes on.

    Observations are stacks of frames, [B, stack, size, size], which ALE's threads put together. An episode starts with
    its first frame repeated, as everywhere in Ganglion; ALE leaves those before black, or as the last life left them.

    ALE can also end an episode with a life (`episodic_life`), but then starts a new game, and no other life than the
    first is ever seen; hence `life_loss_info`, with which the action that should be ignored is really taken.
    """

    def _begin(self, seed: int) -> None:
        super()._begin(seed)
        space = self.spec.obs
        assert isinstance(space, Box)
        self.stack = space.shape[0]
        self.age = np.full(self.spec.slots, -1)  # steps since the episode began, while there are frames before it
        self.young = True  # some age is below the stack's
        if self.stack > 1:
            self.spec = replace(self.spec, frame=replace(space, shape=(1, *space.shape[1:])))

    def _rows(self, obs: Any) -> list[Array]:
        return [self._shown(row) for row in super()._rows(obs)]

    def _shown(self, row: Array) -> Array:
        if self.young or self.stirred:
            self.age = np.where(self.ended, 0, self.age + 1)
            for slot in np.flatnonzero(self.age < self.stack - 1).tolist():
                first = self.stack - 1 - self.age[slot]
                row[slot, :first] = row[slot, first]
            self.young = bool((self.age < self.stack - 1).any())
        return row

    def _unfinished(self, terminated: Array, info: Mapping[str, Any]) -> Array:
        alive: Array = terminated & (info["lives"] > 0)
        return alive

    def _told(self, info: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"lives": info["lives"]}  # the rest are counters


def build(game: str, slots: int, settings: Mapping[str, Any], device: str) -> Env:
    """Slots of a game; the settings are those of ALE's constructor."""
    return ArcadeEnv(AtariVectorEnv(game, slots, **settings), game, device)
