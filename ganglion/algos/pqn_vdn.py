"""PQN-VDN (Gallici et al. 2025): value decomposition without a replay and without a target.

Rollouts of many copies are learned from a few times over, towards lambda returns of the sum of the agents' values that
are computed once; layer norms keep it stable. Minibatches are of copies, whole ones [T, C] with a memory, else single
rows folded to [1, T * C].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import TEAM, ByCopy, Pay, check_minibatches
from ganglion.config import (
    FRESH, AlgoConfig, Count, Positive, ProcessorConfig, RateSchedule, Share, linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout,
    Stateful, Update,
)  # fmt: skip
from ganglion.ops.agents import by_copy, by_slot, team_sum


@register("algo", "pqn_vdn")
class PQNVDNConfig(AlgoConfig):
    """Parallelised Q-networks of agents, summed."""

    actions = "discrete"
    lacks = TEAM | FRESH
    lr: RateSchedule = linear(5e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.65, ge=0, le=1)  # how far returns look ahead before they ask the model
    horizon: Count = Field(32, ge=1)  # rows per slot and rollout
    epochs: int = Field(4, ge=1, le=1_000)
    minibatches: Count = Field(4, ge=1)
    max_norm: Positive = 10.0
    max_lag: Count = Field(4, ge=0)  # rollouts behind which one from elsewhere is dropped
    epsilon: Share = linear(1.0, 0.05, until=0.5)  # share of random actions, over the budget
    reward: Pay = "sum"  # of the agents: the team's
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128), norm="layer")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> PQNVDN:
        return PQNVDN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig().rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, ByCopy(rollouts, self.reward), buffers.ReadyConfig(), lag)


class PQNVDNRows(NamedTuple):
    """Rows of copies with what the model should say of their sum; the rest is [T, C, N, ...]."""

    goal: Tensor
    valid: Tensor
    obs: Obs
    action: Action
    alive: Tensor
    memory: Memory
    starts: Tensor


class PQNVDN(Algorithm[Rollout, PQNVDNRows]):
    """Q-learning of a sum, from what was just seen."""

    model: nn.QNet

    def __init__(self, cfg: PQNVDNConfig, spec: EnvSpec) -> None:
        self.cfg, self.agents, self.passes = cfg, len(spec.agents), cfg.epochs
        check_minibatches(cfg.minibatches, spec, cfg.horizon, cfg.net.recurrent)
        self.model = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), False, 0)
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
    def prepare(self, r: Rollout) -> PQNVDNRows:
        value, alive = r.extras["value"], r.extras["alive"]
        obs, past = r.last
        start = past.start.repeat(1, self.agents)
        own = Past(by_slot(past.memory), start)
        last = self.predict(by_slot(obs), own, self.neutral(start)).value
        later = torch.cat([value[1:], by_copy(last, self.agents)])  # dead rows carry true last observations
        after = team_sum(later, r.extras["survives"])
        goal = ops.lambda_returns(r.reward, after, r.discount, r.cut, self.cfg.lam)
        m = PQNVDNRows(goal, r.valid, r.obs, r.action, alive, r.past.memory, r.extras["starts"])
        return m if self.model.recurrent else ops.fold(m)

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [epochs * minibatches, rows each]

    def learn(self, m: PQNVDNRows, knobs: Knobs, noise: Noise) -> Update:
        obs, *past = by_slot((m.obs, m.memory, m.starts))
        every, _ = self.model.value(obs, Past(*past))
        q = team_sum(ops.pick(by_copy(every, self.agents), m.action), m.alive)
        loss = ops.masked_mean(0.5 * (q - m.goal).square(), m.valid)
        norm = self.optim.step(loss, lr=knobs["lr"])
        metrics = {"loss": loss.detach(), "q": ops.masked_mean(q.detach(), m.valid), "grad_norm": norm}
        return Update(metrics, ops.empty(q))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
