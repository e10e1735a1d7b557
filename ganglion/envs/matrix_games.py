"""Games of two agents that are one table of rewards, played over and over: what cooperation and competition are tested
on. Nothing but who one is can be seen."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion.config import EnvConfig, Real, register
from ganglion.core import CENTRAL, Box, Composite, Discrete, Obs
from ganglion.envs.torch_env import TorchGame
from ganglion.errors import UserError

Table = tuple[tuple[float, ...], ...]  # rewards of the first agent: its actions down, the second's across

CLIMBING: Table = ((11, -30, 0), (-30, 7, 6), (0, 0, 5))  # Claus and Boutilier (1998); both get the same
ZERO_SUM: Table = ((3, -2), (-2, 1))  # the second gets the opposite; at best 0 is played 3 times of 8
RPS: Table = ((0, -1, 1), (1, 0, -1), (-1, 1, 0))  # rock, paper, scissors
DILEMMA: Table = ((-1, -20), (0, -10))  # silent or not: the second gets what the first would in its place


@register("env", "matrix")
class MatrixConfig(EnvConfig):
    """A matrix game, as tensors: climbing and penalty are cooperative, prisoners_dilemma and zero_sum are nerveX's."""

    id: Literal["climbing", "penalty", "prisoners_dilemma", "zero_sum", "rock_paper_scissors"]
    rounds: int = Field(25, ge=1, le=1_000_000)  # of an episode, which is then truncated
    k: Real | None = None  # of penalty, by default -100: what both get where they miss each other

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> MatrixGame:
        if self.k is not None and self.id != "penalty":
            raise UserError(f"env.k: {self.id} has no such setting; penalty has.")
        k = -100.0 if self.k is None else self.k
        first: Table = {
            "climbing": CLIMBING,
            "penalty": ((10, 0, k), (0, 2, 0), (k, 0, 10)),
            "prisoners_dilemma": DILEMMA,
            "zero_sum": ZERO_SUM,
            "rock_paper_scissors": RPS,
        }[self.id]
        second: Table = {
            "prisoners_dilemma": tuple(zip(*DILEMMA, strict=True)),
            "zero_sum": tuple(tuple(-x for x in row) for row in ZERO_SUM),
            "rock_paper_scissors": tuple(zip(*RPS, strict=True)),
        }.get(self.id, first)
        return MatrixGame((first, second), slots or self.slots, self.id, device, self.rounds)


class MatrixGame(TorchGame):
    """Two tables of rewards, [2, actions, actions]."""

    agents = ("first", "second")
    size = 1

    def __init__(self, tables: tuple[Table, Table], slots: int, name: str, device: str, rounds: int) -> None:
        self.obs_space = Composite({"obs": Box((2,), low=(0.0,), high=(1.0,)), CENTRAL: Box((1,))})
        self.action_space, self.limit = Discrete(len(tables[0])), rounds
        self.rewards = torch.tensor(tables, dtype=torch.float64, device=device)
        super().__init__(slots, name, device)

    def begin(self, dice: Tensor) -> Tensor:
        return torch.ones(len(dice), 1, dtype=torch.float64, device=dice.device)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reward = self.rewards[:, action[0], action[1]]
        return world, reward, torch.zeros_like(reward[0], dtype=torch.bool)

    def show(self, world: Tensor) -> Obs:
        who = torch.eye(2, device=world.device)[:, None].expand(2, len(world), 2)
        return {"obs": who, CENTRAL: world.float().expand(2, -1, -1)}
