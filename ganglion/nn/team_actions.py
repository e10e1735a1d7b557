"""Actions of agents as a central critic reads them, and how gradients pass through them: choices one-hot, relaxed by
the Gumbel-softmax of Jang et al. (2017), and real numbers within their bounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.config import AlgoConfig
from ganglion.core import Box, Discrete, Draw, EnvSpec, Memory, Noise, Obs, Past
from ganglion.nn.actor_critics import squashed
from ganglion.nn.heads import check_mask
from ganglion.nn.inputs import one_hot
from ganglion.nn.layers import LinearHead
from ganglion.nn.nets import Encoded, MLPConfig, Net

LEAST = 1e-7  # of a random number whose logarithm is taken


class TeamActor(Encoded):
    """What an agent sees -> the raw parameters of its action, [T, B, outputs]."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, numbers: int, burn_in: int = 0) -> None:
        super().__init__(net, spec.obs, burn_in)
        body = net.body(self.encoder.out)
        self.net = Net(body, LinearHead(body, numbers))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, past)
        return self.net(features), memory


class OneHotChoices:
    """A choice among n; critics read it one-hot."""

    def __init__(self, n: int) -> None:
        self.size = self.outputs = n  # numbers that a critic reads, and that an actor says
        self.exploring, self.relaxing = Draw(uniform=3), Draw(uniform=n)

    def dist(self, raw: Tensor, legal: Tensor | None) -> Any:
        return ops.Categorical(raw, legal)

    def explored(self, dist: ops.Categorical, random: Tensor, spread: Tensor, noise: Noise) -> Tensor:
        """A sample, and with the chance `spread` a legal action chosen evenly; where `random` is 1, only such."""
        coin, which = noise.uniform[..., 1], noise.uniform[..., 2]
        legal = torch.ones_like(dist.logits, dtype=torch.bool) if dist.mask is None else dist.mask.bool()
        anything = ops.uniform_legal(legal, which)
        return torch.where(coin < torch.maximum(random, spread), anything, dist.sample(noise))

    def numbers(self, action: Tensor) -> Tensor:
        """[...] -> [..., size]."""
        return one_hot(action, self.size)

    def best(self, dist: ops.Categorical) -> Tensor:
        return self.numbers(dist.mode())

    def relaxed(self, dist: ops.Categorical, noise: Noise) -> Tensor:
        """A sample, one-hot; its gradient is that of the softmax."""
        gumbel = -torch.log(-torch.log(noise.uniform.clamp(LEAST, 1 - LEAST)))
        logits = dist.logits + gumbel
        soft = ops.blocked(logits, dist.mask).softmax(-1)
        return self.numbers(ops.best(logits, dist.mask)) + (soft - soft.detach())

    def sampled(self, dist: ops.Categorical, noise: Noise) -> tuple[Tensor, Tensor]:
        """The same, and the entropy of the choice."""
        return self.relaxed(dist, noise), dist.entropy()

    def aim(self, entropy: Tensor, legal: Tensor | None, share: float, wanted: float | None) -> Tensor:
        """The entropy that is sought in each row: a share of what its legal actions allow."""
        count = torch.full_like(entropy, self.size) if legal is None else legal.sum(-1).to(entropy.dtype)
        return share * count.log()


class Numbers:
    """Real numbers within bounds."""

    def __init__(self, space: Box) -> None:
        self.space, self.size, self.outputs = space, space.size, space.size
        self.exploring, self.relaxing = Draw(uniform=space.size, normal=space.size), Draw()

    def dist(self, raw: Tensor, legal: Tensor | None) -> Any:
        low, high = ops.bounds(self.space, raw)
        shaped = torch.tanh(raw).reshape(*raw.shape[:-1], *self.space.shape)
        return ops.Sure(torch.lerp(low, high, 0.5 * (shaped + 1)))

    def explored(self, dist: ops.Sure, random: Tensor, spread: Tensor, noise: Noise) -> Tensor:
        """The action with noise in units of half the range; where `random` is 1, any."""
        low, high = edges = ops.bounds(self.space, dist.action)
        shaken = ops.gaussian(dist.action, noise.normal, spread, low, high)
        return torch.where(random > 0, ops.anywhere(self.space, noise.uniform, edges), shaken)

    def numbers(self, action: Tensor) -> Tensor:
        return flat(action, self.space)

    def best(self, dist: ops.Sure) -> Tensor:
        return self.numbers(dist.action)

    def relaxed(self, dist: ops.Sure, noise: Noise) -> Tensor:
        return self.numbers(dist.action)


class SoftNumbers:
    """Real numbers within bounds, by squashed normals."""

    def __init__(self, space: Box) -> None:
        self.space, self.size, self.outputs = space, space.size, 2 * space.size
        self.exploring, self.relaxing = Draw(uniform=space.size, normal=space.size), Draw(normal=space.size)

    def dist(self, raw: Tensor, legal: Tensor | None) -> Any:
        mean, spread = raw.chunk(2, -1)
        return ops.dist(squashed(mean, spread), self.space, squash=True)

    def explored(self, dist: ops.TanhNormal, random: Tensor, spread: Tensor, noise: Noise) -> Tensor:
        return torch.where(random > 0, ops.anywhere(self.space, noise.uniform), dist.sample(noise))

    def numbers(self, action: Tensor) -> Tensor:
        return flat(action, self.space)

    def sampled(self, dist: ops.TanhNormal, noise: Noise) -> tuple[Tensor, Tensor]:
        """A sample, and minus its log-density."""
        action, logp = dist.sample_and_log_prob(noise)
        return self.numbers(action), -logp

    def aim(self, entropy: Tensor, legal: Tensor | None, share: float, wanted: float | None) -> Tensor:
        """The entropy that is sought: `wanted`, or minus the number of components."""
        return torch.full_like(entropy, -float(self.size) if wanted is None else wanted)


def flat(action: Tensor, space: Box) -> Tensor:
    """[..., *shape] -> [..., size]."""
    return action.flatten(-len(space.shape)) if space.shape else action.unsqueeze(-1)


def team_actions(cfg: AlgoConfig, spec: EnvSpec) -> OneHotChoices | Numbers:
    """Of deterministic actors with a central critic; refuses other spaces."""
    cfg.check_actions(spec)
    check_mask(spec)
    match spec.action:
        case Discrete(n):
            return OneHotChoices(n)
        case Box() as space:
            return Numbers(space)
    raise AssertionError(f"{cfg.kind} accepts {spec.action}, and should not")


def soft_actions(cfg: AlgoConfig, spec: EnvSpec) -> OneHotChoices | SoftNumbers:
    """Of stochastic ones."""
    cfg.check_actions(spec)
    check_mask(spec)
    match spec.action:
        case Discrete(n):
            return OneHotChoices(n)
        case Box() as space:
            return SoftNumbers(space)
    raise AssertionError(f"{cfg.kind} accepts {spec.action}, and should not")
