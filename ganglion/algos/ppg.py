"""Phasic policy gradient (Cobbe et al. 2021): proximal policy optimisation, and now and then an auxiliary phase.

Actor and critic are networks with nothing in common, so that neither disturbs the other. After every `aux_every`
rollouts, the actor's features learn to predict the values of all their rows, while a divergence holds what it does in
place; the critic learns from the same rows. All tensors are [T, B, ...]; minibatches are single rows folded to
[1, T * B] for a feed-forward model, whole slots for a recurrent one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    FRESH,
    AlgoConfig, Amount, Count, NonNegative, Positive, ProcessorConfig, RateSchedule, constant, linear, register,
)  # fmt: skip
from ganglion.core import (
    Action, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Phase, Prediction, Progress, Recipe, Rollout, Stateful,
    Update,
)  # fmt: skip
from ganglion.errors import UserError
from ganglion.nn.actor_and_critic import ActorAndCriticWithAuxiliary


@register("algo", "ppg")
class PPGConfig(AlgoConfig):
    """Phasic policy gradient."""

    lacks = FRESH
    lr: RateSchedule = linear(5e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    horizon: Count = Field(128, ge=1)  # rows per slot and rollout
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    epochs: int = Field(1, ge=1, le=1_000)  # over each rollout, of actor and critic
    minibatches: Count = Field(4, ge=1)
    clip: Amount = constant(0.2)
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 0.5
    aux_every: int = Field(16, ge=2, le=10_000)  # rollouts from which an auxiliary phase learns, and before it comes
    aux_epochs: int = Field(6, ge=1, le=1_000)
    aux_minibatches: Count = Field(16, ge=1)
    clone: NonNegative = 1.0  # weight of the divergence from what the actor did before the auxiliary phase
    normalise_advantage: bool = True
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 0.5
    max_lag: Count = Field(16, ge=0)  # rollouts behind which one of a remote explorer is dropped
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> PPG:
        return PPG(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon, keep=self.aux_every)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), lag)


class PPGMinibatch(NamedTuple):
    """Rows with what was believed of them when they were collected."""

    obs: Obs
    past: Past
    action: Action
    logp: Tensor
    advantage: Tensor
    goal: Tensor
    valid: Tensor
    acts: Tensor  # valid, and this slot's turn


class Cloned(NamedTuple):
    """Rows with their values, and what the actor says of them before it learns those."""

    obs: Obs
    past: Past
    raw: Tensor  # [T, B, numbers of a distribution]
    goal: Tensor
    valid: Tensor


class PPG(Algorithm[Rollout, PPGMinibatch]):
    """An actor that acts well, and whose features know what states are worth."""

    model: ActorAndCriticWithAuxiliary

    def __init__(self, cfg: PPGConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec, self.passes = cfg, spec, cfg.epochs
        rows = spec.slots if cfg.net.recurrent else spec.slots * cfg.horizon
        self.check("minibatches", cfg.minibatches, rows)
        self.check("aux_minibatches", cfg.aux_minibatches, rows * cfg.aux_every)
        self.model = ActorAndCriticWithAuxiliary(cfg.net, spec, cfg.log_std)
        actor, critic, rate = self.model.actor, self.model.critic, cfg.lr(0.0)
        self.optim = nn.optimiser(cfg.optim, actor, critic, lr=rate, max_norm=cfg.max_norm, eps=1e-5)
        self.optim_aux = nn.optimiser(cfg.optim, self.model, lr=rate, max_norm=cfg.max_norm, eps=1e-5)

    def check(self, field: str, count: int, rows: int) -> None:
        if rows < count:
            what = "slots" if self.cfg.net.recurrent else "rows"
            raise UserError(f"algo.{field}: {count} is more than there are {what}; lower it to {rows} or less.")

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        cfg = self.cfg
        return {"lr": cfg.lr.at(at), "entropy_weight": cfg.entropy.at(at), "clip": cfg.clip.at(at)}

    def draws(self) -> Draws:
        most = max(self.cfg.epochs, self.cfg.aux_epochs)
        return Draws(explore=ops.dist_draws(self.spec.action), plan=ops.shuffle_draws(most))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.action(obs, past)
        value, memory = self.model.value(obs, past._replace(memory=memory))
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), value, memory)

    # explore() and exploit() are the defaults: sample the distribution, take its mode; logp and value go into extras

    # ------------------------------------------------------------ learning

    def phases(self) -> Mapping[str, Phase]:
        policy = Phase(self.prepare, self.plan, self.learn)
        return {"policy": policy, "auxiliary": Phase(self.clone, self.plan_aux, self.learn_aux, self.cfg.aux_every)}

    def advantage(self, r: Rollout) -> Tensor:
        value = r.extras["value"]
        last = self.predict(*r.last, self.neutral(value[:1])).value  # the dead row carries the true last observation
        return ops.gae(r.reward, value, torch.cat([value[1:], last]), r.discount, r.cut, self.cfg.lam)

    @torch.no_grad()
    def prepare(self, r: Rollout) -> PPGMinibatch:
        advantage, acts = self.advantage(r), ops.decisions(r.valid, r.extras)
        goal = advantage + r.extras["value"]
        m = PPGMinibatch(r.obs, r.past, r.action, r.extras["logp"], advantage, goal, r.valid, acts)
        return m if self.cfg.net.recurrent else ops.fold(m)

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [epochs * minibatches, rows each]

    def learn(self, m: PPGMinibatch, knobs: Knobs, noise: Noise) -> Update:
        p = self.predict(m.obs, m.past, noise)
        log_ratio = p.dist.log_prob(m.action) - m.logp
        advantage = ops.normalise(m.advantage, m.acts) if self.cfg.normalise_advantage else m.advantage
        policy = ops.masked_mean(ops.clipped_surrogate(log_ratio, advantage, knobs["clip"], None), m.acts)
        critic = ops.masked_mean(0.5 * (m.goal - p.value).square(), m.valid)
        entropy = ops.masked_mean(p.dist.entropy(), m.acts)
        loss = policy + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        kl = ops.masked_mean(ops.kl_k3(log_ratio.detach()), m.acts)
        metrics = {"policy": policy, "value": critic, "entropy": entropy, "kl": kl, "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(m.logp))

    # ------------------------------------------------------------ the auxiliary phase

    @torch.no_grad()
    def clone(self, r: Rollout) -> Cloned:
        raw, _ = self.model.action(r.obs, r.past)
        m = Cloned(r.obs, r.past, raw, self.advantage(r) + r.extras["value"], r.valid)
        return m if self.cfg.net.recurrent else ops.fold(m)

    def plan_aux(self, rows: int, noise: Noise) -> Tensor:
        return ops.shuffled(rows, self.cfg.aux_epochs, self.cfg.aux_minibatches, noise)

    def learn_aux(self, m: Cloned, knobs: Knobs, noise: Noise) -> Update:
        legal = ops.mask(m.obs)
        raw, auxiliary = self.model.action_and_auxiliary(m.obs, m.past)
        value, _ = self.model.value(m.obs, m.past)
        before, now = ops.dist(m.raw, self.spec.action, legal), ops.dist(raw, self.spec.action, legal)
        known = ops.masked_mean(0.5 * (m.goal - auxiliary).square(), m.valid)
        moved = ops.masked_mean(before.kl(now), m.valid)
        critic = ops.masked_mean(0.5 * (m.goal - value).square(), m.valid)
        norm = self.optim_aux.step(known + self.cfg.clone * moved + critic, lr=knobs["lr"])
        metrics = {"aux_value": known, "aux_kl": moved, "aux_critic": critic, "aux_grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(m.goal))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim, "optim_aux": self.optim_aux}
