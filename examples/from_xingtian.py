"""XingTian's four open modules in Ganglion: a new Algorithm, Model, Agent and Environment, registered by name and
composed in YAML.

    cd examples && ganglion train from_xingtian.yaml --import from_xingtian

XingTian's Agent is two hooks: `infer_action` is the Algorithm's explore and exploit here, `handle_env_feedback` a
processor, the one place where steps become rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

import ganglion.core as g
from ganglion import buffers, nn, ops
from ganglion.config import AlgoConfig, EnvConfig, ProcessorConfig, register
from ganglion.envs import GymEnv

# ------------------------------------------------------------ Environment: init_env, reset, step


class Corridor(gymnasium.Env[Any, Any]):
    """Walk right to the door. `step` says terminated and truncated apart, where XingTian has one flag."""

    def __init__(self, places: int) -> None:
        self.places, self.at = places, 0
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (places,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self.shown(), {}

    def step(self, action: int) -> Any:
        self.at = max(self.at + (1 if action else -1), 0)
        arrived = self.at == self.places
        return self.shown(), float(arrived), arrived, False, {"place": self.at}

    def shown(self) -> Any:
        return np.eye(self.places, dtype=np.float32)[min(self.at, self.places - 1)]


@register("env", "corridor")  # @Registers.env
class CorridorConfig(EnvConfig):
    """env_para: what the environment is made from."""

    places: int = Field(6, ge=2)

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> g.Env:
        return GymEnv(lambda slot: Corridor(self.places), slots or self.slots, "corridor", device, time_limit=40)


# ------------------------------------------------------------ Model


@register("net", "residual")  # @Registers.model
class ResidualConfig(nn.MLPConfig):
    """A network for any algorithm with a `net` setting; inputs, memory and normalisation come with MLPConfig."""

    def body(self, inputs: int, count: int = 1) -> nn.MLP:
        return Residual(count, inputs, self.hidden, self.activation, self.init)


class Residual(nn.MLP):
    """Perceptrons whose equal layers add to what they are given: [T, B, inputs] -> [count, T, B, out]."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:2]
        y = x.reshape(1, -1, x.shape[-1]).expand(self.count, -1, -1)
        for layer in self.layers:
            z = self.activation(layer(y))
            y = y + z if z.shape == y.shape else z
        return y.unflatten(1, rows)


# ------------------------------------------------------------ Agent: handle_env_feedback


@register("processor", "small-steps")  # @Registers.agent
class SmallStepsConfig(buffers.RowsConfig):
    """Every step costs a little, so that short ways are better than long ones."""

    cost: float = Field(0.01, ge=0)

    def build(self, spec: g.EnvSpec, device: torch.device) -> g.Processor:
        return SmallSteps(self)


class SmallSteps(buffers.Rows):
    """The reward that is learned from; finished episodes keep the environment's own score."""

    cfg: SmallStepsConfig

    def __call__(self, before: g.Step, past: g.Past, acted: g.Acted, after: g.Step) -> g.Row:
        rows = super().__call__(before, past, acted, after)
        return rows._replace(reward=rows.reward - self.cfg.cost)


# ------------------------------------------------------------ Algorithm: prepare_data and train


@register("algo", "returns")  # @Registers.algorithm
class ReturnsConfig(AlgoConfig):
    """Policy gradient from whole returns (Williams 1992)."""

    lr: float = Field(1e-2, gt=0)
    gamma: float = Field(0.95, ge=0, le=1)
    horizon: int = Field(40, ge=1)
    net: nn.MLPConfig = nn.MLPConfig(hidden=(32, 32), activation="tanh")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: g.EnvSpec) -> Returns:
        return Returns(self, spec)

    def recipe(self, spec: g.EnvSpec) -> g.Recipe:
        """train_ready: here, whenever a rollout is complete."""
        rollouts = buffers.RolloutConfig().rollouts(self.gamma, self.horizon)
        return g.Recipe(self.processor, rollouts, buffers.ReadyConfig())


class Actor(nn.Encoded):
    """obs -> the raw parameters of a distribution over any action space."""

    def __init__(self, cfg: ReturnsConfig, spec: g.EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs)
        self.body = cfg.net.body(self.encoder.out)
        self.head = nn.PolicyHead(self.body, spec.action, cfg.net.init)

    def action(self, obs: g.Obs, past: g.Past) -> tuple[Tensor, g.Memory]:
        features, memory = self.encoder(obs, past)
        return self.head(self.body(features)[0]), memory


class Prepared(NamedTuple):
    """What `learn` needs."""

    rollout: g.Rollout
    advantage: Tensor


class Returns(g.Algorithm[g.Rollout, Prepared]):
    """Makes what turned out better than usual more likely."""

    def __init__(self, cfg: ReturnsConfig, spec: g.EnvSpec) -> None:
        self.cfg, self.spec = cfg, spec
        self.model = Actor(cfg, spec)
        self.optim = nn.Adam(self.model, lr=cfg.lr)

    def prepare(self, item: g.Rollout) -> Prepared:
        """prepare_data: once per item. A return is the discounted sum up to the episode's end."""
        total = ops.discounted_sum(item.reward, item.discount * ~item.cut)
        return Prepared(item, ops.normalise(total, item.valid))

    def learn(self, mini: Prepared, knobs: g.Knobs, noise: g.Noise) -> g.Update:
        """train: one gradient step."""
        r = mini.rollout
        dist = self.predict(r.obs, r.past, noise).dist
        loss = ops.masked_mean(ops.policy_gradient(dist.log_prob(r.action), mini.advantage), r.valid)
        self.optim.step(loss)
        return g.Update({"loss": loss.detach()}, ops.empty(loss))

    # infer_action(state, use_explore=True) is `explore`, with use_explore=False `exploit`; their defaults sample the
    # distribution and take its mode

    def predict(self, obs: g.Obs, past: g.Past, noise: g.Noise) -> g.Prediction:
        raw, memory = self.model.action(obs, past)
        return g.Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), torch.zeros_like(raw[..., 0]), memory)

    def draws(self) -> g.Draws:
        return g.Draws(explore=ops.dist_draws(self.spec.action))

    def parts(self) -> Mapping[str, g.Stateful]:
        return {"model": self.model, "optim": self.optim}  # save and restore: all that changes
