"""Batch-constrained Q-learning (Fujimoto et al. 2019): only actions that a generative model of the data would take are
valued, each moved a little towards what the first critic prefers.

All tensors are [T, B, ...]; actions that are only looked at lie beside each other, [T, count B, ...]. Actions are
generated in units of half the range, around its middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Box, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Sample, Stateful,
    Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import ActorCritics, Critics, beside, bounded

CLOSE = 0.5  # codes that are decoded to actions lie within this of zero, where the data is dense


@register("algo", "bcq")
class BCQConfig(AlgoConfig):
    """Batch-constrained Q-learning."""

    actions = "bounded"
    lr: Rate = 1e-3  # of the perturbation
    optim: nn.OptimConfig = nn.OptimConfig()
    lr_critic: Rate = 1e-3
    lr_generator: Rate = 1e-3
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the targets follow
    looks: Count = Field(10, ge=1, le=1_000)  # generated actions of which the best one counts
    reach: NonNegative = 0.05  # how far a generated action is moved at most, in units of half the range
    least: float = Field(0.75, ge=0, le=1)  # weight of the lower critic in targets; the higher one has the rest
    kl: NonNegative = 0.5  # weight of the codes' divergence from a standard normal
    noise: NonNegative = 0.1  # deviation of training actions, in units of half the range
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> BCQ:
        return BCQ(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class Generator(nn.Encoded):
    """A conditional variational autoencoder of the actions that the data takes where something is seen."""

    def __init__(self, cfg: BCQConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(cfg.net, spec.obs)
        self.codes = 2 * space.size  # numbers of a code
        inward = cfg.net.body(self.encoder.out + space.size)
        outward = cfg.net.body(self.encoder.out + self.codes)
        self.inward = nn.Net(inward, nn.LinearHead(inward, 2 * self.codes))
        self.outward = nn.Net(outward, nn.LinearHead(outward, space.size))

    def code(self, features: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation of an action's code."""
        mean, spread = self.inward(torch.cat([features, unit], -1)).chunk(2, -1)
        return mean, spread.clamp(-4.0, 15.0)

    def decode(self, features: Tensor, code: Tensor) -> Tensor:
        return torch.tanh(self.outward(torch.cat([features, code], -1)))


class Perturbation(nn.Encoded):
    """Moves a generated action by at most `reach`, within its bounds."""

    def __init__(self, cfg: BCQConfig, spec: EnvSpec, space: Box) -> None:
        super().__init__(cfg.net, spec.obs)
        self.reach = cfg.reach
        body = cfg.net.body(self.encoder.out + space.size)
        self.net = nn.Net(body, nn.LinearHead(body, space.size))

    def moved(self, features: Tensor, unit: Tensor) -> Tensor:
        return (unit + self.reach * torch.tanh(self.net(torch.cat([features, unit], -1)))).clamp(-1.0, 1.0)


class GeneratingActorCritics(ActorCritics[Critics]):
    """The perturbation, the critics and the generator."""

    actor: Perturbation
    fixed: Tensor

    def __init__(self, actor: Perturbation, critics: Critics, generator: Generator, looks: int) -> None:
        super().__init__(actor, critics)
        self.generator = generator
        self.register_buffer(
            "fixed", torch.nn.init.normal_(torch.empty(looks * generator.codes))
        )  # codes of the actions it acts by


class BCQ(Algorithm[Sample[Transition], Sample[Transition]]):
    """A maximum over actions like those of the data."""

    model: GeneratingActorCritics

    def __init__(self, cfg: BCQConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec, cfg.net))
        generator, critics = Generator(cfg, spec, space), Critics(cfg.net, spec, space)
        self.model = GeneratingActorCritics(Perturbation(cfg, spec, space), critics, generator, cfg.looks)
        self.target, self.target_actor = nn.Lagged(critics), nn.Lagged(self.model.actor)
        limit = cfg.max_norm or inf
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, critics, lr=cfg.lr_critic, max_norm=limit)
        self.generator_optim = nn.optimiser(cfg.optim, generator, lr=cfg.lr_generator, max_norm=limit)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        codes = self.model.generator.codes
        return Draws(explore=Draw(normal=self.space.size), learn=Draw(normal=(self.cfg.looks + 2) * codes))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        """The best of some actions whose codes never change, so that the same is done where the same is seen."""
        codes = self.model.fixed.expand(*past.start.shape, -1)
        unit = self.candidates(self.model.actor, obs, past, codes)  # [T, looks B, A]
        q = self.judged(self.model.critics, obs, past, unit)[0].unflatten(1, (self.cfg.looks, -1))
        best = q.argmax(1, keepdim=True)[..., None]  # [T, 1, B, 1]
        unit = unit.unflatten(1, (self.cfg.looks, -1)).take_along_dim(best, 1).squeeze(1)
        return Prediction(ops.Sure(self.outside(unit)), q.amax(1), ())

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        chosen = prediction.dist.mode()
        low, high = ops.bounds(self.space, chosen)
        return Acted(ops.gaussian(chosen, noise.normal, self.cfg.noise, low, high), {}, prediction.memory)

    def candidates(self, actor: Perturbation, obs: Obs, past: Past, codes: Tensor) -> Tensor:
        """Some moved actions of each row, [T, count B, A], from the numbers of their codes, [T, B, count codes]."""
        count = codes.shape[-1] // self.model.generator.codes
        features = self.model.generator.encoder(obs, past)[0].repeat(1, count, 1)
        unit = self.model.generator.decode(features, beside(codes, count).clamp(-CLOSE, CLOSE))
        return actor.moved(actor.encoder(obs, past)[0].repeat(1, count, 1), unit)

    def judged(self, critics: Critics, obs: Obs, past: Past, unit: Tensor) -> Tensor:
        """What critics say of actions that lie beside each other, [2, T, count B]."""
        features = critics.encoder(obs, past)[0]
        return critics.nets(features.repeat(1, unit.shape[1] // features.shape[1], 1), self.outside(unit))

    def outside(self, unit: Tensor) -> Tensor:
        """Actions as the environment takes them."""
        shaped = unit.reshape(*unit.shape[:2], *self.space.shape)
        low, high = ops.bounds(self.space, shaped)
        return torch.lerp(low, high, 0.5 * (shaped + 1))

    def inside(self, action: Action) -> Tensor:
        low, high = ops.bounds(self.space, action)
        unit: Tensor = ((action - low) / (0.5 * (high - low)) - 1).flatten(2)
        return unit

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w, size = mini.data, mini.weight, self.model.generator.codes
        first, now, later = noise.normal.split([size, size, self.cfg.looks * size], -1)
        copied, spread = self.autoencoded(t, w, first)
        self.generator_optim.step(copied + self.cfg.kl * spread)
        with torch.no_grad():
            unit = self.candidates(self.target_actor.net, t.next_obs, t.next_past, later)
            judged = self.judged(self.target.net, t.next_obs, t.next_past, unit)
            mixed = torch.lerp(judged.amax(0), judged.amin(0), self.cfg.least)
            after = mixed.unflatten(1, (self.cfg.looks, -1)).amax(1)
            goal = t.reward + t.discount * ops.at(after, t.ahead)
            features = self.model.generator.encoder(t.obs, t.past)[0]
            drawn = self.model.generator.decode(features, now.clamp(-CLOSE, CLOSE))
        q = self.model.value(t.obs, t.past, t.action)[0]
        error = q - goal  # [2, T, B]
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic)
        moved = self.model.actor.moved(self.model.actor.encoder(t.obs, t.past)[0], drawn)
        actor = -ops.weighted_mean(self.model.critics.first(t.obs, t.past, self.outside(moved)), w)
        self.actor_optim.step(actor)
        self.target.follow(self.model.critics, self.cfg.tau)
        self.target_actor.follow(self.model.actor, self.cfg.tau)

        metrics = {"critic": critic, "actor": actor, "copied": copied, "kl": spread, "grad_norm": norm}
        metrics["q"] = ops.weighted_mean(q.mean(0), w)
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def autoencoded(self, t: Transition, w: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """How far the data's actions come back from their codes, and how far these are from a standard normal."""
        unit, features = self.inside(t.action), self.model.generator.encoder(t.obs, t.past)[0]
        mean, spread = self.model.generator.code(features, unit)
        back = self.model.generator.decode(features, mean + spread.exp() * normal)
        divergence = 0.5 * (mean.square() + (2 * spread).exp() - 1 - 2 * spread)
        return ops.weighted_mean((back - unit).square().mean(-1), w), ops.weighted_mean(divergence.mean(-1), w)

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        optims["generator_optim"] = self.generator_optim
        return {"model": self.model, "target": self.target, "target_actor": self.target_actor, **optims}
