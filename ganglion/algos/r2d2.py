"""Recurrent replay, R2D2 (Kapturowski et al. 2019): double, dueling, n-step Q-learning of sequences.

A sequence starts from the memory that was stored with it, and its first rows only bring that up to date, without a
gradient; values are learned on another scale (Pohlen et al. 2018); priorities mix the largest and the mean error of a
sequence. All tensors are [T, B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, RateSchedule, Share, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "r2d2")
class R2D2Config(AlgoConfig):
    """Recurrent replay."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    dueling: bool = True
    rescale: NonNegative = 1e-3  # the linear part of the scale that values are learned on
    eta: float = Field(0.9, ge=0, le=1)  # of the largest error in a sequence's priority; the rest is of the mean
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions, over the budget
    ladder: NonNegative = 0.0  # slot i of N explores with epsilon^(1 + ladder i / (N - 1)) (in the paper 7)
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64,), memory="lstm", memory_size=64)
    replay: buffers.ReplayConfig = buffers.PrioritisedConfig(
        capacity=100_000, alpha=0.9, batch=32, sequence=24, burn_in=8
    )
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> R2D2:
        return R2D2(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class R2D2(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning with a memory, of sequences."""

    model: nn.QNet  # whose values are on the scale of ops.rescale

    def __init__(self, cfg: R2D2Config, spec: EnvSpec) -> None:
        if not cfg.net.recurrent:
            raise UserError("algo.net.memory: r2d2 needs a memory; accepted: lstm, gru. Without one: dqn.")
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms)
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-3)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)  # a coin and a random legal action per slot

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past)
        return Prediction(ops.Greedy(q, ops.mask(obs)), ops.unrescale(q.amax(-1), self.cfg.rescale), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        dist, epsilon = prediction.dist, knobs["epsilon"]
        if self.cfg.ladder:
            epsilon = ops.epsilon_ladder(dist.q.shape[1], epsilon, self.cfg.ladder, self.share)
        return Acted(dist.epsilon(epsilon, noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, weight, eps = mini.data, mini.weight, self.cfg.rescale
        with torch.no_grad():
            next_q, _ = self.target.value(t.next_obs, t.next_past)
            best = ops.best(self.model.value(t.next_obs, t.next_past)[0], ops.mask(t.next_obs))
            after = ops.unrescale(ops.at(ops.pick(next_q, best), t.ahead), eps)
            goal = ops.rescale(t.reward + t.discount * after, eps)
        q = ops.pick(self.model.value(t.obs, t.past)[0], t.action)  # rows of the burn-in have no gradient and no weight
        error = q - goal
        loss = ops.weighted_mean(0.5 * error.square(), weight)
        norm = self.optim.step(loss, knobs["lr"])
        value = ops.weighted_mean(ops.unrescale(q.detach(), eps), weight)
        metrics = {"loss": loss.detach(), "q": value, "grad_norm": norm}
        return Update(metrics, ops.sequence_priority(error.detach(), weight, self.cfg.eta))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
