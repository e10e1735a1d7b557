"""FlashSAC (Kim et al. 2026): soft actor-critic whose weights, features and targets have bounded norms.

All tensors are [T, B, ...]. Networks are residual with batch norms, features RMS-normalised, weights projected to unit
norm after each step; critics say a distribution of returns on fixed atoms, over rewards scaled to fit them. `learn`
moves the critics and their target; every `delay` updates `learn_late` moves the actor and the temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import e, log, pi

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig,
    BufferConfig,
    Count,
    LimiterConfig,
    Positive,
    ProcessorConfig,
    RateSchedule,
    linear,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Box, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Recipe,
    Row, Sample, Stateful, Transition, Update,
)  # fmt: skip
from ganglion.errors import UserError
from ganglion.nn.actor_critics import (
    SoftActorCritics, bounded, of_actor, of_critics, squashed, together, with_memory,
)  # fmt: skip
from ganglion.nn.norms import BoundedRewardScale, ResidualMLP


@register("algo", "flashsac")
class FlashSACConfig(AlgoConfig):
    """FlashSAC: soft actor-critic with bounded norms."""

    actions = "bounded"
    lr: RateSchedule = linear(3e-4, 1.5e-4)  # of everything
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.01, le=1)  # how fast the target follows
    delay: Count = Field(2, ge=1)  # updates of the critics per update of the actor and the temperature
    atoms: int = Field(101, ge=2, le=10_000)  # on which critics say how returns are distributed
    limit: Positive = 5.0  # atoms reach from -limit to limit; rewards are scaled so that returns stay within
    temperature: Positive = 0.01  # at the start
    spread: Positive = 0.15  # the entropy that is aimed at: of a normal of this deviation, in units of half the range
    hold: Positive = Field(4.0, ge=1)  # steps for which a slot keeps its noise, on average
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))  # of the actor: a residual block per layer, all of one width
    net_critic: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=512)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=5_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> FlashSAC:
        return FlashSAC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class FlashSACActor(nn.Encoded):
    """obs -> mean and log deviation of each action component, before squashing [T, B, 2 * A]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, space: Box, burn_in: int) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.net = ResidualMLP(1, self.encoder.out, net.hidden[0], len(net.hidden), 2 * space.size)

    def action(self, obs: Obs, past: Past, live: Tensor | None = None) -> tuple[Tensor, Memory]:
        """By running statistics, or by those of `live` rows, which move the running ones."""
        features, memory = self.encode(obs, of_actor(past))
        mean, spread = self.net(features, live, move=True)[0].chunk(2, -1)
        return squashed(mean, spread, least=-10.0), memory


class FlashSACCritics(nn.Encoded):
    """obs and action -> two values [2, T, B], or the logits behind them [2, T, B, atoms]."""

    def __init__(self, cfg: FlashSACConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(with_memory(cfg.kind, cfg.net, cfg.net_critic, cfg.n_step), spec.obs, cfg.replay.warms)
        size, blocks = cfg.net_critic.hidden[0], len(cfg.net_critic.hidden)
        self.cfg, self.nets = cfg, ResidualMLP(2, self.encoder.out + space.size, size, blocks, cfg.atoms)

    def logits(self, obs: Obs, past: Past, action: Tensor, live: Tensor | None, move: bool = False) -> Tensor:
        return self.judged(self.encode(obs, of_critics(past))[0], action, live, move)

    def judged(self, features: Tensor, action: Tensor, live: Tensor | None = None, move: bool = False) -> Tensor:
        return self.nets(torch.cat([features, action.reshape(*features.shape[:2], -1)], -1), live, move)

    def mean(self, logits: Tensor) -> Tensor:
        return (logits.softmax(-1) * self.support(logits)).sum(-1)

    def support(self, like: Tensor) -> Tensor:
        return ops.atoms(-self.cfg.limit, self.cfg.limit, self.cfg.atoms, like)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        assert action is not None
        features, memory = self.encode(obs, of_critics(past))
        return self.mean(self.judged(features, action)), memory


class FlashSAC(Algorithm[Sample[Transition], Sample[Transition]]):
    """A stochastic actor that seeks entropy and the lower of two mean returns."""

    model: SoftActorCritics[FlashSACCritics]

    def __init__(self, cfg: FlashSACConfig, spec: EnvSpec) -> None:
        for name, net in (("net", cfg.net), ("net_critic", cfg.net_critic)):
            if len(set(net.hidden)) != 1:
                raise UserError(f"algo.{name}.hidden: residual blocks should be of one width, got {list(net.hidden)}.")
        self.cfg, self.late_every = cfg, cfg.delay
        self.space = space = bounded(cfg, spec)
        edges = (x * (space.size // len(x)) for x in (space.low, space.high))
        halves = (0.5 * (high - low) for low, high in zip(*edges, strict=True))
        self.goal_entropy = sum(0.5 * log(2 * pi * e) + log(cfg.spread * half) for half in halves)
        self.actor, critics = FlashSACActor(cfg.net, spec, space, cfg.replay.warms), FlashSACCritics(cfg, spec, space)
        self.model = SoftActorCritics(self.actor, critics, cfg.temperature)
        self.target = nn.Lagged(critics)
        self.scale = BoundedRewardScale(spec.slots, cfg.gamma, cfg.limit)
        lr = cfg.lr(0.0)
        self.actor_optim, self.critic_optim = (
            nn.optimiser(cfg.optim, self.actor, lr=lr),
            nn.optimiser(cfg.optim, critics, lr=lr),
        )
        self.warmth_optim = nn.Adam(self.model.warmth, lr=lr)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        n = self.space.size
        return Draws(explore=Draw(uniform=n, normal=n), learn=Draw(normal=2 * n), hold=self.cfg.hold)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        return Prediction(ops.dist(raw, self.space, squash=True), ops.empty(raw), memory)

    def policy(self, obs: Obs, past: Past) -> ops.TanhNormal:
        """The same in `learn`, where nobody asks for the memory after it."""
        dist: ops.TanhNormal = ops.dist(self.model.action(obs, past)[0], self.space, squash=True)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen, anything = prediction.dist.sample(noise), ops.anywhere(self.space, noise.uniform)
        return Acted(torch.where(knobs["random"] > 0, anything, chosen), {}, prediction.memory)

    def observe(self, rows: Row) -> None:
        super().observe(rows)
        self.scale.observe(rows)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, critics = mini.data, mini.weight, self.model.critics
        live, later = (w > 0).float(), Noise(noise.uniform, noise.normal.chunk(2, -1)[0])
        reward = self.scale(t.reward)
        with torch.no_grad():
            action, logp = self.policy(t.next_obs, t.next_past).sample_and_log_prob(later)
            # this row and the next are normalised as one batch: the target by its own statistics, which stay unread
            both = *together(t), torch.cat([t.action, action], 1), torch.cat([live, live], 1)
            after = self.target.net.logits(*both).chunk(2, 2)[1]  # [2, T, B, atoms]
            after = torch.where((critics.mean(after).diff(dim=0) < 0)[0][..., None], after[1], after[0]).softmax(-1)
            bonus = t.discount * ops.at(self.model.warmth["log"].exp() * logp, t.ahead)
            goal = ops.project(reward - bonus, t.discount, critics.support(after), ops.at(after, t.ahead))
        logits = critics.logits(*both, move=True).chunk(2, 2)[0]
        rows = ops.categorical_td(logits, goal.expand_as(logits)).mean(0)  # [T, B]
        critic = ops.weighted_mean(rows, w)
        norm = self.critic_optim.step(critic, knobs["lr"])
        critics.nets.project()
        self.target.follow(critics, self.cfg.tau)
        q = ops.weighted_mean(critics.mean(logits).mean(0), w)
        metrics = {"critic": critic, "q": q, "reward": ops.weighted_mean(reward, w), "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(rows, w))

    def learn_late(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        t, w, warmth = mini.data, mini.weight, self.model.warmth["log"].exp()
        live, now = (w > 0).float(), Noise(noise.uniform, noise.normal.chunk(2, -1)[1])
        raw = self.actor.action(*together(t), torch.cat([live, live], 1))[0].chunk(2, 1)[0]
        action, logp = ops.dist(raw, self.space, squash=True).sample_and_log_prob(now)
        value = self.model.value(t.obs, t.past, action)[0].amin(0)
        actor = ops.weighted_mean(warmth.detach() * logp - value, w)
        self.actor_optim.step(actor, knobs["lr"])
        self.actor.net.project()
        entropy = -ops.weighted_mean(logp.detach(), w)
        self.warmth_optim.step(warmth * (entropy - self.goal_entropy), knobs["lr"])
        return {"actor": actor.detach(), "entropy": entropy, "temperature": warmth.detach()}

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, "scale": self.scale, **optims}
