"""Board games of two as tensors: tic-tac-toe, connect four, gomoku and Othello.

A board is seen by whoever moves: 1 for own pieces, -1 for the other's, 0 for nothing; a move turns it around. So one
slot plays both sides, a reward is that of whoever has just moved, and what follows counts -1 times. With an `opponent`
the environment plays the other side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion.config import EnvConfig, register
from ganglion.core import Box, Composite, Discrete, MultiBinary, Obs
from ganglion.envs.torch_env import TorchEnv
from ganglion.errors import UserError

Opponent = Literal["none", "random", "perfect"]


@register("env", "board")
class BoardConfig(EnvConfig):
    """A board game, as tensors."""

    id: Literal["tictactoe", "connect_four", "gomoku", "othello"]
    side: int | None = Field(None, ge=3, le=19)  # of gomoku's and Othello's board: by default 9 and 8
    opponent: Opponent = "none"  # who plays the other side: none, whoever acts plays both; perfect is of tictactoe

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> BoardGame:
        if self.side is not None and self.id in ("tictactoe", "connect_four"):
            raise UserError(f"env.side: the board of {self.id} has one size.")
        if self.opponent == "perfect" and self.id != "tictactoe":
            raise UserError(f"env.opponent: nobody here plays {self.id} perfectly. Accepted: none, random.")
        if self.id == "othello" and (self.side or 8) % 2:
            raise UserError(f"env.side: Othello's board has an even side, not {self.side}.")
        return BoardGame(rules_of(self.id, self.side), slots or self.slots, device, self.opponent)


def rules_of(name: str, side: int | None = None) -> BoardRules:
    """The rules of a game by its name."""
    match name:
        case "tictactoe":
            return InARow(name, (3, 3), 3, falls=False)
        case "connect_four":
            return InARow(name, (6, 7), 4, falls=True)
        case "gomoku":
            return InARow(name, (side or 9, side or 9), 5, falls=False)
    return Othello(side or 8)


class BoardRules:
    """The rules of a game as pure functions of boards [B, cells], float64, as whoever moves sees them."""

    discount = -1.0  # of the next player's value

    def __init__(self, name: str, shape: tuple[int, int], actions: int) -> None:
        self.name, self.shape, self.actions = name, shape, actions
        self.cells = shape[0] * shape[1]
        turned = symmetries(shape, actions >= self.cells)
        where = turned if actions >= self.cells else columns_of(turned, shape)
        rest = torch.arange(where.shape[1], actions)  # a pass stays what it is
        self.turned_cells, self.turned_actions = turned, torch.cat((where, rest.expand(len(where), -1)), 1)

    def start(self) -> Tensor:
        """The first board, [cells]."""
        return torch.zeros(self.cells, dtype=torch.float64)

    def legal(self, board: Tensor) -> Tensor:
        """[B, cells] -> [B, actions] bool."""
        raise NotImplementedError(f"{type(self).__name__} has no legal moves")

    def play(self, board: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The board as the other sees it, the reward of whoever moved, whether the game is over."""
        raise NotImplementedError(f"{type(self).__name__} has no moves")

    def read(self, obs: Obs) -> Tensor:
        """The board that an observation shows."""
        mine, theirs = obs["obs"].to(torch.float64).flatten(2).unbind(1)
        return mine - theirs

    def show(self, board: Tensor) -> Obs:
        """What is seen of it: two planes [B, 2, rows, columns] and the legal actions."""
        planes = torch.stack((board > 0, board < 0), 1).to(torch.float32)
        return {"obs": planes.unflatten(2, self.shape), "action_mask": self.legal(board)}

    def turned(self, obs: Obs, weights: Tensor, uniform: Tensor) -> tuple[Obs, Tensor]:
        """Boards [T, B, ...] and weights of their actions, turned and mirrored at random."""
        which = (uniform * len(self.turned_cells)).long()
        cells, actions = (x.to(which.device)[which] for x in (self.turned_cells, self.turned_actions))
        planes = obs["obs"].flatten(-2)
        planes = planes.gather(-1, cells.unsqueeze(-2).expand_as(planes)).unflatten(-1, self.shape)
        return {"obs": planes, "action_mask": obs["action_mask"].gather(-1, actions)}, weights.gather(-1, actions)

    def text(self, board: Tensor, names: str = "xo") -> str:
        """One board [cells] as lines; `names`: of own and other pieces."""
        signs = {1: names[0], -1: names[1], 0: "."}
        rows = board.to(torch.int64).unflatten(0, self.shape).tolist()
        return "\n".join(" ".join(signs[x] for x in row) for row in rows)


def symmetries(shape: tuple[int, int], square: bool) -> Tensor:
    """Which cell comes to each cell: all turns and mirrors of a square board, the mirror of another, [K, cells]."""
    own = torch.arange(shape[0] * shape[1]).unflatten(0, shape)
    if not square or shape[0] != shape[1]:
        return torch.stack((own, own.flip(1))).flatten(1)
    turns = [own.rot90(k) for k in range(4)]
    return torch.stack([*turns, *(x.flip(1) for x in turns)]).flatten(1)


def columns_of(cells: Tensor, shape: tuple[int, int]) -> Tensor:
    """The same of columns, where an action is one."""
    return cells.unflatten(1, shape)[:, 0] % shape[1]


class InARow(BoardRules):
    """So many in a row, column or diagonal win; where pieces fall, an action is a column, and row 0 is the top."""

    def __init__(self, name: str, shape: tuple[int, int], length: int, falls: bool) -> None:
        super().__init__(name, shape, shape[1] if falls else shape[0] * shape[1])
        self.length, self.falls = length, falls
        self.lines = lines(shape, length)

    def legal(self, board: Tensor) -> Tensor:
        return board[:, : self.shape[1]] == 0 if self.falls else board == 0

    def play(self, board: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cell = self.landing(board, action) if self.falls else action
        placed = board.scatter(1, cell[:, None], 1.0)
        won = (placed @ self.lines.to(board.device) == self.length).any(-1)
        return -placed, won.to(board.dtype), won | (placed != 0).all(-1)

    def landing(self, board: Tensor, column: Tensor) -> Tensor:
        """The cell a piece falls to; in a full column, which is no legal action, its top."""
        columns = self.shape[1]
        free = (board.unflatten(1, self.shape) == 0).sum(1).gather(1, column[:, None])[:, 0]
        return (free - 1).clamp(min=0) * columns + column


def lines(shape: tuple[int, int], length: int) -> Tensor:
    """Every line of that length as a column of ones, [cells, lines] float64."""
    found = []
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        for row in range(shape[0]):
            for column in range(shape[1]):
                end = row + down * (length - 1), column + right * (length - 1)
                if 0 <= end[0] < shape[0] and 0 <= end[1] < shape[1]:
                    cells = torch.zeros(shape, dtype=torch.float64)
                    for k in range(length):
                        cells[row + down * k, column + right * k] = 1.0
                    found.append(cells.flatten())
    return torch.stack(found, 1)


class Othello(BoardRules):
    """Othello: a move turns over the other's pieces between it and another own one. The last action is a pass, legal
    where nothing else is."""

    def __init__(self, side: int) -> None:
        super().__init__("othello", (side, side), side * side + 1)
        self.side, self.before = side, steps(side)

    def start(self) -> Tensor:
        board, high = super().start().unflatten(0, self.shape), self.side // 2
        board[high - 1, high] = board[high, high - 1] = 1.0
        board[high - 1, high - 1] = board[high, high] = -1.0
        return board.flatten()

    def legal(self, board: Tensor) -> Tensor:
        free = self.placeable(board)
        return torch.cat((free, ~free.any(-1, keepdim=True)), 1)

    def play(self, board: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        placed = torch.zeros_like(board).scatter(1, action.clamp(max=self.cells - 1)[:, None], 1.0)
        placed = (placed > 0) & (action < self.cells)[:, None]
        runs = self.runs(placed, board < 0)
        closed = (self.moved(runs) & (board > 0)[:, None]).any(-1, keepdim=True)
        gained = (runs & closed).any(1) | placed
        after = torch.where(gained, 1.0, board)
        over = ~(self.placeable(after) | self.placeable(-after)).any(-1)
        return -after, torch.where(over, after.sum(-1).sign(), 0.0), over

    def placeable(self, board: Tensor) -> Tensor:
        """Empty cells from which a line of the other's pieces leads to an own one, [B, cells]."""
        return (self.moved(self.runs(board > 0, board < 0)) & (board == 0)[:, None]).any(1)

    def runs(self, ends: Tensor, theirs: Tensor) -> Tensor:
        """The other's pieces that follow those of `ends` without a gap, in each of eight directions, [B, 8, cells]."""
        theirs = theirs[:, None]
        found = self.moved(ends[:, None].expand(-1, 8, -1)) & theirs
        for _ in range(self.side - 3):
            found = found | (self.moved(found) & theirs)
        return found

    def moved(self, x: Tensor) -> Tensor:
        """Marks one cell further, each in its direction; over the edge they are lost."""
        beyond = torch.cat((x, torch.zeros_like(x[..., :1])), -1)
        return beyond.gather(2, self.before.to(x.device).expand(len(x), -1, -1))


def steps(side: int) -> Tensor:
    """For each of eight directions, which cell comes before each cell; `side` squared where none does, [8, cells]."""
    row, column = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
    found = []
    for down, right in [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]:
        r, c = row - down, column - right
        there = (r >= 0) & (r < side) & (c >= 0) & (c < side)
        found.append(torch.where(there, r * side + c, side * side))
    return torch.stack(found)


# ------------------------------------------------------------ as an environment


class BoardGame(TorchEnv):
    """A game per slot; its spec has the rules, for those who search."""

    def __init__(self, rules: BoardRules, slots: int, device: str = "cpu", opponent: Opponent = "none") -> None:
        planes = Box((2, *rules.shape), low=(0.0,), high=(1.0,))
        self.obs_space = Composite({"obs": planes, "action_mask": MultiBinary(rules.actions)})
        self.action_space, self.size = Discrete(rules.actions), rules.cells
        self.rules, self.opponent, self.begin = rules, opponent, rules.start().to(device)
        self.draws, self.starts = (0, 0) if opponent == "none" else (1, 2)
        self.best = best_moves(rules).to(device) if opponent == "perfect" else torch.empty(0)
        super().__init__(slots, rules.name, device)
        if opponent == "none":  # else what follows a move is not the other's, but one's own again
            self.spec = replace(self.spec, rules=rules)

    def first(self, dice: Tensor) -> Tensor:
        board = self.begin.expand(len(dice), -1)
        if not self.starts:
            return board.clone()
        replied, _, _ = self.rules.play(board, self.reply(board, dice[:, 1]))
        return torch.where(dice[:, :1] < 0.5, board, replied)  # either side begins

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        board, reward, ended = self.rules.play(world, action)
        if not self.draws:
            return board, reward, ended
        replied, theirs, over = self.rules.play(board, self.reply(board, dice[:, 0]))
        board = torch.where(ended[:, None], -board, replied)  # as whoever acts sees it, in either case
        return board, torch.where(ended, reward, -theirs), ended | over

    def reply(self, board: Tensor, uniform: Tensor) -> Tensor:
        """What the opponent does: one of the legal actions, or of the best ones, chosen evenly."""
        able = self.best[code(board)] if self.opponent == "perfect" else self.rules.legal(board)
        order = able.long().cumsum(-1)
        return (order <= (uniform * order[:, -1]).long()[:, None]).sum(-1).clamp(max=self.rules.actions - 1)

    def observe(self, world: Tensor) -> Obs:
        return self.rules.show(world)


def code(board: Tensor) -> Tensor:
    """The number of a board in the system of three, [B, cells] -> [B] int64."""
    return ((board + 1).long() * 3 ** torch.arange(board.shape[1], device=board.device)).sum(-1)


def best_moves(rules: BoardRules) -> Tensor:
    """Which actions keep the value of a board, [3 ^ cells, actions] bool: of small boards, from the last move back."""
    digits = 3 ** torch.arange(rules.cells)
    boards = ((torch.arange(3**rules.cells)[:, None] // digits) % 3 - 1).double()
    legal = rules.legal(boards)
    values, worth = torch.zeros(len(boards)), torch.full(legal.shape, -torch.inf)
    for pieces in range(rules.cells - 1, -1, -1):
        here = ((boards != 0).sum(-1) == pieces).nonzero()[:, 0]
        for action in range(rules.actions):
            able = here[legal[here, action]]
            after, reward, ended = rules.play(boards[able], torch.full_like(able, action))
            worth[able, action] = torch.where(ended, reward.float(), -values[code(after)])
        values[here] = worth[here].amax(-1)
    return legal & (worth == values[:, None])
