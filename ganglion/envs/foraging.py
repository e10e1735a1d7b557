"""Level-based foraging (Papoudakis et al. 2021) as tensors, as the package lbforaging plays it.

Players on a grid collect food beside them: together, if their levels add up to the food's. Tests hold it against the
package step by step.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from ganglion.config import EnvConfig, register
from ganglion.core import CENTRAL, Box, Composite, Discrete, Obs
from ganglion.envs.torch_env import TorchGame

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))  # none, north, south, west, east, load
LOAD = 5


@register("env", "foraging")
class ForagingConfig(EnvConfig):
    """Level-based foraging, as tensors; the default is Foraging-8x8-2p-2f-coop."""

    size: int = Field(8, ge=5, le=64)  # of the square grid
    players: int = Field(2, ge=2, le=16)
    foods: int = Field(2, ge=1, le=16)
    sight: int | None = Field(None, ge=1)  # cells that a player sees around itself; None: all
    coop: bool = True  # food takes the three weakest players, or all where they are fewer
    most: int = Field(2, ge=1, le=16)  # level of a player
    rounds: int = Field(50, ge=1, le=1_000_000)  # until an episode is truncated

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Foraging:
        return Foraging(self, slots or self.slots, device)


class Foraging(TorchGame):
    """Of each food and each player its row, column and level (0: eaten), and the sum of all levels of food."""

    def __init__(self, cfg: ForagingConfig, slots: int, device: str) -> None:
        self.cfg, self.limit = cfg, cfg.rounds
        self.agents = tuple(f"player_{i}" for i in range(cfg.players))
        entities = cfg.foods + cfg.players
        self.size, self.starts = 3 * entities + 1, 2 * (cfg.players + cfg.foods)
        top = float(max(cfg.size - 1, cfg.most * min(cfg.players, 3)))
        seen = Box((3 * entities,), low=(-1.0,), high=(top,))
        self.obs_space = Composite({"obs": seen, CENTRAL: Box((3 * entities,), low=(0.0,), high=(top,))})
        self.action_space = Discrete(len(MOVES))
        self.moves = torch.tensor(MOVES, dtype=torch.float64, device=device)
        line = torch.arange(cfg.size, dtype=torch.float64, device=device)
        self.cells = torch.cartesian_prod(line, line)  # [cells, 2]
        self.inner = ((self.cells > 0) & (self.cells < cfg.size - 1)).all(-1)
        super().__init__(slots, f"foraging-{cfg.size}x{cfg.size}-{cfg.players}p-{cfg.foods}f", device)

    def parts(self, world: Tensor) -> tuple[Tensor, Tensor]:
        """Foods [C, F, 3] and players [C, N, 3]."""
        food, player = world[:, :-1].unflatten(1, (-1, 3)).split((self.cfg.foods, self.cfg.players), 1)
        return food, player

    def joined(self, food: Tensor, player: Tensor, spawned: Tensor) -> Tensor:
        return torch.cat((food.flatten(1), player.flatten(1), spawned[:, None]), 1)

    # ------------------------------------------------------------ the rules

    def begin(self, dice: Tensor) -> Tensor:
        cfg, count = self.cfg, len(dice)
        free = torch.ones(count, len(self.cells), dtype=torch.bool, device=dice.device)
        players, foods = [], []
        for i in range(cfg.players):
            cell = self.drawn(free, dice[:, 2 * i])
            level = (dice[:, 2 * i + 1] * cfg.most).floor() + 1
            players.append(torch.cat((cell, level[:, None]), 1))
            free = free & (self.apart(cell) > 0)
        levels = torch.stack([player[:, 2] for player in players], 1).sort(1).values[:, :3].sum(1)
        free = free & self.inner
        for i in range(cfg.players, cfg.players + cfg.foods):
            there = free.any(1)
            cell = self.drawn(free, dice[:, 2 * i])
            level = levels if cfg.coop else (dice[:, 2 * i + 1] * levels).floor() + 1
            foods.append(torch.cat((cell, (level * there)[:, None]), 1))
            rows, columns = (self.cells - cell[:, None]).abs().unbind(-1)
            beside = ((rows <= 1) & (columns <= 1)) | (rows + columns == 2) & ((rows == 0) | (columns == 0))
            free = free & ~(beside & there[:, None])
        food = torch.stack(foods, 1)
        order = (food[..., 0] * cfg.size + food[..., 1]).argsort(1)
        food = food.gather(1, order[..., None].expand_as(food))
        return self.joined(food, torch.stack(players, 1), food[..., 2].sum(1))

    def drawn(self, free: Tensor, chance: Tensor) -> Tensor:
        """One of the free cells [C, cells]: its row and column, [C, 2]."""
        which = (chance * free.sum(1)).floor()
        return self.cells[(free & (free.cumsum(1) == which[:, None] + 1)).int().argmax(1)]

    def apart(self, cell: Tensor) -> Tensor:
        """How many steps lie between cells [C, 2] and all others, [C, cells]."""
        return (self.cells - cell[:, None]).abs().sum(-1)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (food, player), spawned = self.parts(world), world[:, -1]
        action = action.T  # [C, N]
        where, level = player[..., :2], player[..., 2]
        near = (where[:, :, None] - food[:, None, :, :2]).abs().sum(-1) == 1  # [C, N, F]
        beside = near & (food[:, None, :, 2] > 0)
        loads = (action == LOAD)[..., None] & beside
        moved = self.moved(where, food, self.moves[action])
        strength = (loads * level[..., None]).sum(1)  # [C, F]
        taken = loads.any(1) & (strength >= food[..., 2])
        share = torch.where(taken, food[..., 2] / strength.clamp(min=1), 0.0)
        reward = (loads * share[:, None]).sum(-1) * level / spawned[:, None]
        left = torch.where(taken, 0.0, food[..., 2])
        food = torch.cat((food[..., :2], left[..., None]), -1)
        player = torch.cat((moved, level[..., None]), -1)
        return self.joined(food, player, spawned), reward.T, (left == 0).all(1)

    def moved(self, where: Tensor, food: Tensor, step: Tensor) -> Tensor:
        """Where players [C, N, 2] are after their steps: not off the grid, not on food, not two on one cell."""
        goal = where + step
        inside = ((goal >= 0) & (goal < self.cfg.size)).all(-1)
        blocked = ((goal[:, :, None] == food[:, None, :, :2]).all(-1) & (food[:, None, :, 2] > 0)).any(-1)
        goal = torch.where((inside & ~blocked)[..., None], goal, where)
        same = (goal[:, :, None] == goal[:, None]).all(-1).sum(-1) > 1
        return torch.where(same[..., None], where, goal)

    # ------------------------------------------------------------ what is seen

    def show(self, world: Tensor) -> Obs:
        food, player = self.parts(world)
        seen = [self.seen(food, player, i) for i in range(self.cfg.players)]
        state = world[:, :-1].float()
        return {"obs": torch.stack(seen).float(), CENTRAL: state.expand(len(self.agents), -1, -1)}

    def seen(self, food: Tensor, player: Tensor, i: int) -> Tensor:
        """Of player i: the foods it sees, itself, the players it sees; what is missing is (-1, -1, 0)."""
        own = player[:, i : i + 1]
        others = torch.cat((player[:, :i], player[:, i + 1 :]), 1)
        seen = self.around(own, food, False), self.around(own, own, True), self.around(own, others, True)
        return torch.cat(seen, 1).flatten(1)

    def around(self, own: Tensor, entity: Tensor, players: bool) -> Tensor:
        """Entities [C, E, 3] as one sees them: those in sight first. Of other players, who stands at an edge sees as
        many cells as in the middle, as in the package."""
        there = entity[..., 2] > 0
        if (sight := self.cfg.sight) is not None:
            centre = own[..., :2]
            offset = (centre - sight).clamp(min=0)
            place = entity[..., :2] - offset
            far = (place - sight).abs() if players else (entity[..., :2] - centre).abs()
            there = there & (far <= sight).all(-1)
            entity = torch.cat((place, entity[..., 2:]), -1)
        nothing = torch.tensor((-1.0, -1.0, 0.0), dtype=entity.dtype, device=entity.device)
        shown = torch.where(there[..., None], entity, nothing)
        order = (~there).int().argsort(dim=1, stable=True)
        return shown.gather(1, order[..., None].expand_as(shown))
