"""A game for tests of leagues. Used as `--import tests.league.worlds`."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ganglion.config import EnvConfig, register
from ganglion.core import Box, Discrete, Obs, Space
from ganglion.envs import TorchGame


@register("env", "uneven")
class UnevenConfig(EnvConfig):
    """Rock, paper, scissors over one to many rounds: after each the game is over with probability 0.4."""

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Uneven:
        return Uneven(slots or self.slots, "uneven", device)


class Uneven(TorchGame):
    agents = ("left", "right")
    size, draws = 1, 1
    obs_space: ClassVar[Space] = Box((2,))
    action_space: ClassVar[Space] = Discrete(3)

    def begin(self, dice: Tensor) -> Tensor:
        return torch.ones(len(dice), 1, dtype=torch.float64, device=dice.device)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        won = torch.tensor([0.0, 1.0, -1.0], device=world.device)[(action[0] - action[1]) % 3]
        return world, torch.stack((won, -won)), dice[:, 0] < 0.4

    def show(self, world: Tensor) -> Obs:
        return torch.eye(2, device=world.device)[:, None].expand(2, len(world), 2)
