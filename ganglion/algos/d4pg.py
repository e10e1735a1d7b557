"""D4PG (Barth-Maron et al. 2018): a deterministic actor whose critic says how the return is distributed on fixed atoms,
learned from n-step sums.

All tensors are [T, B, ...]. Priorities are a kind of replay, explorers in other processes a mode of running.
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
    Amount,
    BufferConfig,
    LimiterConfig,
    Positive,
    ProcessorConfig,
    Rate,
    Real,
    constant,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Box, Carried, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress,
    Recipe, Sample, Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.action_noise import ActionNoise, NoiseKind
from ganglion.nn.actor_critics import ActorCritics, DeterministicActor, bounded, of_critics


@register("algo", "d4pg")
class D4PGConfig(AlgoConfig):
    """Distributional deterministic policy gradient."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(5, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the targets follow
    atoms: int = Field(51, ge=2, le=10_000)  # on which the critic says how returns are distributed
    low: Real = -150.0  # the first of them
    high: Real = 150.0  # the last
    noise: Amount = constant(0.3)  # deviation of training actions, in units of half the range
    noise_kind: NoiseKind = "gaussian"  # white; ou: Ornstein-Uhlenbeck; pink: power 1 / f
    theta: Positive = Field(0.15, le=1)  # rate at which Ornstein-Uhlenbeck noise returns to 0
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps white noise, on average
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=5_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    @model_validator(mode="after")
    def _in_order(self) -> D4PGConfig:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} should be less than high, {self.high}")
        return self

    def build(self, spec: EnvSpec) -> D4PG:
        return D4PG(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class D4PGCritic(nn.Encoded):
    """obs and action -> a value [T, B], or the logits behind it [T, B, atoms]."""

    def __init__(self, cfg: D4PGConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        self.cfg, self.nets = cfg, nn.Ensemble(cfg.net.body(self.encoder.out + space.size), cfg.atoms)

    def logits(self, obs: Obs, past: Past, action: Action) -> Tensor:
        return self.nets(self.encode(obs, of_critics(past))[0], action)[0]

    def support(self, like: Tensor) -> Tensor:
        return ops.atoms(self.cfg.low, self.cfg.high, self.cfg.atoms, like)

    def mean(self, logits: Tensor) -> Tensor:
        return (logits.softmax(-1) * self.support(logits)).sum(-1)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        assert action is not None
        features, memory = self.encode(obs, of_critics(past))
        return self.mean(self.nets(features, action)[0]), memory


class D4PG(Algorithm[Sample[Transition], Sample[Transition]]):
    """A deterministic actor that climbs the mean of its critic's distribution."""

    model: ActorCritics[D4PGCritic]

    def __init__(self, cfg: D4PGConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec))
        self.noise = ActionNoise(cfg.noise_kind, space.size, cfg.theta)
        actor = DeterministicActor(cfg.net, spec, space, burn_in=cfg.replay.warms)
        critic = D4PGCritic(cfg, spec, space)
        self.model = ActorCritics(actor, critic)
        self.target = nn.Lagged(self.model)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, critic, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins), "noise": self.cfg.noise.at(at)}

    def draws(self) -> Draws:
        n = self.space.size
        own = Draw(uniform=n, normal=self.noise.draws)
        return Draws(explore=own, hold=self.noise.hold(self.cfg.hold))

    def carry(self, slots: int) -> Carried:
        return self.noise.carry(slots)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        action, memory = self.model.act(obs, past)
        return Prediction(ops.Sure(action), ops.empty(action), memory)  # a state alone has no value here

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen = prediction.dist.mode()
        low, high = ops.bounds(self.space, chosen)
        carried, normal = self.noise.step(prediction.carried, noise.normal)
        shaken = ops.gaussian(chosen, normal, knobs["noise"], low, high)
        anything = ops.anywhere(self.space, noise.uniform, (low, high))
        return Acted(torch.where(knobs["random"] > 0, anything, shaken), {}, prediction.memory, carried)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, critics = mini.data, mini.weight, self.model.critics
        with torch.no_grad():
            action = self.target.action(t.next_obs, t.next_past)[0]
            after = self.target.net.critics.logits(t.next_obs, t.next_past, action).softmax(-1)  # [T, B, atoms]
            goal = ops.project(t.reward, t.discount, critics.support(after), ops.at(after, t.ahead))
        logits = critics.logits(t.obs, t.past, t.action)
        rows = ops.categorical_td(logits, goal)  # [T, B]
        critic = ops.weighted_mean(rows, w)
        norm = self.critic_optim.step(critic)

        action = self.model.action(t.obs, t.past)[0]
        actor = -ops.weighted_mean(self.model.value(t.obs, t.past, action)[0], w)
        self.actor_optim.step(actor)
        self.target.follow(self.model, self.cfg.tau)
        metrics = {"critic": critic, "actor": actor, "grad_norm": norm}
        metrics["q"] = ops.weighted_mean(critics.mean(logits), w)
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(rows, w))

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}
