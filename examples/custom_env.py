"""Environments of your own, in three ways.

    python examples/custom_env.py
    cd examples && ganglion train --import custom_env --algo ppo --env TugOfWar-v0 train.budget="5k steps"
    cd examples && ganglion train --import custom_env --algo ppo --env catch train.budget="20k steps"

1. A gymnasium environment, registered with gymnasium: nothing of Ganglion is needed.
2. A kind of your own (`env.kind: catch`), with settings of its own, made of tensors: all slots in one batch, on a GPU
   if the run is, resumed by its state.
3. A wrapper around any environment, in Python.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

import ganglion
import ganglion.core as g
from ganglion.config import register
from ganglion.envs import TorchEnv, Wrapper
from ganglion.envs.configs import ShapedConfig

# ------------------------------------------------------------ 1. gymnasium


class TugOfWar(gymnasium.Env[Any, Any]):
    """Pull (1) or rest (0). Pulling costs strength, and the mask says whether any is left."""

    def __init__(self) -> None:
        box = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"rope": box, "action_mask": gymnasium.spaces.MultiBinary(2)})
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)  # all that is random comes from self.np_random: then an episode can be replayed
        self.rope, self.strength = 0, 3
        return self.shown(), {}

    def step(self, action: int) -> Any:
        self.strength += -1 if action else int(self.strength < 3)
        self.rope += (2 if action else 0) - int(self.np_random.integers(0, 2))
        won, lost = self.rope >= 5, self.rope <= -5
        # numbers in info are averaged over the episode and recorded as episode/strength
        return self.shown(), float(won) - float(lost), won or lost, False, {"strength": self.strength}

    def shown(self) -> dict[str, Any]:
        seen = np.array([self.rope / 7, self.strength / 3], np.float32)
        return {"rope": seen.clip(-1, 1), "action_mask": np.array([1, self.strength > 0], np.int8)}


gymnasium.register("TugOfWar-v0", TugOfWar, max_episode_steps=50)

# ------------------------------------------------------------ 2. a kind of its own, made of tensors


class Catch(TorchEnv):
    """A ball falls through a grid of `width`; be below it. The world is one tensor [B, 3]: ball, height, paddle."""

    size, starts = 3, 2  # numbers per slot; random numbers a start needs

    def __init__(self, slots: int, width: int, device: str = "cpu") -> None:
        self.width = width
        self.obs_space = g.Box((3,), low=(0.0,), high=(1.0,))
        self.action_space = g.Discrete(3)
        super().__init__(slots, "catch", device)

    def first(self, dice: Tensor) -> Tensor:
        ball, paddle = (dice * self.width).floor().unbind(-1)
        return torch.stack((ball, torch.full_like(ball, self.width), paddle), -1)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ball, height, paddle = world.unbind(-1)
        paddle = (paddle + action - 1).clamp(0, self.width - 1)
        landed = height <= 1
        reward = landed * torch.where(ball == paddle, 1.0, -1.0)
        return torch.stack((ball, height - 1, paddle), -1), reward, landed

    def observe(self, world: Tensor) -> Tensor:
        return (world / self.width).to(torch.float32)


@register("env", "catch")
class CatchConfig(ShapedConfig):
    """Catch a falling ball. From ShapedConfig come time_limit, keep, clip_obs, frame_stack."""

    width: int = Field(5, ge=2, le=100)

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> g.Env:
        return self.shape(Blind(Catch(slots or self.slots, self.width, device)))


# ------------------------------------------------------------ 3. a wrapper


class Blind(Wrapper):
    """Hides how high the ball is: its column is all one needs. (Rewards are better changed by a processor.)"""

    def reset(self, seed: int) -> g.Step:
        return self.hidden(self.env.reset(seed))

    def step(self, action: g.Action) -> g.Step:
        return self.hidden(self.env.step(action))

    def hidden(self, step: g.Step) -> g.Step:
        return step._replace(obs=step.obs * torch.tensor([1.0, 0.0, 1.0], device=step.obs.device))


def main() -> dict[str, float]:
    scores = {}
    for env, steps in (("{kind: gym, id: TugOfWar-v0}", 4_000), ("{kind: catch, width: 5}", 10_000)):
        settings = ["algo={kind: ppo, lr: 3e-3, horizon: 32}", f"env={env}", f"train.budget={steps} steps", "log=[]"]
        run = ganglion.train(None, [*settings, "save=never", "eval={every: 4k steps, episodes: 40}"]).run
        assert run is not None
        name = run.trainer.source.env.spec.name
        scores[name] = float(run.evaluated.best or 0.0)
        print(f"{name}: mean return {scores[name]:.2f} (between -1 and 1)")
    return scores


if __name__ == "__main__":
    main()
