"""Kuhn's poker (1950) for two as tensors: three cards, one each, one chip in the pot of each, one bet at most."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ganglion.config import EnvConfig, register
from ganglion.core import Box, Composite, Discrete, MultiBinary, Obs, Space
from ganglion.envs.torch_env import TorchGame

# What has been said: 0 nothing, 1 pass, 2 bet, 3 pass and bet. The first decides at 0 and 3, the second at 1 and 2.
DEALS = ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))


@register("env", "kuhn")
class KuhnConfig(EnvConfig):
    """Kuhn poker, as tensors; action 0 passes or folds, 1 bets or calls."""

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Kuhn:
        return Kuhn(slots or self.slots, "kuhn", device)


class Kuhn(TorchGame):
    """The cards of both, and what has been said."""

    agents, turns = ("first", "second"), True
    size, starts = 3, 1
    obs_space: Space = Composite({"obs": Box((7,), low=(0.0,), high=(1.0,)), "action_mask": MultiBinary(2)})
    action_space: Space = Discrete(2)

    def deals(self) -> Tensor:
        return torch.tensor([(*cards, 0) for cards in DEALS], dtype=torch.float64)

    def begin(self, dice: Tensor) -> Tensor:
        return self.deals().to(dice.device)[(dice[:, 0] * len(DEALS)).long()]

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second, said = world.unbind(1)
        bet = torch.where((said == 0) | (said == 3), action[0], action[1]) == 1
        higher = torch.where(first > second, 1.0, -1.0).double()
        folded = torch.where(said == 3, -1.0, 1.0).double()
        won = torch.where(said == 1, higher, torch.where(bet, 2 * higher, folded))
        ended = (said >= 2) | ((said == 1) & ~bet)
        after = torch.where(said == 0, torch.where(bet, 2.0, 1.0).double(), torch.where((said == 1) & bet, 3.0, said))
        won = torch.where(ended, won, 0.0)
        return torch.stack((first, second, after), 1), torch.stack((won, -won)), ended

    def acting(self, world: Tensor) -> Tensor:
        first = (world[:, 2] == 0) | (world[:, 2] == 3)
        return torch.stack((first, ~first))

    def show(self, world: Tensor) -> Obs:
        said = one_hot(world[:, 2].long(), 4).float().expand(2, -1, -1)
        cards = one_hot(world[:, :2].T.long(), 3).float()
        acting = self.acting(world)
        return {"obs": torch.cat((cards, said), -1), "action_mask": torch.stack((torch.ones_like(acting), acting), -1)}
