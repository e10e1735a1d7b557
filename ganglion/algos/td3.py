"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018): twin critics as one batched ensemble, a
smoothed target, an actor that learns more rarely than its critics.

All tensors are [T, B, ...]. `learn` moves the critics; every `delay` updates `learn_late` moves the actor and the
targets, from the same minibatch: two functions of fixed shape rather than one with a branch.
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
    Acted, Algorithm, Carried, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample,
    Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.action_noise import ActionNoise, NoiseKind
from ganglion.nn.actor_critics import ActorCritics, Critics, DeterministicActor, bounded, cycled


@register("algo", "td3")
class TD3Config(AlgoConfig):
    """Twin delayed deep deterministic policy gradient."""

    actions = "bounded"
    lr: Rate = 1e-3  # of the actor
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the targets follow
    delay: Count = Field(2, ge=1)  # updates of the critics per update of the actor and the targets
    noise: Amount = constant(0.1)  # deviation of training actions, in units of half the range
    noise_kind: NoiseKind = "gaussian"  # white; ou: Ornstein-Uhlenbeck; pink: power 1 / f
    theta: Positive = Field(0.15, le=1)  # rate at which Ornstein-Uhlenbeck noise returns to 0
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps white noise, on average
    smoothing: NonNegative = 0.2  # deviation of the target's actions, in the same units
    smoothing_limit: NonNegative = 0.5  # no further than this
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=25_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> TD3:
        return TD3(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class TD3(Algorithm[Sample[Transition], Sample[Transition]]):
    """A deterministic actor that climbs the first of two critics; both learn from the lower of their targets."""

    model: ActorCritics[Critics]

    def __init__(self, cfg: TD3Config, spec: EnvSpec) -> None:
        self.cfg, self.late_every = cfg, cfg.delay
        self.space = space = bounded(cfg, spec)
        self.noise = ActionNoise(cfg.noise_kind, space.size, cfg.theta)
        actor = DeterministicActor(cfg.net, spec, space, burn_in=cfg.replay.warms)
        critics = Critics(cfg.net, spec, space, burn_in=cfg.replay.warms)
        self.model = ActorCritics(actor, critics)
        self.target = nn.Lagged(self.model)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins), "noise": self.cfg.noise.at(at)}

    def draws(self) -> Draws:
        n = self.space.size
        own = Draw(uniform=n, normal=self.noise.draws)
        return Draws(explore=own, learn=Draw(normal=n), hold=self.noise.hold(self.cfg.hold))

    def carry(self, slots: int) -> Carried:
        return self.noise.carry(slots)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        action, memory = self.model.act(obs, past)
        return Prediction(ops.Sure(action), ops.empty(action), memory)  # a state alone has no value here

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen = prediction.dist.mode()
        low, high = ops.bounds(self.space, chosen)
        anything = ops.anywhere(self.space, noise.uniform, (low, high))
        carried, normal = self.noise.step(prediction.carried, noise.normal)
        shaken = ops.gaussian(chosen, normal, knobs["noise"], low, high)
        return Acted(torch.where(knobs["random"] > 0, anything, shaken), {}, prediction.memory, carried)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, cfg = mini.data, mini.weight, self.cfg
        with torch.no_grad():
            action = self.target.action(t.next_obs, t.next_past)[0]
            low, high = ops.bounds(self.space, action)
            normal = cycled(noise.normal, action.shape[0])
            action = ops.gaussian(action, normal, cfg.smoothing, low, high, cfg.smoothing_limit)
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
