"""Advantage actor-critic (Mnih et al. 2016): one update from each short rollout of all slots, the synchronous A3C.

The critic's advantages look `lam` far ahead (Schulman et al. 2016); 1, the default, is the published sum of all rewards
up to the rollout's end. All tensors are [T, B, ...]; learning is along whole rollouts, with a memory or without.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field

from ganglion import buffers, nn, ops
from ganglion.config import (
    FRESH,
    AlgoConfig,
    Amount,
    Count,
    NonNegative,
    Positive,
    Rate,
    ProcessorConfig,
    RateSchedule,
    constant,
    linear,
    register,
)
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Stateful, Update,
)  # fmt: skip


@register("algo", "a2c")
class A2CConfig(AlgoConfig):
    """Advantage actor-critic."""

    lacks = FRESH
    lr: RateSchedule = linear(7e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig(name="rmsprop")
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)  # how far advantages look ahead
    horizon: Count = Field(5, ge=1)  # rows per slot and update
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 0.5
    popart: Rate | None = None  # how fast the scale of values follows that of goals (3e-4); None: it is fixed
    normalise_advantage: bool = False
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 0.5
    max_lag: Count = Field(16, ge=0)  # rollouts behind which one of a remote explorer is dropped
    shared: bool = False  # actor and critic read one body; otherwise each has its own
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> A2C:
        return A2C(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), self.max_lag)


class A2C(Algorithm[Rollout, Rollout]):
    """An actor pushed along by what its critic did not expect."""

    model: nn.ActorCritic

    def __init__(self, cfg: A2CConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec = cfg, spec
        self.model = nn.ActorCritic(cfg.net, spec, cfg.shared, cfg.log_std, cfg.popart)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "entropy_weight": self.cfg.entropy.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, value, memory = self.model.action_and_value(obs, past)
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), value, memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {}, prediction.memory)  # `learn` reads all the rest anew

    # ------------------------------------------------------------ learning

    def learn(self, r: Rollout, knobs: Knobs, noise: Noise) -> Update:
        p = self.predict(r.obs, r.past, noise)
        with torch.no_grad():
            obs, past = r.last
            last = self.predict(obs, Past(p.memory, past.start), noise).value  # remembered as the model now would
            after = torch.cat([p.value[1:], last])  # the dead row carries the true last observation
            gained = ops.gae(r.reward, p.value, after, r.discount, r.cut, self.cfg.lam)
            goal = gained + p.value
            advantage = ops.normalise(gained, r.valid) if self.cfg.normalise_advantage else gained
        actor = ops.masked_mean(ops.policy_gradient(p.dist.log_prob(r.action), advantage), r.valid)
        critic = ops.masked_mean(0.5 * (goal - p.value).square(), r.valid)
        entropy = ops.masked_mean(p.dist.entropy(), r.valid)
        critic = critic if self.cfg.popart is None else critic / self.model.critic.variance
        loss = actor + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        self.model.critic.follow(goal, r.valid)
        metrics = {"actor": actor, "value": critic, "entropy": entropy, "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(actor))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
