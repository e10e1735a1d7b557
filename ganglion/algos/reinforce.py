"""REINFORCE (Williams 1992): the log-probability of what was done, weighed by the whole return that followed.

With `baseline: value` a critic is subtracted from returns, and stands in for the rewards that nobody saw: beyond a time
limit and beyond the rollout. Without one (`none`) those returns are unknown, and their rows are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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
    ProcessorConfig,
    RateSchedule,
    constant,
    linear,
    register,
)
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Stateful, Update,
)  # fmt: skip


@register("algo", "reinforce")
class ReinforceConfig(AlgoConfig):
    """Whole returns, with or without a baseline."""

    lacks = FRESH
    lr: RateSchedule = linear(2e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    horizon: Count = Field(256, ge=1)  # rows per slot and update; longer than most episodes
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    baseline: Literal["value", "none"] = "value"
    normalise: bool = True  # what weighs the log-probabilities, over the rollout
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 0.5
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 0.5
    max_lag: Count = Field(4, ge=0)  # rollouts behind which one of a remote explorer is dropped
    shared: bool = False  # actor and critic read one body; otherwise each has its own
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> Reinforce:
        return Reinforce(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), self.max_lag)


class Reinforce(Algorithm[Rollout, Rollout]):
    """An actor that does more of what was followed by much."""

    model: nn.ActorCritic

    def __init__(self, cfg: ReinforceConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec = cfg, spec
        self.model = nn.ActorCritic(cfg.net, spec, cfg.shared, cfg.log_std)
        alone = cfg.baseline == "none"  # then nothing moves the critic, and nothing reads it
        self.optim = nn.optimiser(
            cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5, allow_unused=alone
        )

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
        critic = torch.zeros_like(r.reward[0, 0])
        if self.cfg.baseline == "value":
            goal, counts = self.bootstrapped(r, p, noise), r.valid
            advantage = goal - p.value.detach()
            critic = ops.masked_mean(0.5 * (goal - p.value).square(), counts)
        else:
            advantage, counts = ops.discounted_sum(r.reward, passing(r)), r.valid & ended(r)
        if self.cfg.normalise:
            advantage = ops.normalise(advantage, counts)
        actor = ops.masked_mean(ops.policy_gradient(p.dist.log_prob(r.action), advantage), counts)
        entropy = ops.masked_mean(p.dist.entropy(), counts)
        loss = actor + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        metrics = {"actor": actor, "value": critic, "entropy": entropy, "grad_norm": norm}
        metrics |= {"complete": ops.masked_mean(ended(r).float(), r.valid)}  # share of rows whose whole return was seen
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(actor))

    @torch.no_grad()
    def bootstrapped(self, r: Rollout, p: Prediction, noise: Noise) -> Tensor:
        """Whole returns, with the critic's word for what comes after a time limit or the last row."""
        obs, past = r.last
        last = self.predict(obs, Past(p.memory, past.start), noise).value  # remembered as the model now would
        after = torch.cat([p.value[1:], last])  # the dead row carries the true last observation
        return ops.lambda_returns(r.reward, after, r.discount, r.cut, 1.0)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}


def passing(r: Rollout) -> Tensor:
    """The discount of each row, 0 where the episode ended either way."""
    return torch.where(r.cut, 0.0, r.discount)


def ended(r: Rollout) -> Tensor:
    """Rows [T, B] whose episode terminates within the rollout: all rewards that count for them are there."""
    terminated = (r.cut & (r.discount == 0)).float()
    return ops.scan(terminated, (~r.cut).float()) > 0
