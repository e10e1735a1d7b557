"""Small worlds whose best values are known, for tests: what an algorithm learns can be compared with the truth.

`best_values(gamma)` are the action values of the best behaviour, [observations, actions], where observations can be
listed; `best_return` is the undiscounted return that behaviour may expect.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ganglion.core import Action, Box, Composite, Discrete, Obs
from ganglion.envs.gym_spaces import mask_space
from ganglion.envs.torch_env import TorchEnv

ONE = Box((1,), low=(0.0,), high=(1.0,))  # an observation that says nothing
UNIT = Box((1,), low=(-1.0,), high=(1.0,))


class Toy(TorchEnv):
    """A world with a known best return."""

    best_return: float

    def best_values(self, gamma: float) -> Tensor:
        """Action values of the best behaviour, [observations, actions]."""
        raise NotImplementedError(f"{type(self).__name__} has no finite table of values")


def _number(dice: Tensor, n: int) -> Tensor:
    """A uniform number in [0, 1) as one of n choices, still float64."""
    return (dice * n).floor()


class Identity(Toy):
    """Name what is shown: 1 for the right one of n, 0 else; a new one each step, truncated after `limit` steps.

    Q*(s, a) = [a = s] + gamma / (1 - gamma). With `continuous`, s is a number in [-1, 1) and the reward
    -(a - s)^2, so Q*(s, a) = -(a - s)^2.
    """

    size, starts, draws = 1, 1, 1

    def __init__(
        self, slots: int, size: int = 4, limit: int = 8, continuous: bool = False, device: str = "cpu"
    ) -> None:
        self.n, self.limit, self.continuous = size, limit, continuous
        self.obs_space = UNIT if continuous else Discrete(size)
        self.action_space = UNIT if continuous else Discrete(size)
        self.best_return = 0.0 if continuous else float(limit)
        super().__init__(slots, "identity", device)

    def best_values(self, gamma: float) -> Tensor:
        if self.continuous:
            return super().best_values(gamma)
        return torch.eye(self.n) + gamma / (1 - gamma)

    def first(self, dice: Tensor) -> Tensor:
        return dice * 2.0 - 1.0 if self.continuous else _number(dice, self.n)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shown = world.squeeze(-1)
        if self.continuous:
            reward = -(action.squeeze(-1).clamp(-1.0, 1.0) - shown).square()
        else:
            reward = (action == shown).to(world.dtype)
        return self.first(dice), reward, torch.zeros_like(self.ended)

    def observe(self, world: Tensor) -> Tensor:
        return world.to(torch.float32) if self.continuous else world.squeeze(-1).to(torch.int64)


class Chain(Toy):
    """A corridor of n places, seen as a one-hot vector: right (1) leads to the exit, n steps away, worth 1 and the end;
    left (0) leads back to the start, where it is worth a tempting 0.001. Truncated after `limit` steps.

    V*(s) = gamma^(n - 1 - s) as long as that is above 0.001 gamma^s / (1 - gamma), the worth of going back to nibble.
    """

    size = 1
    bait = 1e-3

    def __init__(self, slots: int, size: int = 8, limit: int = 64, device: str = "cpu") -> None:
        self.n, self.limit = size, limit
        self.obs_space, self.action_space = Box((size,), low=(0.0,), high=(1.0,)), Discrete(2)
        self.best_return = 1.0
        super().__init__(slots, "chain", device)

    def best_values(self, gamma: float) -> Tensor:
        right = gamma ** torch.arange(self.n - 1, -1, -1, dtype=torch.float64)
        start = right[0].clamp_min(self.bait / (1 - gamma))
        best = torch.maximum(right, gamma ** torch.arange(self.n, dtype=torch.float64) * start)
        back = gamma * torch.cat((start[None], best[:-1]))
        back[0] = self.bait + gamma * start
        ahead = torch.cat((gamma * best[1:], torch.ones(1, dtype=torch.float64)))
        return torch.stack((back, ahead), -1).to(torch.float32)

    def first(self, dice: Tensor) -> Tensor:
        return torch.zeros_like(self.world)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, right = world.squeeze(-1), action == 1
        exit_ = right & (place == self.n - 1)
        bait = ~right & (place == 0)
        moved = (place + torch.where(right, 1.0, -1.0).to(place.dtype)).clamp(0, self.n - 1)
        return moved.unsqueeze(-1), exit_.to(world.dtype) + self.bait * bait.to(world.dtype), exit_

    def observe(self, world: Tensor) -> Tensor:
        return one_hot(world.squeeze(-1).to(torch.int64), self.n).to(torch.float32)


class DeepSea(Toy):
    """A square of n x n places, seen as one-hot vectors: each step leads one row down, to the left or to the right, n
    times. Going right costs 0.01 / n; at the bottom of the right side it finds 1, and only n times right leads there.
    Which action goes right differs from place to place (Osband et al. 2020).

    Acting at random finds it once in 2^n episodes. The best return is 0.99.
    """

    size = 2  # row, column

    def __init__(self, slots: int, size: int = 10, device: str = "cpu") -> None:
        self.n = size
        self.obs_space, self.action_space = Box((size * size,), low=(0.0,), high=(1.0,)), Discrete(2)
        self.best_return = 0.99
        mixed = torch.randint(2, (size, size), generator=torch.Generator().manual_seed(0), device="cpu")
        self.right = mixed.to(device)  # the action that goes right, by place
        super().__init__(slots, "deepsea", device)

    def first(self, dice: Tensor) -> Tensor:
        return torch.zeros_like(self.world)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row, column = world.unbind(-1)
        right = action == self.right[row.long().clamp(max=self.n - 1), column.long()]
        found = right & (row == self.n - 1) & (column == self.n - 1)
        reward = found.to(world.dtype) - 0.01 / self.n * right.to(world.dtype)
        moved = (column + torch.where(right, 1.0, -1.0).to(column.dtype)).clamp(0, self.n - 1)
        return torch.stack((row + 1, moved), -1), reward, row == self.n - 1

    def observe(self, world: Tensor) -> Tensor:
        row, column = world.to(torch.int64).unbind(-1)
        place = (row * self.n + column).clamp(max=self.n * self.n - 1)  # the bottom has been left: nothing is shown
        return one_hot(place, self.n * self.n).to(torch.float32) * (row < self.n).unsqueeze(-1)


class Bandit(Toy):
    """One choice among n arms, then the end: arm a pays a / (n - 1) plus noise in [-0.5, 0.5).

    Q*(a) = a / (n - 1), whatever gamma; the best return is 1.
    """

    size, draws = 1, 1

    def __init__(self, slots: int, size: int = 4, device: str = "cpu") -> None:
        self.n = max(size, 2)
        self.obs_space, self.action_space = ONE, Discrete(self.n)
        self.best_return = 1.0
        super().__init__(slots, "bandit", device)

    def best_values(self, gamma: float) -> Tensor:
        return torch.linspace(0.0, 1.0, self.n)[None]

    def first(self, dice: Tensor) -> Tensor:
        return torch.ones_like(self.world)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reward = action.to(world.dtype) / (self.n - 1) + dice.squeeze(-1) - 0.5
        return world, reward, torch.ones_like(self.ended)

    def observe(self, world: Tensor) -> Tensor:
        return world.to(torch.float32)


class Memory(Toy):
    """A cue, one of n, is shown at the first step; `delay` blank steps later a bell asks for it, worth 1 and the end.

    With memory the best return is 1, without it 1 / n. The observation is the cue as one-hot, then the bell. With
    `continuous` the cue is a number in [-1, 1) and the answer worth -(a - cue)^2: 0, or -1 / 3 without memory.
    """

    size, starts = 2, 1  # the cue, the step

    def __init__(
        self, slots: int, size: int = 2, delay: int = 4, continuous: bool = False, device: str = "cpu"
    ) -> None:
        self.n, self.delay, self.continuous = size, delay, continuous
        self.obs_space = (
            Box((2,), low=(-1.0, 0.0), high=(1.0, 1.0)) if continuous else Box((size + 1,), low=(0.0,), high=(1.0,))
        )
        self.action_space = UNIT if continuous else Discrete(size)
        self.best_return = 0.0 if continuous else 1.0
        super().__init__(slots, "memory", device)

    def first(self, dice: Tensor) -> Tensor:
        cue = dice * 2.0 - 1.0 if self.continuous else _number(dice, self.n)
        return torch.cat((cue, torch.zeros_like(dice)), -1)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cue, step = world.unbind(-1)
        asked = step == self.delay + 1
        if self.continuous:
            reward = -(action.squeeze(-1).clamp(-1.0, 1.0) - cue).square() * asked.to(world.dtype)
        else:
            reward = (asked & (action == cue)).to(world.dtype)
        return torch.stack((cue, step + 1), -1), reward, asked

    def observe(self, world: Tensor) -> Tensor:
        cue, step = world.unbind(-1)
        said = cue.unsqueeze(-1) if self.continuous else one_hot(cue.to(torch.int64), self.n)
        shown = said * (step == 0).unsqueeze(-1)
        bell = (step == self.delay + 1).unsqueeze(-1)
        return torch.cat((shown, bell), -1).to(torch.float32)


class Masked(Toy):
    """Each step another half of n actions is legal, action 0 always: a legal a pays a / (n - 1), an illegal one -1.

    Only the mask tells them apart: blind to it the top action is worth 0. The best takes the highest legal action,
    worth m = sum over a >= 1 of a / (n - 1) * 2^(a - n) per step; V* = m / (1 - gamma). Truncated after `limit` steps.
    """

    starts, draws = 0, 0  # set by size

    def __init__(self, slots: int, size: int = 4, limit: int = 8, device: str = "cpu") -> None:
        self.n, self.limit = max(size, 2), limit
        self.size = self.starts = self.draws = self.n
        self.obs_space = Composite({"obs": ONE, "action_mask": mask_space(self.n)})
        self.action_space = Discrete(self.n)
        self.best_step = sum(a / (self.n - 1) * 2.0 ** (a - self.n) for a in range(1, self.n))
        self.best_return = limit * self.best_step
        super().__init__(slots, "masked", device)

    def first(self, dice: Tensor) -> Tensor:
        legal = (dice < 0.5).to(dice.dtype)
        return torch.cat((torch.ones_like(legal[:, :1]), legal[:, 1:]), -1)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        legal = world.gather(-1, action.unsqueeze(-1)).squeeze(-1) > 0.5
        reward = torch.where(legal, action.to(world.dtype) / (self.n - 1), -1.0)
        return self.first(dice), reward, torch.zeros_like(self.ended)

    def observe(self, world: Tensor) -> Obs:
        return {"obs": torch.ones_like(world[:, :1], dtype=torch.float32), "action_mask": world > 0.5}


class TruncationProbe(Toy):
    """1 per step whatever is done, cut by the clock after `limit` steps: V* = 1 / (1 - gamma).

    An algorithm that takes the cut for an end learns 1 / (1 - gamma (1 - 1 / limit)): 7.5, not 100, at gamma 0.99.
    """

    size = 1

    def __init__(self, slots: int, limit: int = 8, continuous: bool = False, device: str = "cpu") -> None:
        self.limit = limit
        self.obs_space, self.action_space = ONE, UNIT if continuous else Discrete(2)
        self.best_return = float(limit)
        super().__init__(slots, "truncation", device)

    def best_values(self, gamma: float) -> Tensor:
        return torch.full((1, 2), 1 / (1 - gamma))

    def first(self, dice: Tensor) -> Tensor:
        return torch.ones_like(self.world)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return world, world.squeeze(-1), torch.zeros_like(self.ended)

    def observe(self, world: Tensor) -> Tensor:
        return world.to(torch.float32)


class Goal(Toy):
    """n bits, of which each action flips one, until they are as the goal says (Andrychowicz et al. 2017): -1 per step,
    0 for the one that gets there, which is the end. Every goal is another; acting at random finds hardly any of them.

    With `continuous` a point in n dimensions moves by at most 0.1 along each; 0 within 0.05 of the goal, and no end.
    Both are truncated after `limit` steps. The best return is minus the steps before the last that is needed, on
    average over goals.
    """

    def __init__(
        self, slots: int, size: int = 12, limit: int = 0, continuous: bool = False, device: str = "cpu"
    ) -> None:
        self.n, self.limit, self.continuous = size, limit or (30 if continuous else size), continuous
        self.size, self.starts = 2 * size, (size if continuous else 2 * size)
        edge = Box((size,), low=(-1.0 if continuous else 0.0,), high=(1.0,))
        self.obs_space = Composite(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), edge))
        self.action_space = Box((size,), low=(-1.0,), high=(1.0,)) if continuous else Discrete(size)
        self.best_return = self.shortest() if continuous else 1.0 - size / 2 - 2.0 ** (1 - size)
        super().__init__(slots, "goal", device)

    def shortest(self) -> float:
        """The best return among goals that are drawn here, to about 0.01."""
        goals = torch.rand(100_000, self.n, generator=torch.Generator().manual_seed(0), device="cpu")
        steps = torch.arange(1, 11)[:, None, None] * 0.1
        return -float(((goals - steps).clamp(min=0.0).norm(dim=-1) > 0.05).sum(0).float().mean())

    def first(self, dice: Tensor) -> Tensor:
        if self.continuous:
            return torch.cat((torch.zeros_like(dice), dice * 2.0 - 1.0), -1)
        return _number(dice, 2)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, goal = world.chunk(2, -1)
        if self.continuous:
            place = (place + 0.1 * action.clamp(-1.0, 1.0)).clamp(-1.0, 1.0)
        else:
            place = (place - one_hot(action, self.n)).abs()
        there = (place - goal).norm(dim=-1) <= 0.05
        return torch.cat((place, goal), -1), there.to(world.dtype) - 1.0, there & (not self.continuous)

    def observe(self, world: Tensor) -> Obs:
        place, goal = world.to(torch.float32).chunk(2, -1)
        return {"observation": place, "achieved_goal": place.clone(), "desired_goal": goal}


class Hybrid(Toy):
    """A symbol, one of n, and a number x in [-1, 1) are shown: 1 for naming the symbol, minus the squared distance of
    the number that goes with it from x; new ones each step, truncated after `limit` steps. The best return is `limit`.
    """

    size, starts, draws = 2, 2, 2

    def __init__(self, slots: int, size: int = 4, limit: int = 8, device: str = "cpu") -> None:
        self.n, self.limit, self.best_return = size, limit, float(limit)
        self.obs_space = Composite({"symbol": Discrete(size), "number": UNIT})
        self.action_space = Composite({"name": Discrete(size), "number": UNIT})
        super().__init__(slots, "hybrid", device)

    def first(self, dice: Tensor) -> Tensor:
        symbol, number = dice.chunk(2, -1)
        return torch.cat((_number(symbol, self.n), number * 2.0 - 1.0), -1)

    def advance(self, world: Tensor, action: Action, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        symbol, number = world.unbind(-1)
        off = action["number"].squeeze(-1).clamp(-1.0, 1.0) - number
        reward = (action["name"] == symbol).to(world.dtype) - off.square()
        return self.first(dice), reward, torch.zeros_like(self.ended)

    def observe(self, world: Tensor) -> Obs:
        return {"symbol": world[:, 0].to(torch.int64), "number": world[:, 1:].to(torch.float32)}


TOYS: dict[str, type[Toy]] = {
    "identity": Identity,
    "chain": Chain,
    "deepsea": DeepSea,
    "bandit": Bandit,
    "memory": Memory,
    "masked": Masked,
    "truncation": TruncationProbe,
    "goal": Goal,
    "hybrid": Hybrid,
}
