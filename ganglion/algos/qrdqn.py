"""Quantile regression Q-learning, QR-DQN (Dabney et al. 2018a): the distribution of returns as values at fixed
fractions.

Masks, memories, n-step sums and priorities are choices of observation, network and replay, as in DQN. All tensors are
[T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Share, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip


@register("algo", "qrdqn")
class QRDQNConfig(AlgoConfig):
    """Quantile regression Q-learning."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    quantiles: int = Field(50, ge=1, le=10_000)
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

    def build(self, spec: EnvSpec) -> QRDQN:
        return QRDQN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class QRDQN(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning of quantiles, each pulled by every quantile of the goal."""

    model: nn.QNet  # whose numbers per action are quantiles

    def __init__(self, cfg: QRDQNConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = nn.QNet(
            cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms, cfg.quantiles
        )
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)  # a coin and a random legal action per slot

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        quantiles, memory = self.model.value(obs, past)
        q = quantiles.mean(-1)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, cfg = mini.data, self.cfg
        with torch.no_grad():
            later, _ = self.target.value(t.next_obs, t.next_past)  # [S, B, A, n]
            chooser = self.model.value(t.next_obs, t.next_past)[0] if cfg.double else later
            best = ops.best(chooser.mean(-1), ops.mask(t.next_obs))
            after = ops.at(ops.pick_atoms(later, best), t.ahead)  # [T, B, n]
            goal = t.reward.unsqueeze(-1) + t.discount.unsqueeze(-1) * after
        quantiles = ops.pick_atoms(self.model.value(t.obs, t.past)[0], t.action)
        error = ops.quantile_huber(quantiles, ops.midpoints(cfg.quantiles, quantiles), goal, cfg.kappa)
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
