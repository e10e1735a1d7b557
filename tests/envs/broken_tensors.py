"""The zoo's environments of the contract, made of tensors: each with one fault, and the verdict that should name it."""

from __future__ import annotations

from typing import Any

import torch

from ganglion.core import Box, Discrete, Step
from ganglion.envs.torch_env import TorchEnv


class Line(TorchEnv):
    """The same walk, made of tensors; nothing is wrong with it."""

    size, starts, draws, limit = 1, 1, 1, 40

    def __init__(self, slots: int = 3) -> None:
        self.obs_space, self.action_space = Box((1,), low=(-5.0,), high=(5.0,)), Discrete(2)
        super().__init__(slots, "line")

    def first(self, dice: torch.Tensor) -> torch.Tensor:
        return dice - 0.5

    def advance(self, world: torch.Tensor, action: torch.Tensor, dice: torch.Tensor) -> Any:
        moved = world + (action * 2 - 1).unsqueeze(-1) * dice
        return moved, moved.squeeze(-1), moved.squeeze(-1).abs() > 3

    def observe(self, world: torch.Tensor) -> torch.Tensor:
        return world.to(torch.float32)


class LineDtype(Line):
    def observe(self, world: torch.Tensor) -> torch.Tensor:
        return world


class LineShape(Line):
    def observe(self, world: torch.Tensor) -> torch.Tensor:
        return world.to(torch.float32).squeeze(-1)


class LineAlias(Line):
    def __init__(self, slots: int = 3) -> None:
        self.kept = torch.zeros(slots, 1)
        super().__init__(slots)

    def observe(self, world: torch.Tensor) -> torch.Tensor:
        return self.kept.copy_(world)


class LineUnseeded(Line):
    def observe(self, world: torch.Tensor) -> torch.Tensor:
        return world.to(torch.float32) + 0.01 * torch.rand(1)


class LineForgets(Line):
    """Its tensor is no part of its state."""

    tired = 0.0

    def reset(self, seed: int) -> Step:
        self.tired = 0.0
        return super().reset(seed)

    def observe(self, world: torch.Tensor) -> torch.Tensor:
        self.tired = min(self.tired + 1e-3, 1.0)
        return world.to(torch.float32) + self.tired


class LineNeverDead(Line):
    """Claims that rows after an ending can be learned from."""

    def step(self, action: Any) -> Step:
        step = super().step(action)
        return step._replace(valid=torch.ones_like(step.valid))


class LineActsWhenDead(Line):
    """Lets the action after an ending push the next start."""

    def step(self, action: Any) -> Step:
        ended, step = self.ended.clone(), super().step(action)
        self.world += (ended * action).unsqueeze(-1) * 0.1
        return step._replace(obs=self.observe(self.world))


class LineUncounted(Line):
    def episodes(self) -> Any:
        return super().episodes()[::2]


CONTRACT: list[tuple[Any, str, str, str]] = [
    (LineDtype, "fail", "rows", "should be float32, got float64"),
    (LineShape, "fail", "rows", "shape [3, 1]"),
    (LineAlias, "fail", "aliasing", "change at the next call"),
    (LineUnseeded, "fail", "repeats", "another copy"),
    (LineForgets, "fail", "resume", "state is promised"),
    (LineNeverDead, "fail", "autoreset", "valid should be false"),
    (LineActsWhenDead, "fail", "autoreset", "action after an ending"),
    (LineUncounted, "fail", "episodes", "episodes() gave"),
]
