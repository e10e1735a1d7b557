"""Distributions over actions: NamedTuples of tensors with methods, no validation, random numbers as arguments.

A row needs `draws` random numbers. log_prob, entropy and kl sum over an action's parts and give one number per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from math import log, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ganglion.core import Draw, Noise
from ganglion.ops.rows import best, blocked, pick

FEW = 8  # choices that a compiler joins to what is around, written out; a cumulated sum is a call of its own


def inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """The index whose slice of the cumulated probabilities holds `uniform` in [0, 1): [..., A], [...] -> [...] int64.

    An entry of probability 0 owns an empty slice, so it is never chosen, whatever the number.
    """
    if torch.compiler.is_compiling() and probs.shape[-1] <= FEW and not probs.is_cuda:
        *_, whole = sums = list(accumulate(probs.unbind(-1)))
        return torch.stack([total <= uniform * whole for total in sums]).sum(0)
    total = probs.cumsum(-1)
    return (total <= uniform.unsqueeze(-1) * total[..., -1:]).sum(-1)


def uniform_legal(legal: Tensor, uniform: Tensor) -> Tensor:
    """A legal action chosen evenly: [..., A] bool, [...] -> [...] int64."""
    order = legal.long().cumsum(-1)
    rank = (uniform * order[..., -1]).long()  # [0, count)
    return (order <= rank.unsqueeze(-1)).sum(-1).clamp(max=legal.shape[-1] - 1)


class _Constant:
    """A property of the class as well as of its instances."""

    def __init__(self, fn: Callable[[], Draw]) -> None:
        self.fn = fn

    def __get__(self, instance: object, owner: type) -> Draw:
        return self.fn()


def add_draws(draws: list[Draw]) -> Draw:
    """The random numbers of several parts together."""
    return Draw(sum(d.uniform for d in draws), sum(d.normal for d in draws))


class Categorical(NamedTuple):
    """One of A choices; `mask` holds the legal ones."""

    logits: Tensor  # [..., A]
    mask: Tensor | None = None  # [..., A] bool

    @_Constant
    def draws() -> Draw:
        return Draw(uniform=1)

    def log_probs(self) -> Tensor:
        """Normalised, every choice: [..., A]."""
        return blocked(self.logits, self.mask).log_softmax(-1)

    def probs(self) -> Tensor:
        return blocked(self.logits, self.mask).softmax(-1)

    def sample(self, noise: Noise) -> Tensor:
        return inverse_cdf(blocked(self.logits.detach().float(), self.mask).softmax(-1), noise.uniform[..., 0])

    def mode(self) -> Tensor:
        return best(self.logits, self.mask)

    def log_prob(self, action: Tensor) -> Tensor:
        return pick(self.log_probs(), action)

    def entropy(self) -> Tensor:
        log_probs = self.log_probs()
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other)."""
        mine = self.log_probs()
        return (mine.exp() * (mine - other.log_probs())).sum(-1)


class MultiCategorical(NamedTuple):
    """Several choices at once, their logits side by side."""

    logits: Tensor  # [..., sum(nvec)]
    nvec: tuple[int, ...]
    mask: Tensor | None = None  # [..., sum(nvec)] bool

    @property
    def draws(self) -> Draw:
        return Draw(uniform=len(self.nvec))

    def parts(self) -> list[Categorical]:
        logits = self.logits.split(self.nvec, -1)
        masks = [None] * len(self.nvec) if self.mask is None else self.mask.split(self.nvec, -1)
        return [Categorical(x, m) for x, m in zip(logits, masks, strict=True)]

    def sample(self, noise: Noise) -> Tensor:
        parts = [p.sample(Noise(noise.uniform[..., i : i + 1], noise.normal)) for i, p in enumerate(self.parts())]
        return torch.stack(parts, -1)

    def mode(self) -> Tensor:
        return torch.stack([p.mode() for p in self.parts()], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack([p.log_prob(action[..., i]) for i, p in enumerate(self.parts())]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([p.entropy() for p in self.parts()]).sum(0)

    def kl(self, other: MultiCategorical) -> Tensor:
        return torch.stack([p.kl(q) for p, q in zip(self.parts(), other.parts(), strict=True)]).sum(0)


class Bernoulli(NamedTuple):
    """n independent bits, as int64 0 and 1."""

    logits: Tensor  # [..., n]

    @property
    def draws(self) -> Draw:
        return Draw(uniform=self.logits.shape[-1])

    def sample(self, noise: Noise) -> Tensor:
        return (noise.uniform[..., : self.logits.shape[-1]] < self.logits.sigmoid()).long()

    def mode(self) -> Tensor:
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        return -softplus(torch.where(action > 0, -self.logits, self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        return (softplus(-self.logits) + (1 - self.logits.sigmoid()) * self.logits).sum(-1)

    def kl(self, other: Bernoulli) -> Tensor:
        on, off = (
            logsigmoid(self.logits) - logsigmoid(other.logits),
            logsigmoid(-self.logits) - logsigmoid(-other.logits),
        )
        p = self.logits.sigmoid()
        return (p * on + (1 - p) * off).sum(-1)


def _total(x: Tensor, dims: int) -> Tensor:
    """The sum over the last `dims` axes."""
    return x.flatten(-dims).sum(-1) if dims else x


def _size(x: Tensor, dims: int) -> int:
    return x.shape[x.dim() - dims :].numel()


class Normal(NamedTuple):
    """Independent normals; an action is the last `dims` axes. Samples are not clipped: the environment clips."""

    mean: Tensor  # [..., *shape]
    log_std: Tensor  # broadcasts to mean
    dims: int = 1

    @property
    def draws(self) -> Draw:
        return Draw(normal=_size(self.mean, self.dims))

    def sample(self, noise: Noise) -> Tensor:
        """mean + std * noise: gradients pass."""
        normal = noise.normal[..., : _size(self.mean, self.dims)].reshape(self.mean.shape)
        return self.mean + self.log_std.exp() * normal

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mean) * torch.exp(-self.log_std)
        return _total(-0.5 * z.square() - self.log_std - 0.5 * log(2 * pi), self.dims)

    def entropy(self) -> Tensor:
        return _total(self.log_std.expand_as(self.mean) + 0.5 * log(2 * pi) + 0.5, self.dims)

    def kl(self, other: Normal) -> Tensor:
        gap = self.log_std - other.log_std
        moved = (self.mean - other.mean) * torch.exp(-other.log_std)
        return _total(0.5 * (torch.exp(2 * gap) + moved.square() - 1) - gap, self.dims)


def _hermite(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights that integrate a polynomial against a standard normal (Golub and Welsch 1969)."""
    side = torch.arange(1, count, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(side, 1) + torch.diag(side, -1))
    return tuple(zip(nodes.tolist(), vectors[0].square().tolist(), strict=True))


HERMITE = _hermite(16)


class TanhNormal(NamedTuple):
    """Normals squashed by tanh and stretched onto [low, high]; the density is that of the stretched action."""

    mean: Tensor  # [..., *shape], before tanh
    log_std: Tensor
    low: Tensor  # broadcasts to mean
    high: Tensor
    dims: int = 1

    @property
    def draws(self) -> Draw:
        return Draw(normal=_size(self.mean, self.dims))

    def inner(self) -> Normal:
        """The normal before tanh."""
        return Normal(self.mean, self.log_std, self.dims)

    def stretch(self, x: Tensor) -> Tensor:
        """x before tanh -> the action."""
        return self.low + (self.high - self.low) * (0.5 * (torch.tanh(x) + 1))

    def log_slope(self, x: Tensor) -> Tensor:
        """log d action / d x per element: log(1 - tanh^2 x) = 2 (log 2 - x - softplus(-2 x)), stable for any x."""
        return 2 * (log(2) - x - softplus(-2 * x)) + torch.log(0.5 * (self.high - self.low))

    def sample_and_log_prob(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """An action and its log-density, without the way back through atanh; gradients pass."""
        x = self.inner().sample(noise)
        return self.stretch(x), self.inner().log_prob(x) - _total(self.log_slope(x), self.dims)

    def sample(self, noise: Noise) -> Tensor:
        return self.stretch(self.inner().sample(noise))

    def mode(self) -> Tensor:
        """The squashed mean, as everyone evaluates; the density may peak beside it."""
        return self.stretch(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        edge = 1 - torch.finfo(action.dtype).eps
        x = torch.atanh((2 * (action - self.low) / (self.high - self.low) - 1).clamp(-edge, edge))
        return self.inner().log_prob(x) - _total(self.log_slope(x), self.dims)

    def entropy(self) -> Tensor:
        """Entropy of the normal + E[log slope], the expectation by Gauss-Hermite quadrature: no random numbers."""
        std = self.log_std.exp()
        slope = sum((w * self.log_slope(self.mean + std * z) for z, w in HERMITE), torch.zeros_like(self.mean))
        return self.inner().entropy() + _total(slope, self.dims)

    def kl(self, other: TanhNormal) -> Tensor:
        """Exact for equal bounds: a bijection leaves KL as it is."""
        return self.inner().kl(other.inner())


class Sure(NamedTuple):
    """All weight on one action: what a deterministic actor says."""

    action: Tensor

    def mode(self) -> Tensor:
        return self.action


class Greedy(NamedTuple):
    """Values of actions, acted on greedily, by epsilon or by Boltzmann."""

    q: Tensor  # [..., A]
    mask: Tensor | None = None

    @_Constant
    def draws() -> Draw:
        return Draw(uniform=2)  # a coin and a random legal action per slot

    def mode(self) -> Tensor:
        return best(self.q, self.mask)

    def sample(self, noise: Noise) -> Tensor:
        return self.mode()

    def epsilon(self, eps: float | Tensor, noise: Noise) -> Tensor:
        """With probability eps, by each slot's own coin, a legal action chosen evenly; else the best."""
        coin, which = noise.uniform.select(-1, 0), noise.uniform.select(-1, 1)
        if self.mask is None:  # the same in a quarter of the operations
            other = (which * self.q.shape[-1]).long().clamp(max=self.q.shape[-1] - 1)
        else:
            other = uniform_legal(self.mask.bool(), which)
        return torch.where(coin < eps, other, self.mode())

    def boltzmann(self, temperature: float | Tensor) -> Categorical:
        """Probabilities softmax(q / temperature)."""
        return Categorical(self.q / temperature, self.mask)


class BranchGreedy(NamedTuple):
    """Values of the choices of k branches, each acted on like `Greedy` with its own coin (BDQ)."""

    q: Tensor  # [..., k, A]
    mask: Tensor | None = None  # [..., k, A] bool; hides what a branch with fewer choices does not have

    @property
    def draws(self) -> Draw:
        return Draw(uniform=2 * self.q.shape[-2])

    def mode(self) -> Tensor:
        return best(self.q, self.mask)

    def sample(self, noise: Noise) -> Tensor:
        return self.mode()

    def epsilon(self, eps: float | Tensor, noise: Noise) -> Tensor:
        """int64 [..., k]; eps is one number, or one per slot."""
        branches = self.q.shape[-2]
        coins = noise.uniform[..., : 2 * branches].unflatten(-1, (branches, 2))
        eps = eps.unsqueeze(-1) if isinstance(eps, Tensor) else eps
        return Greedy(self.q, self.mask).epsilon(eps, Noise(coins, noise.normal))


class Product(NamedTuple):
    """Independent parts by name: the action is a mapping."""

    parts: Mapping[str, Any]

    @property
    def draws(self) -> Draw:
        return add_draws([p.draws for p in self.parts.values()])

    def slices(self, noise: Noise) -> dict[str, Noise]:
        """Each part's own random numbers, in order."""
        mine: dict[str, Noise] = {}
        u = n = 0
        for name, part in self.parts.items():
            draws = part.draws
            mine[name] = Noise(noise.uniform[..., u : u + draws.uniform], noise.normal[..., n : n + draws.normal])
            u, n = u + draws.uniform, n + draws.normal
        return mine

    def sample(self, noise: Noise) -> dict[str, Any]:
        mine = self.slices(noise)
        return {k: p.sample(mine[k]) for k, p in self.parts.items()}

    def mode(self) -> dict[str, Any]:
        return {k: p.mode() for k, p in self.parts.items()}

    def log_prob(self, action: Mapping[str, Any]) -> Tensor:
        return torch.stack([p.log_prob(action[k]) for k, p in self.parts.items()]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([p.entropy() for p in self.parts.values()]).sum(0)

    def kl(self, other: Product) -> Tensor:
        return torch.stack([p.kl(other.parts[k]) for k, p in self.parts.items()]).sum(0)


Dist = Categorical | MultiCategorical | Bernoulli | Normal | TanhNormal | Product
