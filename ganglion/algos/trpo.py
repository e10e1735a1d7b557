"""Trust region policy optimisation (Schulman et al. 2015) with generalised advantages (Schulman et al. 2016).

One step of the actor per rollout, along the natural gradient and as far as a divergence of `max_kl` allows; then some
steps of the critic, whose networks are its own. The search along the line tries every length and takes the first that
holds: nothing waits for the device. All tensors are [T, B, ...]; learning is along whole rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import FRESH, AlgoConfig, Count, NonNegative, Positive, ProcessorConfig, Rate, register
from ganglion.core import (
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Rollout, Stateful, Update,
)  # fmt: skip
from ganglion.nn.actor_and_critic import ActorAndCritic
from ganglion.torch_private import foreach_add_, foreach_copy_, foreach_mul

TINY = 1e-12  # what divisors are at least: where nothing is left to be gained, nothing moves


@register("algo", "trpo")
class TRPOConfig(AlgoConfig):
    """Trust region policy optimisation."""

    lacks = FRESH
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    horizon: Count = Field(128, ge=1)  # rows per slot and rollout
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    max_kl: Positive = 0.01  # between the actor before and after a step
    damping: NonNegative = 0.1  # added to the Fisher matrix's diagonal
    iterations: int = Field(10, ge=1, le=1_000)  # of conjugate gradients
    halvings: int = Field(10, ge=1, le=100)  # lengths that are tried, each half of the one before
    lr: Rate = 1e-3  # of the critic
    optim: nn.OptimConfig = nn.OptimConfig()
    value_steps: int = Field(10, ge=1, le=1_000)  # of the critic per rollout
    normalise_advantage: bool = True
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_lag: Count = Field(4, ge=0)  # rollouts behind which one of a remote explorer is dropped
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> TRPO:
        return TRPO(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), self.max_lag)


class TRPORollout(NamedTuple):
    """Rows with what the critic made of them."""

    obs: Obs
    past: Past
    action: Action
    advantage: Tensor
    goal: Tensor
    valid: Tensor


class NaturalGradient(nn.Optimiser):
    """Gradients bent by the inverse of the Fisher matrix, which is only ever multiplied with; it keeps nothing."""

    def kept(self) -> dict[str, list[Tensor]]:
        return {}

    def apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        """Moves parameters along a direction."""
        foreach_add_(self.params, foreach_mul(grads, lr))

    def flat(self, loss: Tensor, create_graph: bool = False) -> Tensor:
        """The gradient as one vector; what the loss does not depend on has none."""
        grads = torch.autograd.grad(loss, self.params, retain_graph=True, create_graph=create_graph, allow_unused=True)
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(self.params, grads, strict=True)]
        return torch.cat([g.flatten() for g in (whole if create_graph else self.reduce(whole))])

    def split(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split([p.numel() for p in self.params])
        return [part.view_as(p) for part, p in zip(parts, self.params, strict=True)]


class TRPO(Algorithm[Rollout, TRPORollout]):
    """An actor that goes as far as it may along the steepest way, and a critic that follows."""

    model: ActorAndCritic

    def __init__(self, cfg: TRPOConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec = cfg, spec
        self.model = ActorAndCritic(cfg.net, spec, cfg.log_std)
        self.natural = NaturalGradient(self.model.actor, lr=1.0)
        self.optim = nn.optimiser(cfg.optim, self.model.critic, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.action(obs, past)
        value, memory = self.model.value(obs, past._replace(memory=memory))
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), value, memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {"value": prediction.value}, prediction.memory)

    # ------------------------------------------------------------ learning

    @torch.no_grad()
    def prepare(self, r: Rollout) -> TRPORollout:
        value = r.extras["value"]
        last = self.predict(*r.last, self.neutral(value[:1])).value  # the dead row carries the true last observation
        after = torch.cat([value[1:], last])
        advantage = ops.gae(r.reward, value, after, r.discount, r.cut, self.cfg.lam)
        return TRPORollout(r.obs, r.past, r.action, advantage, advantage + value, r.valid)

    def learn(self, m: TRPORollout, knobs: Knobs, noise: Noise) -> Update:
        advantage = ops.normalise(m.advantage, m.valid) if self.cfg.normalise_advantage else m.advantage
        metrics = self.step(m._replace(advantage=advantage))
        for _ in range(self.cfg.value_steps):
            value, _ = self.model.value(m.obs, m.past)
            critic = ops.masked_mean(0.5 * (m.goal - value).square(), m.valid)
            norm = self.optim.step(critic)
        metrics |= {"value": critic, "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(m.goal))

    def step(self, m: TRPORollout) -> dict[str, Tensor]:
        """The natural gradient x of F x = g, as long as the trust region allows, then shorter until it holds."""
        natural, cfg = self.natural, self.cfg
        old = ops.detach(self.model.action(m.obs, m.past)[0])
        gain, kl, entropy = self.judge(m, old)
        slope = natural.flat(kl, create_graph=True)  # 0 here, but not its derivative: that is the Fisher matrix

        def product(v: Tensor) -> Tensor:
            with torch.enable_grad():
                along = slope @ v
            return natural.flat(along) + cfg.damping * v

        gradient = natural.flat(gain)
        x = conjugate_gradient(product, gradient, cfg.iterations)
        longest = (2 * cfg.max_kl / (x @ product(x)).clamp(min=TINY)).sqrt()
        with torch.no_grad():
            way = natural.split(longest * x)
            share, moved = self.search(m, old, gain, way)
        return {"gain": moved[0], "kl": moved[1], "share": share, "entropy": entropy}

    def judge(self, m: TRPORollout, old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the actor of now gains over the old one, how far it is from it, and its entropy."""
        before = ops.dist(old, self.spec.action, ops.mask(m.obs))
        now = ops.dist(self.model.action(m.obs, m.past)[0], self.spec.action, ops.mask(m.obs))
        ratio = (now.log_prob(m.action) - before.log_prob(m.action)).exp()
        gain = ops.masked_mean(ratio * m.advantage, m.valid)
        return gain, ops.masked_mean(before.kl(now), m.valid), ops.masked_mean(now.entropy(), m.valid)

    def search(
        self, m: TRPORollout, old: Tensor, least: Tensor, way: list[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The first share of the way, each half of the one before, that gains within the limit; 0 where none does."""
        params, start = self.natural.params, [p.clone() for p in self.natural.params]
        best, gained, far = (torch.zeros_like(least) for _ in range(3))
        for k in reversed(range(self.cfg.halvings)):  # the longest last: it wins where it holds
            foreach_copy_(params, start)
            self.natural.apply(way, 0.5**k)
            gain, kl, _ = self.judge(m, old)
            holds = (gain > least) & (kl <= self.cfg.max_kl)
            best = torch.where(holds, 0.5**k, best)
            gained, far = torch.where(holds, gain - least, gained), torch.where(holds, kl, far)
        foreach_copy_(params, start)
        self.natural.apply(way, best)
        return best, (gained, far)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "natural": self.natural, "optim": self.optim}


@torch.no_grad()
def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """x of A x = b for a positive definite A, by so many products with it."""
    x, rest, way = torch.zeros_like(b), b, b
    size = rest @ rest
    for _ in range(iterations):
        ahead = product(way)
        length = size / (way @ ahead).clamp(min=TINY)
        x, rest = x + length * way, rest - length * ahead
        before, size = size, rest @ rest
        way = rest + size / before.clamp(min=TINY) * way
    return x
