"""EDAC (An et al. 2021): soft actor-critic with an ensemble of critics, whose least is what an action is worth where
the data is thin; they are kept diverse, so that few of them are enough. Without the diversity it is SAC-N.

All tensors are [T, B, ...]; actions that are only looked at lie beside each other, [T, A B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, Real, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Sample, Stateful, Transition,
    Update,
)  # fmt: skip
from ganglion.nn.actor_critics import Critics, GaussianActor, SoftActorCritics, bounded, cycled, of_critics

STEP = 0.2  # in units of half the range, over which slopes along the action are measured


@register("algo", "edac")
class EDACConfig(AlgoConfig):
    """Ensemble-diversified actor-critic."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor and the temperature
    optim: nn.OptimConfig = nn.OptimConfig()
    lr_critic: Rate = 3e-4
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    critics: int = Field(10, ge=2, le=1_000)
    diversity: NonNegative = 1.0  # weight of the likeness of their slopes; 0: SAC-N
    temperature: Positive | None = None  # None: learned
    target_entropy: Real | None = None  # None: minus the number of action components
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> EDAC:
        return EDAC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class EDAC(Algorithm[Sample[Transition], Sample[Transition]]):
    """Soft actor-critic that believes the least of many critics."""

    model: SoftActorCritics[Critics]

    def __init__(self, cfg: EDACConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec))
        self.goal_entropy = -float(space.size) if cfg.target_entropy is None else cfg.target_entropy
        warms = cfg.replay.warms
        actor = GaussianActor(cfg.net, spec, space, warms)
        critics = Critics(cfg.net, spec, space, cfg.critics, burn_in=warms)
        self.model = SoftActorCritics(actor, critics, cfg.temperature or 1.0)
        self.target = nn.Lagged(self.model.critics)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)
        self.warmth_optim = nn.Adam(self.model.warmth, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        n = self.space.size
        return Draws(explore=Draw(normal=n), learn=Draw(normal=2 * n))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        nothing = ops.empty(raw)  # critics need an action: a state alone has no value here
        return Prediction(ops.dist(raw, self.space, squash=True), nothing, memory)

    def policy(self, obs: Obs, past: Past) -> ops.TanhNormal:
        """The same in `learn`, where nobody asks for the memory after it."""
        dist: ops.TanhNormal = ops.dist(self.model.action(obs, past)[0], self.space, squash=True)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        later, now = noise.normal.chunk(2, -1)
        warmth = self.model.warmth["log"].exp()
        with torch.no_grad():
            dist = self.policy(t.next_obs, t.next_past)
            action, logp = dist.sample_and_log_prob(Noise(noise.uniform, cycled(later, dist.mean.shape[0])))
            after = self.target.value(t.next_obs, t.next_past, action)[0].amin(0) - warmth * logp
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = self.model.value(t.obs, t.past, t.action)[0]
        error = q - goal  # [critics, T, B]
        critic = ops.weighted_mean(error.square().sum(0), w)
        alike = ops.weighted_mean(self.likeness(t, q), w) if self.cfg.diversity else torch.zeros_like(critic)
        norm = self.critic_optim.step(critic + self.cfg.diversity * alike)

        action, logp = self.policy(t.obs, t.past).sample_and_log_prob(Noise(noise.uniform, now))
        actor = ops.weighted_mean(warmth.detach() * logp - self.model.value(t.obs, t.past, action)[0].amin(0), w)
        self.actor_optim.step(actor)
        entropy = -ops.weighted_mean(logp.detach(), w)
        if self.cfg.temperature is None:
            self.warmth_optim.step(self.model.warmth["log"] * (entropy - self.goal_entropy))
        self.target.follow(self.model.critics, self.cfg.tau)

        metrics = {"critic": critic, "likeness": alike, "actor": actor, "q": ops.weighted_mean(q.mean(0), w)}
        metrics |= {"entropy": entropy, "temperature": warmth, "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def likeness(self, t: Transition, q: Tensor) -> Tensor:
        """The sum over pairs of critics of how alike the directions are in which they would move an action, divided by
        their number less one: [T, B]."""
        count, n = self.cfg.critics, self.space.size
        low, high = ops.bounds(self.space, t.action)
        moves = torch.eye(n, device=q.device).view(n, 1, *self.space.shape) * (STEP * 0.5 * (high - low))  # [A, 1, ...]
        moved = (t.action.unsqueeze(1) + moves).flatten(1, 2)  # [T, A B, ...]
        features = self.model.critics.encode(t.obs, of_critics(t.past))[0].repeat(1, n, 1)
        slopes = (self.model.critics.nets(features, moved).unflatten(2, (n, -1)) - q.unsqueeze(2)) / STEP
        directions = slopes / slopes.square().sum(2, keepdim=True).add(1e-8).sqrt()  # [critics, T, A, B]
        return (directions.sum(0).square().sum(1) - count) / (count - 1)  # of all pairs, without those with themselves

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
