"""Randomised ensembled double Q-learning (Chen et al. 2021): many critics, a random few of which make each target, and
many updates per step. With `dropout` and `layer_norm` it is DroQ (Hiraoka et al. 2022), which needs two critics.

All tensors are [T, B, ...]. `learn` moves the critics and their target; every `delay` updates `learn_late` moves the
actor and the temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field, model_validator
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
from ganglion.nn.actor_critics import GaussianActor, SoftActorCritics, bounded, cycled, of_critics
from ganglion.nn.norms import DroppedMLP

KEYS = 2**24  # dropout masks are told apart by a number below it, which float32 holds exactly


@register("algo", "redq")
class REDQConfig(AlgoConfig):
    """Randomised ensembled double Q-learning; DroQ with dropout and layer norm."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor and the temperature
    lr_critic: Rate = 3e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    critics: int = Field(10, ge=1, le=1_000)
    subset: int = Field(2, ge=1, le=1_000)  # of the critics, drawn anew for each update, whose least is the target
    delay: Count = Field(20, ge=1)  # updates of the critics per update of the actor and the temperature
    dropout: float = Field(0.0, ge=0, lt=1)  # of the critics' units; DroQ: 0.01
    layer_norm: bool = False  # in the critics; DroQ: true
    temperature: Positive | None = None  # None: learned
    target_entropy: Real | None = None  # None: minus the number of action components
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps its noise, on average
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=0.05, warmup=5_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    @model_validator(mode="after")
    def _enough_critics(self) -> REDQConfig:
        if self.subset > self.critics:
            raise ValueError(f"subset {self.subset} should be at most critics, {self.critics}")
        return self

    def build(self, spec: EnvSpec) -> REDQ:
        return REDQ(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class REDQCritics(nn.Encoded):
    """obs and action -> values [critics, T, B]; some units are left out where a `key` says which."""

    def __init__(self, cfg: REDQConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        sizes = cfg.critics, self.encoder.out + space.size, cfg.net.hidden, 1
        self.nets = DroppedMLP(*sizes, cfg.net.activation, cfg.dropout, cfg.layer_norm)

    def value(
        self, obs: Obs, past: Past, action: Action | None = None, key: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_critics(past))
        assert action is not None
        joined = torch.cat([features, action.reshape(*features.shape[:2], -1)], -1)
        return self.nets(joined, key).squeeze(-1), memory


class REDQ(Algorithm[Sample[Transition], Sample[Transition]]):
    """A stochastic actor that seeks entropy and the mean of all critics."""

    model: SoftActorCritics[REDQCritics]

    def __init__(self, cfg: REDQConfig, spec: EnvSpec) -> None:
        self.cfg, self.late_every = cfg, cfg.delay
        self.space = space = bounded(cfg, spec)
        self.goal_entropy = -float(space.size) if cfg.target_entropy is None else cfg.target_entropy
        actor = GaussianActor(cfg.net, spec, space, burn_in=cfg.replay.warms)
        critics = REDQCritics(cfg, spec, space)
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
        n, cfg = self.space.size, self.cfg
        update = Draw(uniform=cfg.critics + 3)  # who makes the target, and three dropout masks
        return Draws(explore=Draw(uniform=n, normal=n), learn=Draw(normal=2 * n), update=update, hold=cfg.hold)

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

    def keys(self, noise: Noise) -> Tensor:
        """Of three dropout masks: for the target, the critics, the actor."""
        return (noise.update.uniform[self.cfg.critics :] * KEYS).long()

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, cfg, keys = mini.data, mini.weight, self.cfg, self.keys(noise)
        later = noise.normal.chunk(2, -1)[0]
        some = noise.update.uniform[: cfg.critics].argsort()[: cfg.subset]
        with torch.no_grad():
            dist = self.policy(t.next_obs, t.next_past)
            action, logp = dist.sample_and_log_prob(Noise(noise.uniform, cycled(later, dist.mean.shape[0])))
            after = self.target.net.value(t.next_obs, t.next_past, action, keys[0])[0]
            after = after.index_select(0, some).amin(0) - self.model.warmth["log"].exp() * logp
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = self.model.critics.value(t.obs, t.past, t.action, keys[1])[0]
        error = q - goal  # [critics, T, B]
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic)
        self.target.follow(self.model.critics, cfg.tau)
        metrics = {"critic": critic, "q": ops.weighted_mean(q.mean(0), w), "grad_norm": norm}
        metrics["spread"] = ops.weighted_mean(q.std(0, correction=0), w)
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def learn_late(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        t, w, warmth = mini.data, mini.weight, self.model.warmth["log"].exp()
        now = Noise(noise.uniform, noise.normal.chunk(2, -1)[1])
        action, logp = self.policy(t.obs, t.past).sample_and_log_prob(now)
        value = self.model.critics.value(t.obs, t.past, action, self.keys(noise)[2])[0].mean(0)
        actor = ops.weighted_mean(warmth.detach() * logp - value, w)
        self.actor_optim.step(actor)
        entropy = -ops.weighted_mean(logp.detach(), w)
        if self.cfg.temperature is None:
            self.warmth_optim.step(self.model.warmth["log"] * (entropy - self.goal_entropy))
        return {"actor": actor.detach(), "entropy": entropy, "temperature": warmth.detach()}

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
