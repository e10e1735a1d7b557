"""Categorical deep Q-learning, C51 (Bellemare et al. 2017): the distribution of returns as masses on fixed atoms.

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
    AlgoConfig, BufferConfig, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Real, Share, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "c51")
class C51Config(AlgoConfig):
    """Categorical deep Q-learning."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    atoms: int = Field(101, ge=2, le=10_000)
    low: Real = -100.0  # the first atom: no return should be below it
    high: Real = 100.0  # the last one: nor above
    double: bool = True  # the online model chooses the next action, the target values it
    dueling: bool = False
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions, over the budget
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> C51:
        return C51(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class C51(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning of distributions, compared atom by atom."""

    model: nn.QNet  # whose numbers per action are logits of the atoms

    def __init__(self, cfg: C51Config, spec: EnvSpec) -> None:
        if cfg.low >= cfg.high:
            raise UserError(f"algo.low: {cfg.low} should be less than algo.high = {cfg.high}.")
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms, cfg.atoms)
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    def support(self, like: Tensor) -> Tensor:
        return ops.atoms(self.cfg.low, self.cfg.high, self.cfg.atoms, like)

    def mean(self, logits: Tensor) -> Tensor:
        """The expected return of each action: [T, B, A, n] -> [T, B, A]."""
        return ops.from_two_hot(logits.softmax(-1), self.support(logits))

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)  # a coin and a random legal action per slot

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        logits, memory = self.model.value(obs, past)
        q = self.mean(logits)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t = mini.data
        with torch.no_grad():
            later, _ = self.target.value(t.next_obs, t.next_past)
            chooser = self.model.value(t.next_obs, t.next_past)[0] if self.cfg.double else later
            best = ops.best(self.mean(chooser), ops.mask(t.next_obs))
            after = ops.at(ops.pick_atoms(later, best), t.ahead).softmax(-1)  # [T, B, n]
            goal = ops.project(t.reward, t.discount, self.support(after), after)
        logits = ops.pick_atoms(self.model.value(t.obs, t.past)[0], t.action)
        error = ops.categorical_td(logits, goal)
        loss = ops.weighted_mean(error, mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        metrics = {
            "loss": loss.detach(),
            "q": ops.weighted_mean(self.mean(logits.detach()), mini.weight),
            "edge": ops.weighted_mean(goal[..., 0] + goal[..., -1], mini.weight),  # high: low and high are too near
            "grad_norm": norm,
        }
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
