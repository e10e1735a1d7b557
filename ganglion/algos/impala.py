"""IMPALA (Espeholt et al. 2018): an actor and a critic that learn from what other, older versions of them did.

V-trace corrects for the difference, so rollouts may come from anywhere: from the same process just now, from explorers
elsewhere, or a second time. All tensors are [T, B, ...]; learning is along whole rollouts, with a memory or without.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

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
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Stateful,
    Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "impala")
class ImpalaConfig(AlgoConfig):
    """Actor and critic corrected by V-trace."""

    lacks = FRESH
    lr: RateSchedule = linear(6e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)  # how far corrections look ahead
    horizon: Count = Field(20, ge=1)  # rows per slot and rollout
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    epochs: int = Field(1, ge=1, le=1_000)  # passes over a rollout; V-trace corrects the later ones
    minibatches: Count = Field(1, ge=1)  # per pass, each of whole slots
    clip_rho: Positive = 1.0  # of the ratio that decides what the critic converges to
    clip_c: Positive = 1.0  # of the ratio that decides how far corrections reach
    clip_actor: Positive = 1.0  # of the ratio that weighs the actor's gradient
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 0.5
    popart: Rate | None = None  # how fast the scale of values follows that of goals (3e-4); None: it is fixed
    normalise_advantage: bool = False
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 40.0
    max_lag: Count = Field(64, ge=0)  # rollouts behind which one of a remote explorer is dropped
    shared: bool = True  # actor and critic read one body; otherwise each has its own
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> Impala:
        return Impala(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), lag)


class Impala(Algorithm[Rollout, Rollout]):
    """An actor and a critic that need not have acted themselves."""

    model: nn.ActorCritic

    def __init__(self, cfg: ImpalaConfig, spec: EnvSpec) -> None:
        if spec.slots < cfg.minibatches:
            raise UserError(
                f"algo.minibatches: {cfg.minibatches} is more than env.slots (impala learns from whole slots) = "
                f"{spec.slots}; lower it to {spec.slots} or less."
            )
        self.cfg, self.spec, self.passes = cfg, spec, cfg.epochs
        self.model = nn.ActorCritic(cfg.net, spec, cfg.shared, cfg.log_std, cfg.popart)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "entropy_weight": self.cfg.entropy.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action), plan=ops.shuffle_draws(self.cfg.epochs))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, value, memory = self.model.action_and_value(obs, past)
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), value, memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.sample(noise)
        return Acted(action, {"logp": prediction.dist.log_prob(action)}, prediction.memory)

    # ------------------------------------------------------------ learning

    def plan(self, rows: int, noise: Noise) -> Tensor:
        if self.cfg.epochs * self.cfg.minibatches == 1:
            return super().plan(rows, noise)
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [updates, slots each]

    def learn(self, r: Rollout, knobs: Knobs, noise: Noise) -> Update:
        p = self.predict(r.obs, r.past, noise)
        logp = p.dist.log_prob(r.action)
        with torch.no_grad():
            obs, past = r.last
            last = self.predict(obs, Past(p.memory, past.start), noise).value  # remembered as the model now would
            after = torch.cat([p.value[1:], last])  # the dead row carries the true last observation
            log_ratio = logp - r.extras["logp"]
            clips = (self.cfg.clip_rho, self.cfg.clip_c, self.cfg.clip_actor)
            trace = ops.vtrace(log_ratio, r.reward, p.value, after, r.discount, r.cut, self.cfg.lam, clips)
            acts = ops.decisions(r.valid, r.extras)
            advantage = ops.normalise(trace.advantage, acts) if self.cfg.normalise_advantage else trace.advantage
        actor, entropy = ops.masked_means(acts, ops.policy_gradient(logp, advantage), p.dist.entropy())
        critic = ops.masked_mean(0.5 * (trace.goal - p.value).square(), r.valid)
        critic = critic if self.cfg.popart is None else critic / self.model.critic.variance
        loss = actor + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        self.model.critic.follow(trace.goal, r.valid)
        metrics = {"actor": actor, "value": critic, "entropy": entropy, "grad_norm": norm}
        beyond = (log_ratio.exp() > self.cfg.clip_rho).to(log_ratio.dtype)
        kl, clipped = ops.masked_means(r.valid, ops.kl_k3(log_ratio), beyond)  # between who acted and who learns
        metrics |= {"kl": kl, "clipped": clipped}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(logp))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
