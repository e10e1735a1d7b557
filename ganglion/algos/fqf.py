"""Fully parameterised quantile functions, FQF (Yang et al. 2019): IQN whose fractions are learned, not drawn.

Masks, memories, n-step sums and priorities are choices of observation, network and replay, as in DQN. All tensors are
[T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, RateSchedule,
    Share, linear, register,
)  # fmt: skip
from ganglion.core import (
    Action,
    Acted, Algorithm, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe, Sample,
    Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.quantiles import QuantileNet


@register("algo", "fqf")
class FQFConfig(AlgoConfig):
    """Fully parameterised quantile functions."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    lr_fractions: Rate = 2.5e-5  # of the network that proposes them
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    fractions: int = Field(32, ge=2, le=1_000)
    entropy: NonNegative = 0.001  # weight of keeping fractions apart
    cosines: int = Field(64, ge=1, le=10_000)  # that a fraction is shown as
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

    def build(self, spec: EnvSpec) -> FQF:
        return FQF(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class FQFModel(Model):
    """Quantiles at any fraction, and the fractions proposed for a state."""

    def __init__(self, cfg: FQFConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.net = QuantileNet(
            cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms, cfg.cosines
        )
        self.proposal = torch.nn.Linear(self.net.body.out, cfg.fractions)
        torch.nn.init.xavier_uniform_(self.proposal.weight, gain=0.01)  # nearly even
        torch.nn.init.zeros_(self.proposal.bias)
        self.recurrent = self.net.recurrent

    def initial(self, slots: int) -> Memory:
        return self.net.initial(slots)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.value(obs, past)  # it is chosen by these

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.net.features(obs, past)
        return self.mean(features), memory

    def mean(self, features: Tensor) -> Tensor:
        """The expected return: quantiles at the middles, each as wide as its fraction, [T, B, A]."""
        tau, middle = ops.fractions(self.proposal(features))
        return (self.net.quantiles(features, middle) * tau.diff(dim=-1).unsqueeze(-2)).sum(-1)


class FQF(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning of quantiles, at fractions moved to where they tell most."""

    model: FQFModel

    def __init__(self, cfg: FQFConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = FQFModel(cfg, spec)
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model.net, lr=cfg.lr(0.0), max_norm=cfg.max_norm)
        self.fraction_optim = nn.optimiser(cfg.optim, self.model.proposal, lr=cfg.lr_fractions, max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)  # a coin and a random legal action per slot

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        features, memory = self.model.net.features(obs, past)
        q = self.model.mean(features)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, cfg, model = mini.data, self.cfg, self.model
        features, _ = model.net.features(t.obs, t.past)
        logits = model.proposal(features.detach())
        tau, middle = ops.fractions(logits)  # [T, B, n + 1], [T, B, n]
        with torch.no_grad():
            goal = self.goal(t, middle)
            inner = ops.pick_atoms(model.net.quantiles(features, tau[..., 1:-1]), t.action)
        quantiles = ops.pick_atoms(model.net.quantiles(features, middle), t.action)
        error = ops.quantile_huber(quantiles, middle, goal, cfg.kappa)
        loss = ops.weighted_mean(error, mini.weight)
        misplaced = ops.weighted_mean(ops.fraction_loss(tau, inner, quantiles), mini.weight)
        entropy = ops.weighted_mean(ops.Categorical(logits).entropy(), mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        self.fraction_optim.step(misplaced - cfg.entropy * entropy)
        metrics = {
            "loss": loss,
            "q": ops.weighted_mean((quantiles * tau.diff(dim=-1)).sum(-1), mini.weight),
            "entropy": entropy,  # of the fractions' widths: log(fractions) where they are even
            "grad_norm": norm,
        }
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(error.detach(), mini.weight))

    def goal(self, t: Transition, middle: Tensor) -> Tensor:
        """r + d times the next state's quantiles at the same fractions, [T, B, n]."""
        chooser = self.model if self.cfg.double else self.target.net
        choice, _ = chooser.net.features(t.next_obs, t.next_past)
        best = ops.best(chooser.mean(choice), ops.mask(t.next_obs))
        later = ops.at(self.target.net.net.features(t.next_obs, t.next_past)[0], t.ahead)
        after = ops.pick_atoms(self.target.net.net.quantiles(later, middle), ops.at(best, t.ahead))
        return t.reward.unsqueeze(-1) + t.discount.unsqueeze(-1) * after

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"optim": self.optim, "fraction_optim": self.fraction_optim}
        return {"model": self.model, "target": self.target, **optims}
