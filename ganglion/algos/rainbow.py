"""Rainbow (Hessel et al. 2018): categorical returns, double, dueling, n-step, prioritised, with noisy layers.

None of it is of its own: the network's head is dueling, categorical and noisy, the replay sums n steps and has
priorities. All tensors are [T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Real, Share, constant,
    linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "rainbow")
class RainbowConfig(AlgoConfig):
    """Rainbow."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    atoms: int = Field(101, ge=2, le=10_000)
    low: Real = -100.0  # the first atom: no return should be below it
    high: Real = 100.0  # the last one: nor above
    noisy: Positive = 0.5  # spread of noisy weights at the start
    dueling: bool = True
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    epsilon: Share = constant(0.0)  # share of random actions beside the noise
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.PrioritisedConfig(alpha=0.5, capacity=100_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> Rainbow:
        return Rainbow(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class Rainbow(Algorithm[Sample[Transition], Sample[Transition]]):
    """Distributions of returns, explored by what the network is unsure of."""

    model: nn.QNet  # whose numbers per action are logits of the atoms

    def __init__(self, cfg: RainbowConfig, spec: EnvSpec) -> None:
        if cfg.low >= cfg.high:
            raise UserError(f"algo.low: {cfg.low} should be less than algo.high = {cfg.high}.")
        self.cfg, self.sync_every = cfg, cfg.target_every
        actions = nn.discrete_actions(cfg, spec)
        self.model = nn.QNet(cfg.net, spec, actions, cfg.dueling, cfg.replay.warms, cfg.atoms, cfg.noisy)
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    def support(self, like: Tensor) -> Tensor:
        return ops.atoms(self.cfg.low, self.cfg.high, self.cfg.atoms, like)

    def q(self, logits: Tensor) -> Tensor:
        """[T, B, A, n] -> [T, B, A]."""
        return ops.from_two_hot(logits.softmax(-1), self.support(logits))

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        noisy = Draw(normal=self.model.draws), Draw(normal=3 * self.model.draws)  # a slot's own; an update's
        return Draws(noisy[0], ops.Greedy.draws, update=noisy[1])

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        logits, memory = self.model.value(obs, past, normal=noise.normal)
        q = self.q(logits)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, (one, two, three) = mini.data, self.model.shares(noise, 3)
        with torch.no_grad():
            later, _ = self.target.net.value(t.next_obs, t.next_past, normal=two)
            chooser, _ = self.model.value(t.next_obs, t.next_past, normal=three)
            best = ops.best(self.q(chooser), ops.mask(t.next_obs))
            after = ops.at(ops.pick_atoms(later, best), t.ahead).softmax(-1)  # [T, B, n]
            goal = ops.project(t.reward, t.discount, self.support(after), after)
        logits = ops.pick_atoms(self.model.value(t.obs, t.past, normal=one)[0], t.action)
        error = ops.categorical_td(logits, goal)
        surprise = error.detach() + torch.xlogy(goal, goal).sum(-1)  # KL: what is left of it once all is known is 0
        loss = ops.weighted_mean(error, mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        metrics = {
            "loss": loss.detach(),
            "kl": ops.weighted_mean(surprise, mini.weight),
            "q": ops.weighted_mean(self.q(logits.detach()), mini.weight),
            "edge": ops.weighted_mean(goal[..., 0] + goal[..., -1], mini.weight),  # high: low and high are too near
            "grad_norm": norm,
        }
        return Update(metrics, ops.sequence_priority(surprise, mini.weight))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
