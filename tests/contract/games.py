"""Games of two agents, as a user would write them. Used as `--import tests.contract.games`."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ganglion.config import EnvConfig, register
from ganglion.core import Box, Composite, Discrete, MultiBinary, Obs, Space
from ganglion.envs import TorchGame


@register("env", "rock-paper-scissors")
class RockPaperScissorsConfig(EnvConfig):
    """Eight rounds; both see what was played in the last."""

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> RockPaperScissors:
        return RockPaperScissors(slots or self.slots, "rock-paper-scissors", device)


class RockPaperScissors(TorchGame):
    agents = ("left", "right")
    size, limit = 2, 8  # the last choice of each; 3 before the first
    obs_space: ClassVar[Space] = Box((8,))
    action_space: ClassVar[Space] = Discrete(3)

    def begin(self, dice: Tensor) -> Tensor:
        return torch.full((len(dice), 2), 3.0, dtype=torch.float64, device=dice.device)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = action
        won = torch.tensor([0.0, 1.0, -1.0], device=world.device)[(left - right) % 3]
        return action.T.double(), torch.stack((won, -won)), torch.zeros_like(won, dtype=torch.bool)

    def show(self, world: Tensor) -> Obs:
        seen = torch.nn.functional.one_hot(world.long(), 4).float()  # [C, 2, 4]
        return torch.stack((seen, seen.flip(1))).flatten(2)  # one's own first


@register("env", "nim")
class NimConfig(EnvConfig):
    """Seven sticks; who takes the last one wins. One or two at a time, in turn."""

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Nim:
        return Nim(slots or self.slots, "nim", device)


class Nim(TorchGame):
    agents, turns = ("first", "second"), True
    size, starts = 2, 1  # sticks, and whose turn it is
    obs_space: ClassVar[Space] = Composite({"sticks": Box((8,)), "action_mask": MultiBinary(2)})
    action_space: ClassVar[Space] = Discrete(2)

    def begin(self, dice: Tensor) -> Tensor:
        sticks = torch.where(dice[:, 0] < 0.5, 7.0, 5.0)
        return torch.stack((sticks, torch.zeros_like(sticks)), 1)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sticks, turn = world.unbind(1)
        taken = torch.where(turn == 0, action[0], action[1]) + 1
        left = (sticks - taken).clamp(min=0)
        ended = left == 0
        won = torch.where(ended, torch.where(turn == 0, 1.0, -1.0), 0.0)
        return torch.stack((left, 1 - turn), 1), torch.stack((won, -won)), ended

    def acting(self, world: Tensor) -> Tensor:
        return torch.stack((world[:, 1] == 0, world[:, 1] == 1))

    def show(self, world: Tensor) -> Obs:
        sticks = torch.nn.functional.one_hot(world[:, 0].long(), 8).float()
        two = self.acting(world) & (world[:, 0] >= 2)  # who waits, and who finds one stick, has one choice
        mask = torch.stack((torch.ones_like(two), two), -1)
        return {"sticks": torch.stack((sticks, sticks)), "action_mask": mask}
