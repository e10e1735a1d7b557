"""A game that cannot be played without communication: each agent sees a colour, and is paid for naming the one that the
next agent sees. Who guesses is right once in so many colours."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from ganglion.config import EnvConfig, register
from ganglion.core import CENTRAL, Box, Composite, Discrete, Obs
from ganglion.envs.torch_env import TorchGame


@register("env", "colours")
class ColoursConfig(EnvConfig):
    """Agents that have to tell each other what they see, as tensors."""

    players: int = Field(3, ge=2, le=16)
    colours: int = Field(3, ge=2, le=16)
    rounds: int = Field(10, ge=1, le=1_000_000)  # until an episode is truncated; colours are drawn anew in each

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Colours:
        return Colours(self, slots or self.slots, device)


class Colours(TorchGame):
    """The colour of each player."""

    def __init__(self, cfg: ColoursConfig, slots: int, device: str) -> None:
        self.colours, self.limit, self.players = cfg.colours, cfg.rounds, cfg.players
        self.agents = tuple(f"player_{i}" for i in range(cfg.players))
        self.size = self.starts = self.draws = cfg.players
        seen = Box((cfg.colours + cfg.players,), low=(0.0,), high=(1.0,))  # the colour, and who one is
        central = Box((cfg.colours * cfg.players,), low=(0.0,), high=(1.0,))
        self.obs_space, self.action_space = Composite({"obs": seen, CENTRAL: central}), Discrete(cfg.colours)
        super().__init__(slots, "colours", device)

    def begin(self, dice: Tensor) -> Tensor:
        return (dice * self.colours).floor()

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right = world.roll(-1, 1) == action.T  # [C, players]
        return self.begin(dice), right.T / self.players, torch.zeros(len(world), dtype=torch.bool, device=world.device)

    def show(self, world: Tensor) -> Obs:
        colour = one_hot(world.long(), self.colours).float()  # [C, players, colours]
        who = torch.eye(self.players, device=world.device).expand(len(world), -1, -1)
        seen = torch.cat((colour, who), -1).transpose(0, 1)
        return {"obs": seen, CENTRAL: colour.flatten(1).expand(self.players, -1, -1)}
