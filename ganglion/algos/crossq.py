"""CrossQ (Bhatt et al. 2024): soft actor-critic without a target network; batch norms over this row and the next, as
one batch, keep the critics steady.

All tensors are [T, B, ...]. `learn` moves the critics; every `delay` updates `learn_late` moves the actor and the
temperature. Running statistics of batch norms move in both, and are part of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig,
    BufferConfig,
    Count,
    LimiterConfig,
    Positive,
    ProcessorConfig,
    Rate,
    Real,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Box, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Recipe,
    Sample, Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import (
    SoftActorCritics, bounded, of_actor, of_critics, squashed, together, with_memory,
)  # fmt: skip
from ganglion.nn.norms import BatchNormMLP


@register("algo", "crossq")
class CrossQConfig(AlgoConfig):
    """CrossQ: soft actor-critic with batch norms and without a target."""

    actions = "bounded"
    lr: Rate = 1e-3  # of the actor and the temperature
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    beta1: float = Field(0.5, ge=0, lt=1)  # of Adam, for actor and critics
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    delay: Count = Field(3, ge=1)  # updates of the critics per update of the actor and the temperature
    momentum: Positive = Field(0.01, le=1)  # how fast running statistics follow
    renorm_after: Count = Field(100_000, ge=0)  # moves of the statistics from which on batches are renormalised
    temperature: Positive | None = None  # None: learned
    target_entropy: Real | None = None  # None: minus the number of action components
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps its noise, on average
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))  # of the actor
    net_critic: nn.MLPConfig = nn.MLPConfig(hidden=(512, 512))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=5_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> CrossQ:
        return CrossQ(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)

    def batch_normed(self, net: nn.MLPConfig, count: int, inputs: int, outputs: int) -> BatchNormMLP:
        sizes = count, inputs, net.hidden, outputs
        return BatchNormMLP(*sizes, net.activation, self.momentum, self.renorm_after)


class CrossQActor(nn.Encoded):
    """obs -> mean and log deviation of each action component, before squashing [T, B, 2 * A]."""

    def __init__(self, cfg: CrossQConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        self.net = cfg.batch_normed(cfg.net, 1, self.encoder.out, 2 * space.size)

    def action(self, obs: Obs, past: Past, live: Tensor | None = None) -> tuple[Tensor, Memory]:
        """By running statistics, or by those of `live` rows, which move the running ones."""
        features, memory = self.encode(obs, of_actor(past))
        mean, spread = self.net(features, live, move=True)[0].chunk(2, -1)
        return squashed(mean, spread), memory


class CrossQCritics(nn.Encoded):
    """obs and action -> two values [2, T, B]."""

    def __init__(self, cfg: CrossQConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(with_memory(cfg.kind, cfg.net, cfg.net_critic, cfg.n_step), spec.obs, cfg.replay.warms)
        self.nets = cfg.batch_normed(cfg.net_critic, 2, self.encoder.out + space.size, 1)

    def value(
        self, obs: Obs, past: Past, action: Action | None = None, live: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """By running statistics, or by those of `live` rows, which move the running ones."""
        features, memory = self.encode(obs, of_critics(past))
        assert action is not None
        joined = torch.cat([features, action.reshape(*features.shape[:2], -1)], -1)
        return self.nets(joined, live, move=True).squeeze(-1), memory


class CrossQ(Algorithm[Sample[Transition], Sample[Transition]]):
    """A stochastic actor that seeks value and entropy at once; critics that are their own targets."""

    model: SoftActorCritics[CrossQCritics]

    def __init__(self, cfg: CrossQConfig, spec: EnvSpec) -> None:
        self.cfg, self.late_every = cfg, cfg.delay
        self.space = space = bounded(cfg, spec)
        self.goal_entropy = -float(space.size) if cfg.target_entropy is None else cfg.target_entropy
        self.actor, critics = CrossQActor(cfg, spec, space), CrossQCritics(cfg, spec, space)
        self.model = SoftActorCritics(self.actor, critics, cfg.temperature or 1.0)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.actor, lr=cfg.lr, max_norm=limit, beta1=cfg.beta1)
        self.critic_optim = nn.optimiser(cfg.optim, critics, lr=cfg.lr_critic, max_norm=limit, beta1=cfg.beta1)
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
        t, w = mini.data, mini.weight
        live, later = (w > 0).float(), Noise(noise.uniform, noise.normal.chunk(2, -1)[0])
        with torch.no_grad():
            action, logp = self.policy(t.next_obs, t.next_past).sample_and_log_prob(later)
            bonus = self.model.warmth["log"].exp() * logp
        both = *together(t), torch.cat([t.action, action], 1), torch.cat([live, live], 1)
        q, after = self.model.critics.value(*both)[0].chunk(2, 2)  # [2, T, B] each
        goal = t.reward + t.discount * ops.at(after.detach().amin(0) - bonus, t.ahead)
        error = q - goal
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic)
        metrics = {"critic": critic, "q": ops.weighted_mean(q.mean(0), w), "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def learn_late(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        t, w, warmth = mini.data, mini.weight, self.model.warmth["log"].exp()
        raw = self.actor.action(t.obs, t.past, (w > 0).float())[0]
        now = Noise(noise.uniform, noise.normal.chunk(2, -1)[1])
        action, logp = ops.dist(raw, self.space, squash=True).sample_and_log_prob(now)
        actor = ops.weighted_mean(warmth.detach() * logp - self.model.value(t.obs, t.past, action)[0].amin(0), w)
        self.actor_optim.step(actor)
        entropy = -ops.weighted_mean(logp.detach(), w)
        if self.cfg.temperature is None:
            self.warmth_optim.step(self.model.warmth["log"] * (entropy - self.goal_entropy))
        return {"actor": actor.detach(), "entropy": entropy, "temperature": warmth.detach()}

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, **optims}
