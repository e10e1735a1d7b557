"""Value decomposition networks, VDN (Sunehag et al. 2018): agents that learn one value together, the sum of their own.

    Q(s, a_1 .. a_N) = sum_i Q_i(o_i, a_i)        goal = r + d sum_i max_a Q-_i(o'_i, a)

Each agent acts by its own part, the greedy actions of all are the greedy action of the sum, and one gradient of the
team's error reaches all of them. Agents share a network. Items are rollouts by copy: [T, C, N, ...], and [T, B, ...]
where the network reads them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import SUMS, TEAM, ByCopy, Pay
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Share, constant, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Sample, Stateful,
    Update,
)  # fmt: skip
from ganglion.ops.agents import CopyRows, by_copy, team_sum, whole


@register("algo", "vdn")
class VDNConfig(AlgoConfig):
    """Value decomposition networks."""

    actions = "discrete"
    lacks = TEAM | SUMS
    lr: RateSchedule = constant(5e-4)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.0, ge=0, le=1)  # of returns along a replayed sequence; 0: one step
    double: bool = True  # the online network chooses the next actions, the target values them
    optimism: float = Field(1.0, gt=0, le=1)  # weight of rows that were valued too high (Rashid et al. 2020); 1: as all
    dueling: bool = False
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    tau: float | None = Field(None, gt=0, le=1)  # instead of copies: how far the target moves at every update
    epsilon: Share = linear(1.0, 0.05, until=0.5)  # share of random actions, over the budget
    reward: Pay = "sum"  # of the agents: the team's
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=64)  # in rows of copies
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=16, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> VDN:
        return VDN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = self.replay.rollouts(self.gamma, 16 if self.net.recurrent else 1)
        return Recipe(self.processor, ByCopy(rollouts, self.reward), self.limiter)


class VDN(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Q-learning of a sum."""

    model: nn.QNet

    def __init__(self, cfg: VDNConfig, spec: EnvSpec) -> None:
        self.cfg, self.agents = cfg, len(spec.agents)
        self.sync_every = cfg.target_every if cfg.tau is None else 0
        self.model = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms)
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "epsilon": self.cfg.epsilon.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, seen = mini.data, whole(mini.data)
        every, _ = self.model.value(seen.obs, seen.past)  # [T + 1, B, A]
        own = ops.pick(by_copy(every, self.agents)[:-1], r.action)
        q = team_sum(own, r.extras["alive"])  # [T, C]
        with torch.no_grad():
            after = team_sum(self.best(every, seen)[1:], r.extras["survives"])
            goal = ops.lambda_returns(r.reward, after, r.discount, r.cut, self.cfg.lam)
            weight = torch.where(q > goal, mini.weight * self.cfg.optimism, mini.weight)
        error = q - goal
        loss = ops.weighted_mean(0.5 * error.square(), weight)
        norm = self.optim.step(loss, lr=knobs["lr"])
        if self.cfg.tau is not None:
            self.target.follow(self.model, self.cfg.tau)
        metrics = {"loss": loss.detach(), "q": ops.weighted_mean(q.detach(), mini.weight), "grad_norm": norm}
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    def best(self, every: Tensor, seen: CopyRows) -> Tensor:
        """What the target says of each agent's best action, [T + 1, C, N]."""
        target, _ = self.target.value(seen.obs, seen.past)
        choice = ops.best(every if self.cfg.double else target, ops.mask(seen.obs))
        return by_copy(ops.pick(target, choice), self.agents)

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
