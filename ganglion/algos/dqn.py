"""Deep Q-learning (Mnih et al. 2015), double by default (van Hasselt et al. 2016); dueling (Wang et al. 2016),
n-step, prioritised (Schaul et al. 2016), noisy (Fortunato et al. 2018) and Munchausen (Vieillard et al. 2020) on
request, conservative on datasets (Kumar et al. 2020), and with rates of exploration that differ by slot and priorities
that whoever explores computes (Horgan et al. 2018, Ape-X).

Convolutions and recurrence are choices of the network; n-step sums, sequences and priorities of the replay; action
masks of the observation: none of them appears in `learn`. All tensors are [T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig,
    RateSchedule, Share, linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Sample,
    Stateful, Transition, Update,
)  # fmt: skip


@register("algo", "dqn")
class DQNConfig(AlgoConfig):
    """Deep Q-learning."""

    actions = "discrete"
    lr: RateSchedule = linear(1e-3, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    double: bool = True  # the online model chooses the next action, the target values it
    dueling: bool = False
    loss: Literal["mse", "huber"] = "huber"
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    tau: float | None = Field(
        None, gt=0, le=1
    )  # instead of copies: how far the target moves to the model at every update
    noisy: NonNegative = 0.0  # spread of noisy weights at the start (0.5 in the paper); 0: none
    munchausen: float = Field(
        0.0, ge=0, le=1
    )  # weight of the log-probability added to rewards (0.9 in the paper); 0: none
    conservative: NonNegative = 0.0  # weight of CQL's penalty on actions that the data did not take; 0: none
    temperature: Positive = 0.03  # of the probabilities that Munchausen reads values as
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions, over the budget
    ladder: NonNegative = 0.0  # slot i of N explores with epsilon^(1 + ladder i / (N - 1)) (Ape-X: 7)
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps a random choice, on average (Dabney et al. 2021)
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> DQN:
        return DQN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class DQN(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning with a replay and a lagged target."""

    model: nn.QNet

    def __init__(self, cfg: DQNConfig, spec: EnvSpec) -> None:
        self.cfg, self.soft = cfg, cfg.munchausen > 0
        self.sync_every = cfg.target_every if cfg.tau is None else 0
        self.model = nn.QNet(
            cfg.net, spec, nn.discrete_actions(cfg, spec), cfg.dueling, cfg.replay.warms, noisy=cfg.noisy
        )
        self.target = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        noisy = Draw(normal=self.model.draws), Draw(normal=3 * self.model.draws)  # a slot's own; an update's
        return Draws(noisy[0], ops.Greedy.draws, update=noisy[1], hold=self.cfg.hold)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past, normal=noise.normal)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        dist, epsilon, extras = prediction.dist, knobs["epsilon"], {}
        if self.cfg.ladder:
            epsilon = ops.epsilon_ladder(dist.q.shape[1], epsilon, self.cfg.ladder, self.share)
        action = dist.epsilon(epsilon, noise)
        if self.cfg.replay.rated:  # then the error of a row is known before anyone learns from it
            extras = {"q": ops.pick(dist.q, action), "value": ops.pick(dist.q, dist.mode())}
        return Acted(action, extras, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, (now, *later) = mini.data, self.model.shares(noise, 3)
        with torch.no_grad():
            goal = self.soft_goal(t, later) if self.soft else self.goal(t, later)
        every = self.model.value(t.obs, t.past, normal=now)[0]
        q = ops.pick(every, t.action)
        error = q - goal
        loss = ops.weighted_mean(ops.penalty(error, self.cfg.loss), mini.weight)  # the weight once, whatever the loss
        if self.cfg.conservative:
            soft = ops.soft_value(every, 1.0, ops.mask(t.obs))
            loss = loss + self.cfg.conservative * ops.weighted_mean(soft - q, mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        if self.cfg.tau is not None:
            self.target.follow(self.model, self.cfg.tau)
        metrics = {"loss": loss.detach(), "q": ops.weighted_mean(q.detach(), mini.weight), "grad_norm": norm}
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    def goal(self, t: Transition, normal: Sequence[Tensor | None]) -> Tensor:
        """r + d Q-(s', a'), [T, B]."""
        next_q, _ = self.target.net.value(t.next_obs, t.next_past, normal=normal[0])
        double = self.cfg.double
        chooser = self.model.value(t.next_obs, t.next_past, normal=normal[1])[0] if double else next_q
        after = ops.pick(next_q, ops.best(chooser, ops.mask(t.next_obs)))
        return t.reward + t.discount * ops.at(after, t.ahead)

    def soft_goal(self, t: Transition, normal: Sequence[Tensor | None]) -> Tensor:
        """The same of a soft maximum, and the target's log-probability of what was done as a part of the reward."""
        warmth = self.cfg.temperature
        q, next_q = (
            self.target.net.value(obs, past, normal=own)[0]
            for obs, past, own in zip((t.obs, t.next_obs), (t.past, t.next_past), normal, strict=True)
        )
        bonus = ops.munchausen_bonus(q, t.action, warmth, legal=ops.mask(t.obs))
        after = ops.soft_value(next_q, warmth, ops.mask(t.next_obs))
        return t.reward + self.cfg.munchausen * bonus + t.discount * ops.at(after, t.ahead)

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
