"""Deep Q-learning (Mnih et al. 2015), double by default (van Hasselt et al. 2016); dueling (Wang et al. 2016),
n-step and prioritised (Schaul et al. 2016) on request, and with rates of exploration that differ by slot and priorities
that whoever explores computes (Horgan et al. 2018, Ape-X).

Convolutions and recurrence are choices of the network; n-step sums, sequences and priorities of the replay; action
masks of the observation: none of them appears in `learn`. All tensors are [T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig,
    BonusConfig,
    BufferConfig,
    Count,
    LimiterConfig,
    NonNegative,
    Positive,
    ProcessorConfig,
    Rate,
    Share,
    linear,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress,
    Recipe, Sample, Stateful, Transition, Update,
)  # fmt: skip


@register("algo", "dqn")
class DQNConfig(AlgoConfig):
    """Deep Q-learning."""

    actions = "discrete"
    lr: Rate = 2.5e-4
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    double: bool = True  # the online model chooses the next action, the target values it
    dueling: bool = False
    loss: Literal["mse", "huber"] = "huber"
    max_norm: Positive = 10.0
    target_every: Count = Field(500, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(1.0, 0.05, until=0.5)  # share of random actions, over the budget
    ladder: NonNegative = 0.0  # slot i of N explores with epsilon^(1 + ladder i / (N - 1)) (Ape-X: 7)
    hold: Positive = Field(1.0, ge=1)  # steps for which a slot keeps a random choice, on average (Dabney et al. 2021)
    net: nn.MLPConfig = nn.MLPConfig(hidden=(120, 84))
    replay: BufferConfig = buffers.ReplayConfig()
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=10, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()
    bonus: BonusConfig | None = None  # a second reward, for what is new

    def build(self, spec: EnvSpec) -> Algorithm[Any, Any]:
        made = DQN(self, spec)
        return made if self.bonus is None else self.bonus.build(made, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class QModel(nn.Encoded):
    """obs [T, B, ...] -> one value per action [T, B, A]."""

    def __init__(self, cfg: DQNConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        body = cfg.net.body(self.encoder.out)
        self.net = nn.Net(body, nn.QHead(body, actions, cfg.dueling))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.value(obs, past)  # it is chosen by these

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, past)
        return self.net(features), memory


class DQN(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning with a replay and a lagged target."""

    def __init__(self, cfg: DQNConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = QModel(cfg, spec, nn.discrete_actions(cfg, spec).n)
        self.target = nn.Lagged(self.model)
        self.optim = nn.Adam(self.model, lr=cfg.lr, max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon(at.fraction)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws, hold=self.cfg.hold)  # a coin and a random legal action per slot

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past)
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
        t = mini.data
        with torch.no_grad():
            next_q, _ = self.target.value(t.next_obs, t.next_past)
            chooser = self.model.value(t.next_obs, t.next_past)[0] if self.cfg.double else next_q
            after = ops.pick(next_q, ops.best(chooser, ops.mask(t.next_obs)))
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = ops.pick(self.model.value(t.obs, t.past)[0], t.action)
        error = q - goal
        loss = ops.weighted_mean(ops.penalty(error, self.cfg.loss), mini.weight)  # the weight once, whatever the loss
        norm = self.optim.step(loss)
        metrics = {"loss": loss.detach(), "q": ops.weighted_mean(q.detach(), mini.weight), "grad_norm": norm}
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}
