"""Parallelised Q-network, PQN (Gallici et al. 2025): Q-learning without a replay and without a target.

Rollouts of many slots are learned from a few times over, towards lambda returns that are computed once; layer norms
keep it stable. All tensors are [T, B, ...]. Minibatches are drawn along the second axis: single rows folded to
[1, T * B] for a feed-forward model, whole slots [T, B] for a recurrent one; `learn` cannot tell the difference.
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
    AlgoConfig, Count, Positive, ProcessorConfig, RateSchedule, Share, linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Stateful,
    Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "pqn")
class PQNConfig(AlgoConfig):
    """Parallelised Q-network."""

    actions, lacks = "discrete", FRESH
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.9, ge=0, le=1)  # how far returns look ahead before they ask the model
    horizon: Count = Field(32, ge=1)  # rows per slot and rollout
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    epochs: int = Field(4, ge=1, le=1_000)
    minibatches: Count = Field(4, ge=1)
    dueling: bool = False
    max_norm: Positive = 10.0
    max_lag: Count = Field(4, ge=0)  # rollouts behind which one of a remote explorer is dropped
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions, over the budget
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128), norm="layer")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> PQN:
        return PQN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), lag)


class PQNMinibatch(NamedTuple):
    """Rows with what the model should say of them."""

    obs: Obs
    past: Past
    action: Action
    goal: Tensor
    valid: Tensor


class PQN(Algorithm[Rollout, PQNMinibatch]):
    """Q-learning from what was just seen."""

    model: nn.QNet

    def __init__(self, cfg: PQNConfig, spec: EnvSpec) -> None:
        self.cfg, self.passes = cfg, cfg.epochs
        rows = spec.slots if cfg.net.recurrent else spec.slots * cfg.horizon
        if rows < cfg.minibatches:
            what = "env.slots (a memory learns from whole slots)" if cfg.net.recurrent else "env.slots * algo.horizon"
            raise UserError(
                f"algo.minibatches: {cfg.minibatches} is more than {what} = {rows}; lower it to {rows} or less."
            )
        self.model = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, 0)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "epsilon": self.cfg.epsilon.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws, plan=ops.shuffle_draws(self.cfg.epochs))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past)
        dist = ops.Greedy(q, ops.mask(obs))
        return Prediction(dist, ops.pick(q, dist.mode()), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.epsilon(knobs["epsilon"], noise)
        return Acted(action, {"value": prediction.value}, prediction.memory)

    # ------------------------------------------------------------ learning

    @torch.no_grad()
    def prepare(self, r: Rollout) -> PQNMinibatch:
        value = r.extras["value"]
        last = self.predict(*r.last, self.neutral(value[:1])).value  # the dead row carries the true last observation
        after = torch.cat([value[1:], last])
        goal = ops.lambda_returns(r.reward, after, r.discount, r.cut, self.cfg.lam)
        whole = PQNMinibatch(r.obs, r.past, r.action, goal, r.valid)
        return whole if self.model.recurrent else ops.fold(whole)

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [epochs * minibatches, rows each]

    def learn(self, m: PQNMinibatch, knobs: Knobs, noise: Noise) -> Update:
        q = ops.pick(self.model.value(m.obs, m.past)[0], m.action)
        loss = ops.masked_mean(0.5 * (q - m.goal).square(), m.valid)
        norm = self.optim.step(loss, lr=knobs["lr"])
        metrics = {"loss": loss.detach(), "q": ops.masked_mean(q.detach(), m.valid), "grad_norm": norm}
        return Update(metrics, ops.empty(q))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
