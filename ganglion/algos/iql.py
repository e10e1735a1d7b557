"""Implicit Q-learning (Kostrikov et al. 2022): no action outside of the data is ever valued. An expectile of the data's
own values takes the place of a maximum, and the policy copies actions by their advantage.

All tensors are [T, B, ...]. Values, critics and actor take their turns in one `learn`, all from the parameters that it
began with; the target follows at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Action, Algorithm, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Recipe, Sample,
    Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import ActorCritics, Critics, MeanActor, StateValue, bounded


@register("algo", "iql")
class IQLConfig(AlgoConfig):
    """Implicit Q-learning."""

    actions = "bounded"
    lr: Rate = 3e-4  # of the actor
    optim: nn.OptimConfig = nn.OptimConfig()
    lr_critic: Rate = 3e-4  # of critics and values
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    expectile: float = Field(0.7, gt=0, lt=1)  # 0.5: the mean of the data's actions; towards 1: the best of them
    beta: NonNegative = 3.0  # how much an advantage counts in copying; 0: behaviour cloning
    max_weight: Positive = 100.0  # of an action in copying
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> IQL:
        return IQL(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class Networks(ActorCritics[Critics]):
    """An actor, critics, and the value of a state; what they remember is a third each of one memory."""

    def __init__(self, actor: MeanActor, critics: Critics, states: StateValue) -> None:
        super().__init__(actor, critics)
        self.states = states

    def initial(self, slots: int) -> Memory:
        return (*super().initial(slots), *self.states.initial(slots))

    def act(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        said, memory = super().act(obs, without_states(past))
        return (said, (*memory, *self.states.encode(obs, of_states(past))[1])) if self.recurrent else (said, memory)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return super().action(obs, without_states(past))

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        return super().value(obs, without_states(past), action)

    def worth(self, obs: Obs, past: Past) -> Tensor:
        """Of a state, [T, B]."""
        return self.states.value(obs, of_states(past))[0]


def without_states(past: Past) -> Past:
    return past._replace(memory=past.memory[: 2 * len(past.memory) // 3])


def of_states(past: Past) -> Past:
    return past._replace(memory=past.memory[2 * len(past.memory) // 3 :])


class IQL(Algorithm[Sample[Transition], Sample[Transition]]):
    """Critics that learn from the value of the next state, which is an expectile of what they say of the data."""

    model: Networks

    def __init__(self, cfg: IQLConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec))
        warms = cfg.replay.warms
        critics = Critics(cfg.net, spec, space, burn_in=warms)
        states = StateValue(cfg.net, spec, warms)
        self.model = Networks(MeanActor(cfg.net, spec, space, burn_in=warms), critics, states)
        self.target = nn.Lagged(self.model.critics)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)
        self.value_optim = nn.optimiser(cfg.optim, self.model.states, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        return Draws(explore=Draw(normal=self.space.size))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        return Prediction(ops.dist(raw, self.space), self.model.worth(obs, past), memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        with torch.no_grad():
            judged = self.target.value(t.obs, without_states(t.past), t.action)[0].amin(0)
            goal = t.reward + t.discount * ops.at(self.model.worth(t.next_obs, t.next_past), t.ahead)
        value = self.model.worth(t.obs, t.past)
        advantage = judged - value
        expectile = ops.weighted_mean(self.skewed(advantage), w)
        q = self.model.value(t.obs, t.past, t.action)[0]
        error = q - goal  # [2, T, B]
        critic = ops.weighted_mean(error.square().sum(0), w)
        copied = (self.cfg.beta * advantage.detach()).exp().clamp(max=self.cfg.max_weight)
        logp = ops.dist(self.model.action(t.obs, t.past)[0], self.space).log_prob(t.action)
        actor = -ops.weighted_mean(copied * logp, w)

        self.value_optim.step(expectile)
        norm = self.critic_optim.step(critic)
        self.actor_optim.step(actor)
        self.target.follow(self.model.critics, self.cfg.tau)
        metrics = {"critic": critic, "value_loss": expectile, "actor": actor, "q": ops.weighted_mean(q.mean(0), w)}
        metrics |= {"value": ops.weighted_mean(value, w), "weight": ops.weighted_mean(copied, w), "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def skewed(self, error: Tensor) -> Tensor:
        """Squares of which those of one sign count more: its least mean is an expectile."""
        side = torch.where(error > 0, self.cfg.expectile, 1 - self.cfg.expectile)
        return side * error.square()

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "value_optim": self.value_optim}
        return {"model": self.model, "target": self.target, **optims}
