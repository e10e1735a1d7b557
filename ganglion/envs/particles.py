"""Particle worlds (Lowe et al. 2017) as tensors: simple_spread and simple_speaker_listener, as the package mpe2 plays
them. Tests hold them against it step by step."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from ganglion.config import EnvConfig, register
from ganglion.core import CENTRAL, Box, Composite, Discrete, MultiBinary, Obs, Space
from ganglion.envs.torch_env import TorchGame
from ganglion.errors import UserError

MOVES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
DT, DAMPING, FORCE, MARGIN, ACCEL = 0.1, 0.25, 100.0, 0.001, 5.0
LANDMARKS = 3


@register("env", "particles")
class ParticlesConfig(EnvConfig):
    """Particle worlds, as tensors: spread is simple_spread_v3, speaker_listener simple_speaker_listener_v4."""

    id: Literal["spread", "speaker_listener"]
    rounds: int = Field(25, ge=1, le=1_000_000)  # until an episode is truncated
    agents: int | None = Field(None, ge=2, le=16)  # of spread, by default 3; as many landmarks
    mute: bool = False  # of speaker_listener: words are not heard, so only a channel of their own helps
    local_ratio: float | None = Field(None, ge=0, le=1)  # of spread, by default 0.5: how much own collisions count

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> TorchGame:
        count = slots or self.slots
        if self.id == "spread":
            if self.mute:
                raise UserError("env.mute: spread has no such setting; speaker_listener has.")
            ratio = 0.5 if self.local_ratio is None else self.local_ratio
            return SimpleSpread(self.agents or 3, ratio, self.rounds, count, device)
        for name in ("agents", "local_ratio"):
            if getattr(self, name) is not None:
                raise UserError(f"env.{name}: {self.id} has no such setting; spread has.")
        return SpeakerListener(self.rounds, self.mute, count, device)


def pushed(place: Tensor, speed: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
    """Places and speeds [C, N, 2] one moment later."""
    return place + speed * DT, speed * (1 - DAMPING) + force * DT


def steps(action: Tensor) -> Tensor:
    """The force of a choice among five, [...] -> [..., 2]."""
    return ACCEL * torch.tensor(MOVES, dtype=torch.float64, device=action.device)[action]


class SimpleSpread(TorchGame):
    """Agents cover as many landmarks and keep off each other. The world: places and speeds of agents, landmarks."""

    radius = 0.15

    def __init__(self, agents: int, ratio: float, rounds: int, slots: int, device: str) -> None:
        self.ratio, self.limit, self.crowd = ratio, rounds, agents
        self.agents = tuple(f"agent_{i}" for i in range(agents))
        self.size, self.starts = 6 * agents, 4 * agents
        obs = Box((4 + 2 * agents + 4 * (agents - 1),))
        self.obs_space, self.action_space = Composite({"obs": obs, CENTRAL: Box((self.size,))}), Discrete(len(MOVES))
        super().__init__(slots, "spread", device)

    def parts(self, world: Tensor) -> tuple[Tensor, ...]:
        """Places of agents, their speeds, places of landmarks, [C, N, 2] each."""
        return world.unflatten(1, (3, self.crowd, 2)).unbind(1)

    def begin(self, dice: Tensor) -> Tensor:
        agents, landmarks = (2 * dice - 1).chunk(2, 1)
        return torch.cat((agents, torch.zeros_like(agents), landmarks), 1)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, speed, landmarks = self.parts(world)
        between = place[:, :, None] - place[:, None]  # [C, N, N, 2]
        gap = between.norm(dim=-1)
        depth = softplus((2 * self.radius - gap) / MARGIN, threshold=500.0) * MARGIN
        each = FORCE * between * (depth / gap.clamp(min=1e-12))[..., None]
        place, speed = pushed(place, speed, steps(action.T) + each.sum(2))
        nearest = (landmarks[:, :, None] - place[:, None]).norm(dim=-1).amin(-1).sum(-1)  # [C]
        touching = ((place[:, :, None] - place[:, None]).norm(dim=-1) < 2 * self.radius).sum(-1) - 1  # [C, N]
        reward = -(1 - self.ratio) * nearest - self.ratio * touching.T
        after = torch.stack((place, speed, landmarks), 1).flatten(1)
        return after, reward, torch.zeros(len(world), dtype=torch.bool, device=world.device)

    def show(self, world: Tensor) -> Obs:
        place, speed, landmarks = self.parts(world)
        seen = []
        for i in range(self.crowd):
            own = place[:, i : i + 1]
            others = torch.cat((place[:, :i], place[:, i + 1 :]), 1) - own
            parts = speed[:, i], place[:, i], (landmarks - own).flatten(1), others.flatten(1), 0 * others.flatten(1)
            seen.append(torch.cat(parts, 1))  # the last part: what others say, which is nothing
        return {"obs": torch.stack(seen).float(), CENTRAL: world.float().expand(self.crowd, -1, -1)}


class SpeakerListener(TorchGame):
    """One knows where the other should go, and can only say one of three words. The world: place and speed of the
    listener, landmarks, which of them is the goal, the last word (3: none)."""

    agents = ("speaker", "listener")
    size, starts = 12, 9
    obs_space: Space = Composite({"obs": Box((11,)), "action_mask": MultiBinary(5), CENTRAL: Box((16,))})
    action_space: Space = Discrete(5)

    def __init__(self, rounds: int, mute: bool, slots: int, device: str) -> None:
        self.limit, self.heard = rounds, 0.0 if mute else 1.0
        super().__init__(slots, "speaker_listener", device)

    def begin(self, dice: Tensor) -> Tensor:
        place, landmarks, goal = 2 * dice[:, :2] - 1, 2 * dice[:, 2:8] - 1, (dice[:, 8:] * LANDMARKS).floor()
        return torch.cat((place, torch.zeros_like(place), landmarks, goal, torch.full_like(goal, 3.0)), 1)

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        word, force = action[0].clamp(max=LANDMARKS - 1), steps(action[1])
        place, speed = pushed(world[:, :2], world[:, 2:4], force)
        goal = world[:, 10].long()
        landmark = world[:, 4:10].unflatten(1, (LANDMARKS, 2))[torch.arange(len(world), device=world.device), goal]
        reward = -(place - landmark).square().sum(-1)
        after = torch.cat((place, speed, world[:, 4:11], word[:, None].double()), 1)
        return after, reward.expand(2, -1), torch.zeros_like(reward, dtype=torch.bool)

    def show(self, world: Tensor) -> Obs:
        place, speed, landmarks = world[:, :2], world[:, 2:4], world[:, 4:10].unflatten(1, (LANDMARKS, 2))
        goal, word = one_hot(world[:, 10].long(), 3), one_hot(world[:, 11].long(), 4)[:, :3]
        colour = 0.15 + 0.5 * goal.double()
        speaker = torch.cat((colour, torch.zeros(len(world), 8, device=world.device)), 1)
        listener = torch.cat((speed, (landmarks - place[:, None]).flatten(1), self.heard * word), 1)
        central = torch.cat((world[:, :10], goal, word), 1).float()
        legal = torch.ones(2, len(world), 5, dtype=torch.bool, device=world.device)
        legal[0, :, LANDMARKS:] = False
        seen = torch.stack((speaker, listener)).float()
        return {"obs": seen, "action_mask": legal, CENTRAL: central.expand(2, -1, -1)}
