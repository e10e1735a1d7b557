"""Truncated quantile critics (Kuznetsov et al. 2020): soft actor-critic whose critics say quantiles of the return; the
largest of all critics' quantiles are left out of the target.

All tensors are [T, B, ...]. The critics are one batched ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field, model_validator

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig,
    BufferConfig,
    LimiterConfig,
    Positive,
    ProcessorConfig,
    Rate,
    Real,
    register,
)
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import Critics, GaussianActor, SoftActorCritics, bounded, cycled


@register("algo", "tqc")
class TQCConfig(AlgoConfig):
    """Truncated quantile critics."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor and the temperature
    lr_critic: Rate = 3e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    critics: int = Field(5, ge=1, le=1_000)
    quantiles: int = Field(25, ge=2, le=10_000)  # that each critic says
    drop: int = Field(2, ge=0, le=10_000)  # of the largest, per critic, that the target is without
    temperature: Positive | None = None  # None: learned
    target_entropy: Real | None = None  # None: minus the number of action components
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps its noise, on average
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=5_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    @model_validator(mode="after")
    def _some_stay(self) -> TQCConfig:
        if self.drop >= self.quantiles:
            raise ValueError(f"drop {self.drop} should be less than quantiles, {self.quantiles}")
        return self

    def build(self, spec: EnvSpec) -> TQC:
        return TQC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class TQC(Algorithm[Sample[Transition], Sample[Transition]]):
    """A stochastic actor that seeks entropy and the mean of all quantiles."""

    model: SoftActorCritics[Critics]

    def __init__(self, cfg: TQCConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec))
        self.goal_entropy = -float(space.size) if cfg.target_entropy is None else cfg.target_entropy
        self.kept = cfg.critics * (cfg.quantiles - cfg.drop)
        actor = GaussianActor(cfg.net, spec, space, burn_in=cfg.replay.warms)
        critics = Critics(cfg.net, spec, space, cfg.critics, cfg.quantiles, burn_in=cfg.replay.warms)
        self.model = SoftActorCritics(actor, critics, cfg.temperature or 1.0)
        self.target = nn.Lagged(critics)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, critics, lr=cfg.lr_critic, max_norm=limit)
        self.warmth_optim = nn.Adam(self.model.warmth, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins)}

    def draws(self) -> Draws:
        n = self.space.size
        return Draws(explore=Draw(uniform=n, normal=n), learn=Draw(normal=2 * n), hold=self.cfg.hold)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        return Prediction(ops.dist(raw, self.space, squash=True), ops.empty(raw), memory)

    def policy(self, obs: Obs, past: Past) -> ops.TanhNormal:
        """The same in `learn`, where nobody asks for the memory after it."""
        dist: ops.TanhNormal = ops.dist(self.model.action(obs, past)[0], self.space, squash=True)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen, anything = prediction.dist.sample(noise), ops.anywhere(self.space, noise.uniform)
        return Acted(torch.where(knobs["random"] > 0, anything, chosen), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, cfg = mini.data, mini.weight, self.cfg
        later, now = noise.normal.chunk(2, -1)
        warmth = self.model.warmth["log"].exp()
        with torch.no_grad():
            dist = self.policy(t.next_obs, t.next_past)
            action, logp = dist.sample_and_log_prob(Noise(noise.uniform, cycled(later, dist.mean.shape[0])))
            after = self.target.value(t.next_obs, t.next_past, action)[0].movedim(0, -2).flatten(-2)  # [T, B, all]
            after = after.sort(-1).values[..., : self.kept] - (warmth * logp)[..., None]
            goal = t.reward[..., None] + t.discount[..., None] * ops.at(after, t.ahead)
        z = self.model.value(t.obs, t.past, t.action)[0]  # [critics, T, B, quantiles]
        rows = (ops.quantile_huber(z, ops.midpoints(cfg.quantiles, z), goal) / cfg.quantiles).sum(0)  # [T, B]
        critic = ops.weighted_mean(rows, w)
        norm = self.critic_optim.step(critic)

        action, logp = self.policy(t.obs, t.past).sample_and_log_prob(Noise(noise.uniform, now))
        actor = ops.weighted_mean(warmth.detach() * logp - self.model.value(t.obs, t.past, action)[0].mean((0, -1)), w)
        self.actor_optim.step(actor)
        entropy = -ops.weighted_mean(logp.detach(), w)
        if cfg.temperature is None:
            self.warmth_optim.step(self.model.warmth["log"] * (entropy - self.goal_entropy))
        self.target.follow(self.model.critics, cfg.tau)

        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(z.mean((0, -1)), w), "entropy": entropy}
        metrics |= {"temperature": warmth, "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(rows, w))

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
