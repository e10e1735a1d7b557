"""Advantage-weighted actor-critic (Nair et al. 2020): critics of the current policy, which copies the actions of the
data by their advantage. Begun on a dataset, it goes on in an environment without a change.

All tensors are [T, B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import AlgoConfig, BufferConfig, LimiterConfig, Positive, ProcessorConfig, Rate, register
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Sample, Stateful, Transition,
    Update,
)  # fmt: skip
from ganglion.nn.actor_critics import ActorCritics, Critics, MeanActor, bounded, cycled


@register("algo", "awac")
class AWACConfig(AlgoConfig):
    """Advantage-weighted actor-critic."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor
    optim: nn.OptimConfig = nn.OptimConfig()
    lr_critic: Rate = 3e-4
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    temperature: Positive = 1.0  # lambda: an advantage of this size makes an action e times as likely to be copied
    max_weight: Positive = 100.0  # of an action in copying
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> AWAC:
        return AWAC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class AWAC(Algorithm[Sample[Transition], Sample[Transition]]):
    """Twin critics of the policy, and a policy that stays with the data's better actions."""

    model: ActorCritics[Critics]

    def __init__(self, cfg: AWACConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec))
        self.model = ActorCritics(
            MeanActor(cfg.net, spec, space, burn_in=cfg.replay.warms),
            Critics(cfg.net, spec, space, burn_in=cfg.replay.warms),
        )
        self.target = nn.Lagged(self.model.critics)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        n = self.space.size
        return Draws(explore=Draw(normal=n), learn=Draw(normal=2 * n))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        nothing = ops.empty(raw)  # critics need an action: a state alone has no value here
        return Prediction(ops.dist(raw, self.space), nothing, memory)

    def policy(self, obs: Obs, past: Past) -> ops.Normal:
        """The same in `learn`, where nobody asks for the memory after it."""
        dist: ops.Normal = ops.dist(self.model.action(obs, past)[0], self.space)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.sample(noise)
        return Acted(action, {"logp": prediction.dist.log_prob(action)}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        later, now = noise.normal.chunk(2, -1)
        dist = self.policy(t.obs, t.past)
        with torch.no_grad():
            ahead = self.policy(t.next_obs, t.next_past)
            action = self.inside(ahead.sample(Noise(noise.uniform, cycled(later, ahead.mean.shape[0]))))
            after = self.target.value(t.next_obs, t.next_past, action)[0].amin(0)
            goal = t.reward + t.discount * ops.at(after, t.ahead)
            own = self.model.value(t.obs, t.past, self.inside(dist.sample(Noise(noise.uniform, now))))[0].amin(0)
        q = self.model.value(t.obs, t.past, t.action)[0]
        error = q - goal  # [2, T, B]
        critic = ops.weighted_mean(error.square().sum(0), w)
        advantage = q.detach().amin(0) - own
        copied = (advantage / self.cfg.temperature).exp().clamp(max=self.cfg.max_weight)
        actor = -ops.weighted_mean(copied * dist.log_prob(t.action), w)

        norm = self.critic_optim.step(critic)
        self.actor_optim.step(actor)
        self.target.follow(self.model.critics, self.cfg.tau)
        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(q.mean(0), w), "grad_norm": norm}
        metrics |= {"advantage": ops.weighted_mean(advantage, w), "weight": ops.weighted_mean(copied, w)}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def inside(self, action: Tensor) -> Tensor:
        """Within the bounds: the environment would clip it, and critics have seen nothing else."""
        low, high = ops.bounds(self.space, action)
        return torch.minimum(torch.maximum(action, low), high)

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}
