"""Neural fictitious self-play (Heinrich and Silver 2016): a best response by deep Q-learning, and the average of all
best responses so far by supervised learning.

An episode is played by the best response (with probability `anticipation`) or by the average, by each slot's own coin.
What the best response would do in its episodes goes to a reservoir, a uniform sample of all that it ever did; the
average policy is a classifier of these rows. Where every player does this, averages near an equilibrium of games of two
whose rewards sum to zero. The average is what is evaluated. All tensors are [T, B, ...]; T is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.reservoir import Reservoir
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, Positive, ProcessorConfig, RateSchedule, Share, constant, linear,
    register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Carried, Draw, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction,
    Progress, Recipe, Row, Sample, Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import feed_forward


@register("algo", "nfsp")
class NFSPConfig(AlgoConfig):
    """Neural fictitious self-play."""

    actions = "discrete"
    lr: RateSchedule = constant(1e-3)  # of the best response
    lr_average: RateSchedule = constant(1e-3)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(1.0, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    loss: Literal["mse", "huber"] = "mse"
    max_norm: Positive = 10.0
    target_every: Count = Field(300, ge=1)  # updates between two copies onto the target
    anticipation: float = Field(0.1, gt=0, le=1)  # share of the episodes that the best response plays
    epsilon: Share = linear(0.06, 0.001)  # share of random actions of the best response
    reservoir: int = Field(200_000, ge=2, le=100_000_000)  # rows of the best response that are kept, of all that were
    average_batch: int = Field(128, ge=1, le=1_000_000)  # of these, per update
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128,))
    replay: BufferConfig = buffers.ReplayConfig(capacity=200_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=64, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> NFSP:
        return NFSP(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, False), self.limiter)


class Averaged(NamedTuple):
    """The best response, and the average policy, which is what a player of this kind is."""

    best: ops.Greedy
    average: ops.Categorical

    def mode(self) -> Tensor:
        return self.average.mode()

    def log_prob(self, action: Tensor) -> Tensor:
        return self.average.log_prob(action)


class AverageModel(Model):
    """Values of the best response, and logits of the average policy: two networks with nothing in common."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__()
        self.values = nn.QNet(net, spec, actions, False, 0)
        self.policy = nn.QNet(net, spec, actions, False, 0)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.policy.value(obs, past)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        return self.values.value(obs, past)


class NFSP(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning against others, and a classifier of what it did."""

    model: AverageModel

    def __init__(self, cfg: NFSPConfig, spec: EnvSpec) -> None:
        feed_forward(cfg.kind, cfg.net)
        self.cfg, self.sync_every, self.coins = cfg, cfg.target_every, ops.Greedy.draws.uniform
        self.model = AverageModel(cfg.net, spec, nn.discrete_actions(cfg, spec))
        self.target = nn.Lagged(self.model.values)
        self.optim = nn.optimiser(cfg.optim, self.model.values, lr=cfg.lr(0.0), max_norm=cfg.max_norm)
        self.averager = nn.optimiser(cfg.optim, self.model.policy, lr=cfg.lr_average(0.0), max_norm=cfg.max_norm)
        self.reservoir = Reservoir(cfg.reservoir, spec.obs)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        cfg, now = self.cfg, at.fraction
        return {"epsilon": cfg.epsilon(now), "lr": cfg.lr(now), "lr_average": cfg.lr_average(now)}

    def draws(self) -> Draws:
        own = Draw(uniform=self.coins + 3)  # who plays the episode, the average's action, the reservoir's place
        return Draws(explore=own, update=Draw(uniform=self.cfg.average_batch))

    def carry(self, slots: int) -> Carried:
        """Whether the best response plays a slot's episode; -1: not yet drawn."""
        return (torch.full((1, slots), -1),)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        (q, _), (logits, memory), legal = self.model.value(obs, past), self.model.action(obs, past), ops.mask(obs)
        return Prediction(Averaged(ops.Greedy(q, legal), ops.Categorical(logits, legal)), q.amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        dist, (before,) = prediction.dist, prediction.carried
        who, act, lot = noise.uniform[..., self.coins :].unbind(-1)
        best = torch.where(before < 0, (who < self.cfg.anticipation).to(before.dtype), before)
        chosen = dist.average.sample(Noise(act[..., None], noise.normal))
        action = torch.where(best == 1, dist.best.epsilon(knobs["epsilon"], noise), chosen)
        extras = {"best": best == 1, "greedy": dist.best.mode(), "lot": lot}
        return Acted(action, extras, prediction.memory, (best,))

    # ------------------------------------------------------------ learning

    def observe(self, rows: Row) -> None:
        """The best response's rows go to the reservoir: what it would have done, without random actions."""
        super().observe(rows)
        counts = ops.decisions(rows.valid, rows.extras) & rows.extras["best"]
        obs, greedy, lot, counts = ops.map_tree(
            lambda x: x.flatten(0, 1), (rows.obs, rows.extras["greedy"], rows.extras["lot"], counts)
        )
        self.reservoir.push(obs, greedy, counts, lot)

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t = mini.data
        q = ops.pick(self.model.values.value(t.obs, t.past)[0], t.action)
        error = q - self.goal(t)
        loss = ops.weighted_mean(ops.penalty(error, self.cfg.loss), mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        surprise = self.average(noise.update.uniform)
        self.averager.step(surprise, knobs["lr_average"])
        metrics = {"loss": loss.detach(), "q": ops.weighted_mean(q.detach(), mini.weight), "grad_norm": norm}
        metrics |= {"average_loss": surprise.detach(), "reservoir": self.reservoir.seen.float()}
        return Update(metrics, ops.sequence_priority(error.detach(), mini.weight))

    @torch.no_grad()
    def goal(self, t: Transition) -> Tensor:
        """r + d max_a Q-(s', a), [T, B]."""
        later = self.target.value(t.next_obs, t.next_past)[0]
        return t.reward + t.discount * ops.at(ops.pick(later, ops.best(later, ops.mask(t.next_obs))), t.ahead)

    def average(self, uniform: Tensor) -> Tensor:
        """How surprised the average policy is by what best responses did."""
        obs, action, weight = self.reservoir.draw(uniform)
        logits, _ = self.model.policy.value(obs, Past((), torch.zeros_like(action, dtype=torch.bool)))
        return -ops.weighted_mean(ops.Categorical(logits, ops.mask(obs)).log_prob(action), weight)

    def sync_target(self) -> None:
        self.target.copy(self.model.values)

    def parts(self) -> Mapping[str, Stateful]:
        own: dict[str, Any] = {"model": self.model, "target": self.target, "optim": self.optim}
        return {**own, "averager": self.averager, "reservoir": self.reservoir}
