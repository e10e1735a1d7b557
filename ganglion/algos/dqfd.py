"""DQfD (Hester et al. 2018): deep Q-learning from demonstrations. Values of what was demonstrated are above all others
by a margin, and are then corrected by what the agent finds out itself.

A share of every batch is demonstrated (`data.path`, `data.share`), and so are the first updates (`data.pretrain`). All
tensors are [T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field

from ganglion import buffers, nn, ops
from ganglion.buffers.demonstrated import DEMO
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, Share, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip


@register("algo", "dqfd")
class DQfDConfig(AlgoConfig):
    """Deep Q-learning from demonstrations."""

    actions = "discrete"
    imitates: ClassVar[bool] = True
    lr: Rate = 2.5e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(10, ge=1, le=1_000)
    dueling: bool = False
    loss: Literal["mse", "huber"] = "huber"
    margin: NonNegative = 0.8  # by which a demonstrated action should be above the others
    weight_margin: NonNegative = 1.0  # of that loss
    decay: NonNegative = 1e-5  # on the squares of weights
    bonus_shown: NonNegative = 1.0  # added to the priorities of demonstrated rows
    bonus_own: NonNegative = 0.001  # added to those of own rows
    max_norm: Positive = 10.0
    target_every: Count = Field(500, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(0.1, 0.01, until=0.5)  # share of random actions, over the budget
    net: nn.MLPConfig = nn.MLPConfig(hidden=(120, 84))
    replay: BufferConfig = buffers.PrioritisedConfig(alpha=0.4, capacity=100_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> DQfD:
        return DQfD(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class DQfD(Algorithm[Sample[Transition], Sample[Transition]]):
    """Double Q-learning over n steps, with a margin where a row was demonstrated."""

    model: nn.QNet

    def __init__(self, cfg: DQfDConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = nn.QNet(cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms)
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr, max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.epsilon(knobs["epsilon"], noise)
        return Acted(action, {DEMO: torch.zeros_like(prediction.value)}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, cfg = mini.data, mini.weight, self.cfg
        shown = t.extras[DEMO]
        with torch.no_grad():
            chooser, later = (net.value(t.next_obs, t.next_past)[0] for net in (self.model, self.target.net))
            after = ops.pick(later, ops.best(chooser, ops.mask(t.next_obs)))
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        every = self.model.value(t.obs, t.past)[0]
        q = ops.pick(every, t.action)
        error = q - goal
        td = ops.weighted_mean(ops.penalty(error, cfg.loss), w)
        legal = ops.blocked(every, ops.mask(t.obs))
        margin = ops.weighted_mean(shown * ops.margin(legal, t.action, cfg.margin), w)
        size = sum((p.square().sum() for p in self.model.parameters()), torch.zeros_like(td))
        norm = self.optim.step(td + cfg.weight_margin * margin + cfg.decay * size)
        metrics = {"loss": td, "margin": margin, "q": ops.weighted_mean(q, w), "grad_norm": norm}
        priority = error.detach().abs() + torch.where(shown > 0, cfg.bonus_shown, cfg.bonus_own)
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(priority, w))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
