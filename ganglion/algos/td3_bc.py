"""TD3+BC (Fujimoto and Gu 2021): TD3 on a dataset, whose actor stays close to the actions in it.

All tensors are [T, B, ...]. `learn` moves the critics; every `delay` updates `learn_late` moves the actor and the
targets, from the same minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Sample, Stateful, Transition,
    Update,
)  # fmt: skip
from ganglion.nn.actor_critics import ActorCritics, Critics, DeterministicActor, apart, bounded, cycled


@register("algo", "td3_bc")
class TD3BCConfig(AlgoConfig):
    """Twin delayed deterministic policy gradient with behaviour cloning."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor
    optim: nn.OptimConfig = nn.OptimConfig()
    lr_critic: Rate = 3e-4
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the targets follow
    delay: Count = Field(2, ge=1)  # updates of the critics per update of the actor and the targets
    alpha: NonNegative = 2.5  # weight of value against closeness to the data
    noise: NonNegative = 0.1  # deviation of training actions, in units of half the range
    smoothing: NonNegative = 0.2  # deviation of the target's actions, in the same units
    smoothing_limit: NonNegative = 0.5  # no further than this
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256), normalise=True)
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> TD3BC:
        return TD3BC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class TD3BC(Algorithm[Sample[Transition], Sample[Transition]]):
    """A deterministic actor between the value of its critics and the actions of the data."""

    model: ActorCritics[Critics]

    def __init__(self, cfg: TD3BCConfig, spec: EnvSpec) -> None:
        self.cfg, self.late_every = cfg, cfg.delay
        self.space = space = bounded(cfg, spec)
        warms = cfg.replay.warms
        actor = DeterministicActor(cfg.net, spec, space, burn_in=warms)
        self.model = ActorCritics(actor, Critics(cfg.net, spec, space, burn_in=warms))
        self.target = nn.Lagged(self.model)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        n = self.space.size
        return Draws(explore=Draw(normal=n), learn=Draw(normal=n))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        action, memory = self.model.act(obs, past)
        return Prediction(ops.Sure(action), ops.empty(action), memory)  # a state alone has no value here

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen = prediction.dist.mode()
        low, high = ops.bounds(self.space, chosen)
        return Acted(ops.gaussian(chosen, noise.normal, self.cfg.noise, low, high), {}, prediction.memory)

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
        t, w = mini.data, mini.weight
        action = self.model.action(t.obs, t.past)[0]
        q = self.model.critics.first(t.obs, t.past, action)
        scale = self.cfg.alpha / ops.weighted_mean(q.detach().abs(), w).clamp(
            min=1e-6
        )  # values of any size weigh alike
        cloning = ops.weighted_mean(apart(action, t.action, self.space), w) / self.space.size
        actor = cloning - scale * ops.weighted_mean(q, w)
        self.actor_optim.step(actor)
        self.target.follow(self.model, self.cfg.tau)
        return {"actor": actor.detach(), "cloning": cloning.detach()}

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}
