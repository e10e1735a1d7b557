"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018): twin critics as one batched ensemble, a
smoothed target, an actor that learns more rarely than its critics.

All tensors are [T, B, ...]. `learn` moves the critics; every `delay` updates `learn_late` moves the actor and the
targets, from the same minibatch: two functions of fixed shape rather than one with a branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig,
    Amount,
    BufferConfig,
    Count,
    LimiterConfig,
    NonNegative,
    Positive,
    ProcessorConfig,
    Rate,
    constant,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Box, Draw, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress,
    Recipe, Sample, Space, Stateful, Transition, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "td3")
class TD3Config(AlgoConfig):
    """Twin delayed deep deterministic policy gradient."""

    lr: Rate = 1e-3  # of the actor
    lr_critic: Rate = 1e-3
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the targets follow
    delay: Count = Field(2, ge=1)  # updates of the critics per update of the actor and the targets
    noise: Amount = constant(0.1)  # deviation of training actions, in units of half the range
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps its noise, on average
    smoothing: NonNegative = 0.2  # deviation of the target's actions, in the same units
    smoothing_limit: NonNegative = 0.5  # no further than this
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=25_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    @classmethod
    def accepts(cls, space: Space) -> bool:
        return type(space) is Box and all(abs(x) < inf for x in (*space.low, *space.high))

    def build(self, spec: EnvSpec) -> TD3:
        return TD3(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class TD3Actor(nn.Encoded):
    """obs -> one action, within its bounds [T, B, *shape]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(net, spec.obs)
        self.space = space
        body = net.body(self.encoder.out)
        self.net = nn.Net(body, nn.LinearHead(body, space.size))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encoder(obs, past)
        raw = torch.tanh(self.net(features))
        low, high = ops.bounds(self.space, raw)
        return torch.lerp(low, high, 0.5 * (raw.reshape(*raw.shape[:2], *self.space.shape) + 1)), memory


class TD3Critics(nn.Encoded):
    """obs and action -> two values [2, T, B]; `first` is the one the actor climbs [T, B]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(net, spec.obs)
        self.nets = nn.Ensemble(net.body(self.encoder.out + space.size, count=2))

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encoder(obs, past)
        assert action is not None
        return self.nets(features, action), memory

    def first(self, obs: Obs, past: Past, action: Action) -> Tensor:
        return self.nets.first(self.encoder(obs, past)[0], action)


class TD3Model(Model):
    """The actor and the critics."""

    def __init__(self, cfg: TD3Config, spec: EnvSpec, space: Box) -> None:
        super().__init__()
        self.actor = TD3Actor(cfg.net, spec, space)
        self.critics = TD3Critics(cfg.net, spec, space)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.actor.action(obs, past)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        return self.critics.value(obs, past, action)


class Sure(NamedTuple):
    """A distribution with all its weight on one action."""

    action: Tensor

    def mode(self) -> Tensor:
        return self.action


class TD3(Algorithm[Sample[Transition], Sample[Transition]]):
    """A deterministic actor that climbs the first of two critics; both learn from the lower of their targets."""

    model: TD3Model

    def __init__(self, cfg: TD3Config, spec: EnvSpec) -> None:
        space = spec.action
        if not isinstance(space, Box) or not cfg.accepts(space):
            raise cfg.refused(spec, "a Box action space with finite bounds")
        if cfg.net.recurrent:
            raise UserError("algo.net.memory: td3 has no recurrent form; accepted: none. Recurrent: dqn, impala, ppo.")
        self.cfg, self.space, self.late_every = cfg, space, cfg.delay
        self.model = TD3Model(cfg, spec, space)
        self.target = nn.Lagged(self.model)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.Adam(self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.Adam(self.model.critics, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins), "noise": self.cfg.noise(at.fraction)}

    def draws(self) -> Draws:
        n = self.space.size
        return Draws(explore=Draw(uniform=n, normal=n), learn=Draw(normal=n), hold=self.cfg.hold)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        action, memory = self.model.action(obs, past)
        return Prediction(Sure(action), ops.empty(action), memory)  # a state alone has no value here

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen = prediction.dist.mode()
        low, high = ops.bounds(self.space, chosen)
        anything = low + (high - low) * noise.uniform.reshape(chosen.shape)
        shaken = ops.gaussian(chosen, noise.normal, knobs["noise"], low, high)
        return Acted(torch.where(knobs["random"] > 0, anything, shaken), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, cfg = mini.data, mini.weight, self.cfg
        with torch.no_grad():
            action = self.target.action(t.next_obs, t.next_past)[0]
            low, high = ops.bounds(self.space, action)
            action = ops.gaussian(action, noise.normal, cfg.smoothing, low, high, cfg.smoothing_limit)
            after = self.target.value(t.next_obs, t.next_past, action)[0].amin(0)
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = self.model.value(t.obs, t.past, t.action)[0]
        error = q - goal  # [2, T, B]
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic)
        metrics = {"critic": critic, "q": ops.weighted_mean(q.mean(0), w), "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def learn_late(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        t = mini.data
        action = self.model.action(t.obs, t.past)[0]
        actor = -ops.weighted_mean(self.model.critics.first(t.obs, t.past, action), mini.weight)
        self.actor_optim.step(actor)
        self.target.follow(self.model, self.cfg.tau)
        return {"actor": actor.detach()}

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}
