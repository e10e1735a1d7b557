"""Implicit quantile networks, IQN (Dabney et al. 2018b): returns at any percentile of their distribution.

Which percentiles are read is a choice of its own for the model, its target and acting. Masks, memories, n-step sums and
priorities are choices of observation, network and replay, as in DQN. All tensors are [T, B, ...]; T is 1 without a
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Config, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Share, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip
from ganglion.nn.quantiles import QuantileNet


class Percentiles(Config):
    """Which percentiles are read: drawn evenly for each row, middles of `count` equal parts, or the median alone."""

    sample: Literal["uniform", "const", "median"] = "uniform"
    count: int = Field(16, ge=1, le=1_000)

    @property
    def draws(self) -> int:
        return self.count if self.sample == "uniform" else 0

    def __call__(self, uniform: Tensor) -> Tensor:
        """Fractions [T, B, n], of `draws` random numbers per row."""
        if self.sample == "uniform":
            return uniform
        count = self.count if self.sample == "const" else 1
        return ops.midpoints(count, uniform).expand(*uniform.shape[:-1], count)


@register("algo", "iqn")
class IQNConfig(AlgoConfig):
    """Implicit quantile networks."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    percentiles: Percentiles = Percentiles()  # of the model, while learning
    target_percentiles: Percentiles = Percentiles()  # of the target
    act_percentiles: Percentiles = Percentiles(sample="const", count=32)  # that actions are chosen by
    cosines: int = Field(64, ge=1, le=10_000)  # that a percentile is shown as
    kappa: Positive = 1.0  # up to where errors are squared
    double: bool = True  # the online model chooses the next action, the target values it
    dueling: bool = False
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions, over the budget
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> IQN:
        return IQN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class IQN(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning of quantiles at percentiles that change from row to row."""

    model: QuantileNet

    def __init__(self, cfg: IQNConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = QuantileNet(
            cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms, cfg.cosines
        )
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def shares(self) -> list[int]:
        """How many random numbers a row needs for the model, the target and the choice of an action."""
        cfg = self.cfg
        return [p.draws for p in (cfg.percentiles, cfg.target_percentiles, cfg.act_percentiles)]

    def draws(self) -> Draws:
        acts = Draw(uniform=self.cfg.act_percentiles.draws)
        return Draws(acts, ops.Greedy.draws, learn=Draw(uniform=sum(self.shares())))

    def neutral(self, rows: Tensor) -> Noise:
        """Where nothing may be random percentiles are spread evenly."""
        still = super().neutral(rows)
        even = ops.midpoints(max(self.cfg.act_percentiles.draws, 1), still.uniform)
        return still._replace(uniform=even[: still.uniform.shape[-1]].expand_as(still.uniform))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        features, memory = self.model.features(obs, past)
        q = self.mean(self.model, features, noise.uniform)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def mean(self, net: QuantileNet, features: Tensor, uniform: Tensor) -> Tensor:
        """What actions are chosen by, [T, B, A]."""
        return net.quantiles(features, self.cfg.act_percentiles(uniform)).mean(-1)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, cfg, legal = mini.data, self.cfg, ops.mask(mini.data.next_obs)
        one, two, three = noise.uniform.split(self.shares(), -1)
        chooser = self.model if cfg.double else self.target.net
        with torch.no_grad():  # only of next rows that bootstrap: each row of t has numbers of its own
            choice = ops.at(chooser.features(t.next_obs, t.next_past)[0], t.ahead)
            legal = None if legal is None else ops.at(legal, t.ahead)
            best = ops.best(self.mean(chooser, choice, three), legal)
            later = ops.at(self.target.net.features(t.next_obs, t.next_past)[0], t.ahead)
            after = ops.pick_atoms(self.target.net.quantiles(later, cfg.target_percentiles(two)), best)
            goal = t.reward.unsqueeze(-1) + t.discount.unsqueeze(-1) * after  # [T, B, n']
        tau = cfg.percentiles(one)
        said = self.model.quantiles(self.model.features(t.obs, t.past)[0], tau)
        quantiles = ops.pick_atoms(said, t.action)  # [T, B, n]
        error = ops.quantile_huber(quantiles, tau, goal, cfg.kappa)
        loss = ops.weighted_mean(error, mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        metrics = {
            "loss": loss.detach(),
            "q": ops.weighted_mean(quantiles.detach().mean(-1), mini.weight),
            "spread": ops.weighted_mean(quantiles.detach().std(-1, correction=0), mini.weight),  # of the returns
            "grad_norm": norm,
        }
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
