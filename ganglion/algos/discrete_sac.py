"""Soft actor-critic for discrete actions (Christodoulou 2019): expectations over actions are sums, not samples.

All tensors are [T, B, ...]. Illegal actions have probability 0 and take no part in entropy or values.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig,
    BufferConfig,
    LimiterConfig,
    Positive,
    ProcessorConfig,
    Rate,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Recipe, Sample,
    Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import SoftActorCritics, of_actor, of_critics


@register("algo", "discrete_sac")
class DiscreteSACConfig(AlgoConfig):
    """Soft actor-critic for discrete actions."""

    actions = "discrete"
    lr: Rate = 3e-4  # of the actor and the temperature
    lr_critic: Rate = 3e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    temperature: Positive | None = None  # None: learned
    entropy: float = Field(0.5, ge=0, le=1)  # that is aimed at, as a share of the most possible
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> DiscreteSAC:
        return DiscreteSAC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class DiscreteSACActor(nn.Encoded):
    """obs -> a logit per action [T, B, A]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, actions: int, burn_in: int) -> None:
        super().__init__(net, spec.obs, burn_in)
        body = net.body(self.encoder.out)
        self.net = nn.Net(body, nn.LinearHead(body, actions))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_actor(past))
        return self.net(features), memory


class DiscreteSACCritics(nn.Encoded):
    """obs -> two values per action [2, T, B, A]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, actions: int, burn_in: int) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.body = net.body(self.encoder.out, count=2)
        self.head = nn.ValueHeads(self.body, actions)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_critics(past))
        return self.head(self.body(features)), memory


class DiscreteSAC(Algorithm[Sample[Transition], Sample[Transition]]):
    """A stochastic actor that seeks value and entropy at once."""

    model: SoftActorCritics[DiscreteSACCritics]

    def __init__(self, cfg: DiscreteSACConfig, spec: EnvSpec) -> None:
        self.cfg, self.actions, limit = cfg, nn.discrete_actions(cfg, spec), cfg.max_norm or inf
        actor = DiscreteSACActor(cfg.net, spec, self.actions, cfg.replay.warms)
        critics = DiscreteSACCritics(cfg.net, spec, self.actions, cfg.replay.warms)
        self.model = SoftActorCritics(actor, critics, cfg.temperature or 1.0)
        self.target = nn.Lagged(critics)
        self.actor_optim = nn.optimiser(cfg.optim, actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, critics, lr=cfg.lr_critic, max_norm=limit)
        self.warmth_optim = nn.Adam(self.model.warmth, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        return Draws(explore=ops.Categorical.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        logits, memory = self.model.act(obs, past)
        return Prediction(ops.Categorical(logits, ops.mask(obs)), ops.empty(logits), memory)

    def policy(self, obs: Obs, past: Past) -> ops.Categorical:
        """The same in `learn`, where nobody asks for the memory after it."""
        return ops.Categorical(self.model.action(obs, past)[0], ops.mask(obs))

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def wanted(self, obs: Obs, like: Tensor) -> Tensor:
        """The entropy that is aimed at in each row [T, B]: a share of what its legal actions allow."""
        legal = ops.mask(obs)
        count = torch.full_like(like, self.actions) if legal is None else legal.sum(-1).to(like.dtype)
        return self.cfg.entropy * count.log()

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        warmth = self.model.warmth["log"].exp()
        with torch.no_grad():
            later = self.policy(t.next_obs, t.next_past)
            q = self.target.value(t.next_obs, t.next_past)[0].amin(0)  # [T, B, A]
            after = ops.expected_value(q, later.probs()) + warmth * later.entropy()
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = self.model.value(t.obs, t.past)[0]  # [2, T, B, A]
        error = ops.pick(q, t.action.expand(q.shape[:-1])) - goal
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic)

        now = self.policy(t.obs, t.past)
        value, entropy = ops.expected_value(q.detach().amin(0), now.probs()), now.entropy()
        actor = -ops.weighted_mean(value + warmth.detach() * entropy, w)
        self.actor_optim.step(actor)
        if self.cfg.temperature is None:
            beyond = ops.weighted_mean(entropy.detach() - self.wanted(t.obs, entropy), w)
            self.warmth_optim.step(self.model.warmth["log"] * beyond)
        self.target.follow(self.model.critics, self.cfg.tau)

        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(value, w), "temperature": warmth}
        metrics |= {"entropy": ops.weighted_mean(entropy, w), "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
