"""COMA, counterfactual multi-agent policy gradients (Foerster et al. 2018): what one agent's action changed.

    advantage_i = Q(s, u)_i - sum_a pi_i(a | o_i) Q(s, (u_-i, a))_i

The central critic says of each agent the value of all its actions, given those of the others: one pass, and the
baseline is a sum. It learns lambda returns of the team on a lagged copy of itself. Rollouts are learned from once,
without their last row, after which no action is known. All agents share networks; the critic is told which one it
judges.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import TEAM, ByCopy, Pay
from ganglion.config import (
    FRESH, AlgoConfig, Amount, Count, NonNegative, Positive, ProcessorConfig, RateSchedule, constant, linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Stateful, Update,
)  # fmt: skip
from ganglion.nn.central import CentralCritics
from ganglion.nn.inputs import one_hot
from ganglion.ops.agents import blank, by_slot, each_own, team_sum, whole


@register("algo", "coma")
class COMAConfig(AlgoConfig):
    """Counterfactual policy gradients of agents with a central critic."""

    actions = "discrete"
    lacks = TEAM | FRESH
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.8, ge=0, le=1)  # of the critic's returns
    horizon: Count = Field(16, ge=2)  # rows per slot and update
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 1.0
    normalise_advantage: bool = False
    max_norm: Positive = 10.0
    target_every: Count = Field(50, ge=1)  # updates between two copies of the critic onto its target
    max_lag: Count = Field(16, ge=0)  # rollouts behind which one of a remote explorer is dropped
    reward: Pay = "sum"  # of the agents: the team's
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64))
    critic: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))  # without a memory
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> COMA:
        return COMA(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = buffers.RolloutConfig().rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, ByCopy(rollouts, self.reward), buffers.ReadyConfig(), self.max_lag)


class Counterfactuals(Model):
    """Values of each agent's actions beside what the others do, [T, C, N, A]."""

    def __init__(self, cfg: COMAConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__()
        self.agents, self.actions = len(spec.agents), actions
        self.nets = CentralCritics(cfg.critic, spec, self.agents * (actions + 1), actions)

    def value_of(self, copies: Obs, there: Tensor, action: Tensor) -> Tensor:
        chosen = blank(one_hot(action, self.actions), there)  # [T, C, N, A]
        others = each_own(torch.zeros_like(chosen), chosen)
        who = torch.eye(self.agents, device=chosen.device).expand(*action.shape, self.agents)
        said: Tensor = self.nets(copies, there, torch.cat([others, who], -1))[0]
        return said


class COMAModel(nn.Encoded):
    """What an agent sees -> logits of its actions; and the critic of its team."""

    def __init__(self, cfg: COMAConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs)
        actions = nn.discrete_actions(cfg, spec)
        body = cfg.net.body(self.encoder.out)
        self.net = nn.Net(body, nn.PolicyHead(body, spec.action, cfg.net.init))
        self.critic = Counterfactuals(cfg, spec, actions)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encoder(obs, past)
        return self.net(features), memory


class COMA(Algorithm[Rollout, Rollout]):
    """Actors that are told what they changed."""

    model: COMAModel

    def __init__(self, cfg: COMAConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec, self.agents, self.sync_every = cfg, spec, len(spec.agents), cfg.target_every
        self.model = COMAModel(cfg, spec)
        self.target = nn.Lagged(self.model.critic)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr(at.fraction), "entropy_weight": self.cfg.entropy(at.fraction)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Categorical.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        logits, memory = self.model.action(obs, past)
        return Prediction(ops.Categorical(logits, ops.mask(obs)), ops.empty(logits), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {}, prediction.memory)  # `learn` reads all the rest anew

    # ------------------------------------------------------------ learning

    def learn(self, r: Rollout, knobs: Knobs, noise: Noise) -> Update:
        alive = r.extras["alive"]
        dist = self.predict(by_slot(r.obs), Past(*by_slot((r.past.memory, r.extras["starts"]))), noise).dist
        action = by_slot(r.action)
        every = self.model.critic.value_of(r.obs, alive, r.action)  # [T, C, N, A]
        error = ops.pick(every, r.action)[:-1] - self.goal(r)[..., None]
        critic = ops.masked_mean(0.5 * error.square(), alive[:-1])

        acts = by_slot(ops.decisions(alive, r.extras))[:-1]
        gained = ops.counterfactual(by_slot(every), action, dist.probs())[:-1]
        advantage = ops.normalise(gained, acts) if self.cfg.normalise_advantage else gained
        actor = ops.masked_mean(ops.policy_gradient(dist.log_prob(action)[:-1], advantage), acts)
        entropy = ops.masked_mean(dist.entropy()[:-1], acts)
        loss = actor + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        metrics = {"actor": actor, "value": critic, "entropy": entropy, "grad_norm": norm}
        metrics["advantage"] = ops.masked_mean(gained.abs(), acts)
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(actor))

    @torch.no_grad()
    def goal(self, r: Rollout) -> Tensor:
        """Lambda returns of the team, [T - 1, C]. What it does next is worth what the target says of the actions that
        were taken, on average over the agents that are there; dead rows carry those that would have been."""
        there = whole(r).there[:-1]
        taken = ops.pick(self.target.net.value_of(r.obs, there, r.action), r.action)  # [T, C, N]
        value = team_sum(taken, there) / there.sum(-1).clamp(min=1)
        rows = r.reward[:-1], value[1:], r.discount[:-1], r.cut[:-1]
        return ops.lambda_returns(*rows, self.cfg.lam)

    def sync_target(self) -> None:
        self.target.copy(self.model.critic)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
