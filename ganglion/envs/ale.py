"""ALE's own vector environment as slots of the contract. Promise: restart, for it neither gives its state away nor
repeats an episode: it takes seeds, but loads the cartridge again for each, which takes as long as 400 steps, so that
episodes after the first follow from its own random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ale_py.vector_env import AtariVectorEnv

from ganglion.core import Env
from ganglion.envs.arrays import Array
from ganglion.envs.vector import VectorGymEnv


class ArcadeEnv(VectorGymEnv):
    """Next-step autoreset, frames [B, 1, size, size]. A life lost is an ending after which the game goes on.

    ALE can also end an episode with a life (`episodic_life`), but then starts a new game, and no other life than the
    first is ever seen; hence `life_loss_info`, with which the action that should be ignored is really taken.
    """

    def _unfinished(self, terminated: Array, info: Mapping[str, Any]) -> Array:
        alive: Array = terminated & (info["lives"] > 0)
        return alive

    def _told(self, info: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"lives": info["lives"]}  # the rest are counters


def build(game: str, slots: int, settings: Mapping[str, Any], device: str) -> Env:
    """Slots of a game; the settings are those of ALE's constructor."""
    return ArcadeEnv(AtariVectorEnv(game, slots, **settings), game, device)
