"""The board games of two as games of two agents who take turns: for players that differ, as those of a league do."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion.config import EnvConfig, register
from ganglion.core import Box, Composite, Discrete, MultiBinary, Obs
from ganglion.envs.board_games import BoardRules, rules_of
from ganglion.envs.torch_env import TorchGame
from ganglion.errors import UserError

CELL = 48  # pixels of a cell that is drawn


@register("env", "board_turns")
class BoardTurnsConfig(EnvConfig):
    """A board game of two agents, as tensors; who waits has one legal action, the first."""

    id: Literal["tictactoe", "connect_four", "gomoku", "othello"]
    side: int | None = Field(None, ge=3, le=19)  # of gomoku's and Othello's board: by default 9 and 8

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> BoardTurns:
        if self.side is not None and self.id in ("tictactoe", "connect_four"):
            raise UserError(f"env.side: the board of {self.id} has one size.")
        return BoardTurns(rules_of(self.id, self.side), slots or self.slots, device)


class BoardTurns(TorchGame):
    """The board as whoever moves sees it, and whose turn it is."""

    agents, turns = ("first", "second"), True
    starts = 0

    def __init__(self, rules: BoardRules, slots: int, device: str = "cpu") -> None:
        planes = Box((2, *rules.shape), low=(0.0,), high=(1.0,))
        self.obs_space = Composite({"obs": planes, "action_mask": MultiBinary(rules.actions)})
        self.action_space, self.size = Discrete(rules.actions), rules.cells + 1
        self.rules, self.wait = rules, torch.arange(rules.actions, device=device) == 0
        super().__init__(slots, rules.name, device)

    def begin(self, dice: Tensor) -> Tensor:
        world = torch.zeros(len(dice), self.size, dtype=torch.float64, device=dice.device)
        world[:, :-1] = self.rules.start().to(dice.device)
        return world

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        second = world[:, -1] == 1
        board, reward, ended = self.rules.play(world[:, :-1], torch.where(second, action[1], action[0]))
        mine = torch.where(second, -reward, reward)
        return torch.cat((board, 1.0 - world[:, -1:]), 1), torch.stack((mine, -mine)), ended

    def acting(self, world: Tensor) -> Tensor:
        second = world[:, -1] == 1
        return torch.stack((~second, second))

    def render(self) -> Any:
        """The board of the first copy [H, W, 3]: the first agent's pieces red, the second's yellow."""
        board = self.world[0, :-1] * (1.0 - 2.0 * self.world[0, -1])  # 1 of the first, -1 of the second
        colours = torch.tensor([[230, 190, 40], [245, 245, 245], [200, 40, 40]], dtype=torch.uint8)
        cells = colours[board.cpu().long() + 1].unflatten(0, self.rules.shape)
        place = torch.arange(CELL) - CELL / 2 + 0.5
        disc = (place[:, None].square() + place.square() < (0.42 * CELL) ** 2)[None, None, :, :, None]
        drawn = torch.where(disc, cells[:, :, None, None], torch.tensor([30, 60, 140], dtype=torch.uint8))
        return drawn.transpose(1, 2).flatten(2, 3).flatten(0, 1).numpy()

    def show(self, world: Tensor) -> Obs:
        second = world[:, -1:] == 1
        seen = [torch.where(second == waits, -world[:, :-1], world[:, :-1]) for waits in (True, False)]
        both = [self.rules.show(board) for board in seen]
        legal = torch.where(self.acting(world)[..., None], torch.stack([x["action_mask"] for x in both]), self.wait)
        return {"obs": torch.stack([x["obs"] for x in both]), "action_mask": legal}
