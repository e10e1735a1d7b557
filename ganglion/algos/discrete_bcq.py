"""Discrete batch-constrained Q-learning (Fujimoto et al. 2019, Benchmarking batch deep reinforcement learning): double
Q-learning among the actions that a copy of the behaviour finds probable enough.

All tensors are [T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, Share, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip


@register("algo", "discrete_bcq")
class DiscreteBCQConfig(AlgoConfig):
    """Discrete batch-constrained Q-learning."""

    actions = "discrete"
    lr: Rate = 3e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    threshold: float = Field(0.3, ge=0, le=1)  # least probability of a choice over that of the likeliest; 1: copying
    decay: NonNegative = 1e-2  # on the squares of the copy's logits
    loss: Literal["mse", "huber"] = "huber"
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions beside an environment, over the budget
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=128)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> DiscreteBCQ:
        return DiscreteBCQ(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class ValuesAndCopy(nn.Encoded):
    """obs -> values of actions, and logits of what the data does [T, B, A]; bodies of their own."""

    def __init__(self, cfg: DiscreteBCQConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        self.bodies = cfg.net.body(self.encoder.out, count=2)
        self.values = nn.LinearHead(self.bodies, actions, cfg.net.init)
        self.copy = nn.LinearHead(self.bodies, actions, cfg.net.init)

    def both(self, obs: Obs, past: Past) -> tuple[Tensor, Tensor, Memory]:
        features, memory = self.encode(obs, past)
        valued, copied = self.bodies(features).unbind()
        return self.values(valued), self.copy(copied), memory

    def value(self, obs: Obs, past: Past, action: Tensor | None = None) -> tuple[Tensor, Memory]:
        q, _, memory = self.both(obs, past)
        return q, memory


class DiscreteBCQ(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning that never considers what the data hardly does."""

    model: ValuesAndCopy

    def __init__(self, cfg: DiscreteBCQConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = ValuesAndCopy(cfg, spec, nn.discrete_actions(cfg, spec))
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr, max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, logits, memory = self.model.both(obs, past)
        legal = ops.mask(obs)
        valued = ops.blocked(q, self.usual(logits, legal))
        return Prediction(ops.Greedy(valued, legal), valued.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    def usual(self, logits: Tensor, legal: Tensor | None) -> Tensor:
        """Which choices the data makes often enough, [T, B, A] bool: the likeliest always."""
        likely = torch.log_softmax(ops.blocked(logits, legal), -1)
        apart = likely - likely.amax(-1, keepdim=True)
        enough = apart.exp() >= self.cfg.threshold
        return enough if legal is None else enough & legal.bool()

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        with torch.no_grad():
            chooser, logits, _ = self.model.both(t.next_obs, t.next_past)
            best = ops.best(chooser, self.usual(logits, ops.mask(t.next_obs)))
            after = ops.pick(self.target.value(t.next_obs, t.next_past)[0], best)
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        every, logits, _ = self.model.both(t.obs, t.past)
        q = ops.pick(every, t.action)
        error = q - goal
        td = ops.weighted_mean(ops.penalty(error, self.cfg.loss), w)
        likely = torch.log_softmax(ops.blocked(logits, ops.mask(t.obs)), -1)
        copied = -ops.weighted_mean(ops.pick(likely, t.action), w)
        size = ops.weighted_mean(logits.square().mean(-1), w)
        norm = self.optim.step(td + copied + self.cfg.decay * size)
        metrics = {"loss": td, "copied": copied, "q": ops.weighted_mean(q, w), "grad_norm": norm}
        priority = ops.sequence_priority(error.detach(), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
