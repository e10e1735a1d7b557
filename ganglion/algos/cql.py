"""Conservative Q-learning (Kumar et al. 2020) on soft actor-critic: critics say less of actions that the data did not
take. Of discrete actions the same is a setting of DQN, `conservative`.

All tensors are [T, B, ...]; actions that are only looked at lie beside each other, [T, count B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, Real, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Sample, Stateful, Transition,
    Update,
)  # fmt: skip
from ganglion.nn.actor_critics import Critics, GaussianActor, SoftActorCritics, beside, bounded, cycled, of_critics


@register("algo", "cql")
class CQLConfig(AlgoConfig):
    """Conservative Q-learning."""

    actions = "bounded"
    lr: Rate = 1e-4  # of the actor and the temperature
    optim: nn.OptimConfig = nn.OptimConfig()
    lr_critic: Rate = 3e-4
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    conservative: NonNegative = 5.0  # weight of the penalty; 0: soft actor-critic
    looks: int = Field(10, ge=1, le=1_000)  # actions of each of three sorts that the penalty looks at
    temperature: Positive | None = None  # None: learned
    target_entropy: Real | None = None  # None: minus the number of action components
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> CQL:
        return CQL(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class CQL(Algorithm[Sample[Transition], Sample[Transition]]):
    """Soft actor-critic whose critics are lowered where the policy would go and the data did not."""

    model: SoftActorCritics[Critics]

    def __init__(self, cfg: CQLConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec))
        self.goal_entropy = -float(space.size) if cfg.target_entropy is None else cfg.target_entropy
        warms = cfg.replay.warms
        actor, critics = GaussianActor(cfg.net, spec, space, warms), Critics(cfg.net, spec, space, burn_in=warms)
        self.model = SoftActorCritics(actor, critics, cfg.temperature or 1.0)
        self.target = nn.Lagged(self.model.critics)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)
        self.warmth_optim = nn.Adam(self.model.warmth, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        n, looks = self.space.size, self.cfg.looks
        return Draws(explore=Draw(normal=n), learn=Draw(uniform=looks * n, normal=2 * (1 + looks) * n))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        nothing = ops.empty(raw)  # critics need an action: a state alone has no value here
        return Prediction(ops.dist(raw, self.space, squash=True), nothing, memory)

    def policy(self, obs: Obs, past: Past) -> ops.TanhNormal:
        """The same in `learn`, where nobody asks for the memory after it."""
        dist: ops.TanhNormal = ops.dist(self.model.action(obs, past)[0], self.space, squash=True)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, n = mini.data, mini.weight, self.space.size
        later, now, here, there = noise.normal.split([n, n, self.cfg.looks * n, self.cfg.looks * n], -1)
        warmth = self.model.warmth["log"].exp()
        with torch.no_grad():
            dist = self.policy(t.next_obs, t.next_past)  # of the current actor
            action, logp = dist.sample_and_log_prob(Noise(noise.uniform, cycled(later, dist.mean.shape[0])))
            after = self.target.value(t.next_obs, t.next_past, action)[0].amin(0) - warmth * logp
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = self.model.value(t.obs, t.past, t.action)[0]
        error = q - goal  # [2, T, B]
        gap = ops.weighted_mean((self.soft_maximum(t, noise.uniform, here, there) - q).sum(0), w)
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic + self.cfg.conservative * gap)

        action, logp = self.policy(t.obs, t.past).sample_and_log_prob(Noise(noise.uniform, now))
        actor = ops.weighted_mean(warmth.detach() * logp - self.model.value(t.obs, t.past, action)[0].amin(0), w)
        self.actor_optim.step(actor)
        entropy = -ops.weighted_mean(logp.detach(), w)
        if self.cfg.temperature is None:
            self.warmth_optim.step(self.model.warmth["log"] * (entropy - self.goal_entropy))
        self.target.follow(self.model.critics, self.cfg.tau)

        metrics = {"critic": critic, "gap": gap, "actor": actor, "q": ops.weighted_mean(q.mean(0), w)}
        metrics |= {"entropy": entropy, "temperature": warmth, "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def soft_maximum(self, t: Transition, uniform: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """log of the integral of exp Q(s, a) over actions, [2, T, B]: estimated with actions drawn evenly, by the
        policy at this state and by the policy at the next, each divided by its density."""
        looks, rows = self.cfg.looks, t.reward.shape
        with torch.no_grad():
            anywhere = ops.anywhere(self.space, beside(uniform, looks))
            low, high = ops.bounds(self.space, anywhere)
            even = -(high - low).log().sum().expand(rows[0], looks * rows[1])
            raws = self.model.action(t.obs, t.past)[0], self.model.action(t.next_obs, t.next_past)[0][: rows[0]]
            own, next_own = (self.several(raw, normal) for raw, normal in zip(raws, (here, there), strict=True))
            action = torch.cat([anywhere, own[0], next_own[0]], 1)
            density = torch.cat([even, own[1], next_own[1]], 1)
        features = self.model.critics.encode(t.obs, of_critics(t.past))[0]
        q = self.model.critics.nets(features.repeat(1, 3 * looks, 1), action) - density
        return q.unflatten(2, (3 * looks, rows[1])).logsumexp(2) - log(3 * looks)

    def several(self, raw: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """`looks` actions of each row beside each other, and the logarithms of their densities."""
        dist = ops.dist(raw.repeat(1, self.cfg.looks, 1), self.space, squash=True)
        action, logp = dist.sample_and_log_prob(Noise(normal, beside(normal, self.cfg.looks)))
        return action, logp

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
