"""QMIX (Rashid et al. 2018): agents whose values a network mixes into one of the team, rising in each of them.

    Q(s, a_1 .. a_N) = w2(s) elu(W1(s) q + b1(s)) + b2(s),   q_i = Q_i(o_i, a_i),   W1, w2 >= 0

The mixer's weights are what small networks make of the central state. Since no weight is negative, each agent's greedy
action is its part of the team's. The loss is double Q-learning's, of the team's value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import elu

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import SUMS, TEAM, ByCopy, Pay
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Share, constant, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout,
    Sample, Stateful, Update,
)  # fmt: skip
from ganglion.nn.central import CentralEncoder
from ganglion.ops.agents import CopyRows, blank, by_copy, whole


@register("algo", "qmix")
class QMIXConfig(AlgoConfig):
    """Values of agents, mixed by the central state."""

    actions = "discrete"
    lacks = TEAM | SUMS
    lr: RateSchedule = constant(5e-4)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.0, ge=0, le=1)  # of returns along a replayed sequence; 0: one step
    double: bool = True  # the online network chooses the next actions, the target values them
    optimism: float = Field(1.0, gt=0, le=1)  # weight of rows that were valued too high (Rashid et al. 2020); 1: as all
    mixed: Count = Field(32, ge=1)  # units between the agents' values and the team's
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    tau: float | None = Field(None, gt=0, le=1)  # instead of copies: how far the target moves at every update
    epsilon: Share = linear(1.0, 0.05, until=0.5)  # share of random actions, over the budget
    reward: Pay = "sum"  # of the agents: the team's
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    mixer: nn.MLPConfig = nn.MLPConfig(hidden=(64,))  # from the state to the mixer's weights
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=64)  # in rows of copies
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=16, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> QMIX:
        return QMIX(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = self.replay.rollouts(self.gamma, 16 if self.net.recurrent else 1)
        return Recipe(self.processor, ByCopy(rollouts, self.reward), self.limiter)


class Mixer(Model):
    """The agents' values [T, C, N] and what is central -> the team's value [T, C]."""

    def __init__(self, cfg: QMIXConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.central = CentralEncoder(cfg.mixer, spec)
        self.body = cfg.mixer.body(self.central.out)
        self.agents, self.units = len(spec.agents), cfg.mixed
        self.sizes = [self.agents * cfg.mixed, cfg.mixed, cfg.mixed, 1]
        self.head = nn.LinearHead(self.body, sum(self.sizes))

    def forward(self, q: Tensor, copies: Obs, there: Tensor) -> Tensor:
        said = self.head(self.body(self.central(copies, there))[0])  # [T, C, ...]
        first, middle, last, offset = said.split(self.sizes, -1)
        hidden = (first.abs().unflatten(-1, (self.agents, self.units)) * q[..., None]).sum(-2)
        return (elu(hidden + middle) * last.abs()).sum(-1) + offset[..., 0]


class MixedQ(Model):
    """Values of each agent's actions, and of the team."""

    def __init__(self, cfg: QMIXConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.recurrent = cfg.net.recurrent
        self.own = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), False, cfg.replay.warms)
        self.mixer = Mixer(cfg, spec)

    def initial(self, slots: int) -> Memory:
        return self.own.initial(slots)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.own.action(obs, past)

    def value(self, obs: Obs, past: Past, action: object = None) -> tuple[Tensor, Memory]:
        return self.own.value(obs, past)


class QMIX(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Q-learning of a mixed value."""

    model: MixedQ

    def __init__(self, cfg: QMIXConfig, spec: EnvSpec) -> None:
        self.cfg, self.agents = cfg, len(spec.agents)
        self.sync_every = cfg.target_every if cfg.tau is None else 0
        self.model = MixedQ(cfg, spec)
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
        alive = r.extras["alive"]
        q = self.model.mixer(blank(own, alive), r.obs, alive)  # [T, C]
        with torch.no_grad():
            goal = ops.lambda_returns(r.reward, self.best(every, seen)[1:], r.discount, r.cut, self.cfg.lam)
            weight = torch.where(q > goal, mini.weight * self.cfg.optimism, mini.weight)
        error = q - goal
        loss = ops.weighted_mean(0.5 * error.square(), weight)
        norm = self.optim.step(loss, lr=knobs["lr"])
        if self.cfg.tau is not None:
            self.target.follow(self.model, self.cfg.tau)
        metrics = {"loss": loss.detach(), "q": ops.weighted_mean(q.detach(), mini.weight), "grad_norm": norm}
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    def best(self, every: Tensor, seen: CopyRows) -> Tensor:
        """What the target says of the team's best actions, [T + 1, C]."""
        target, _ = self.target.value(seen.obs, seen.past)
        choice = ops.best(every if self.cfg.double else target, ops.mask(seen.obs))
        own = by_copy(ops.pick(target, choice), self.agents)
        return self.target.net.mixer(blank(own, seen.there), seen.copies, seen.there)

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
