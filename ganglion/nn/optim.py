"""Optimisers as in-place tensor operations, so that a whole `learn` can be one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ganglion.config import Config, NonNegative, Positive
from ganglion.core import State
from ganglion.errors import UserError
from ganglion.nn.kernels import cpu_adam
from ganglion.torch_private import (
    foreach_add_,
    foreach_addcmul_,
    foreach_div,
    foreach_div_,
    foreach_lerp_,
    foreach_mul,
    foreach_mul_,
    foreach_norm,
    foreach_sqrt,
    foreach_sub_,
)

Grads = Sequence[Tensor]
TINY = 1e-30  # moves no parameter; a mean without new gradients would shrink to numbers that processors are slow with


def same(grads: Grads) -> Grads:
    return grads


def norms(grads: list[Tensor]) -> list[Tensor]:
    """The norm of each: one operation when eager; a compiler fuses them only one by one."""
    if torch.compiler.is_compiling():
        return [torch.linalg.vector_norm(grad) for grad in grads]
    return list(foreach_norm(grads))


def correction(base: float, count: Tensor) -> Tensor:
    """1 - base ** count, what a mean that started from zero is divided by; float32 would lose half of its digits.

    A compiler would compute it again for each few elements that are scaled with it, which took as long as all the rest
    of Adam; of an exponential it knows that once is better. This one is 1, and changes no bit."""
    value: Tensor = (1 - base ** count.double()).to(count.dtype)
    return value * (count * 0).exp() if torch.compiler.is_compiling() else value


def gradients(loss: Tensor, params: Sequence[Tensor], names: Sequence[str], unused: bool) -> Grads:
    """Of each parameter; of those that the loss does not depend on nothing, where that is allowed."""
    grads = torch.autograd.grad(loss, params, allow_unused=True)
    missing = [name for name, grad in zip(names, grads, strict=True) if grad is None]
    if missing and not unused:
        first, more = missing[0].partition(".")[2], f" (and {len(missing) - 1} more)" if missing[1:] else ""
        raise UserError(
            f"optimiser: parameter {first!r}{more} has no gradient, since the loss does not depend on it. "
            "Give the optimiser only modules that the loss reads, or allow_unused=True to leave such parameters alone."
        )
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(params, grads, strict=True)]


class OptimConfig(Config):
    """An optimiser and what is done to its gradients. `optim: adamw` names the optimiser alone.

    `momentum` compares each number with the root of its running mean square, `momentum_norm` the norm of all numbers
    with that of these roots. `ignore` looks at gradients before they are clipped, and sets all of them to zero.
    """

    shorthand: ClassVar[str] = "name"
    name: Literal["adam", "adamw", "rmsprop"] = "adam"
    weight_decay: NonNegative = 0.01  # adamw: of all parameters, per step and learning rate
    clip: Literal["norm", "value", "momentum", "momentum_norm"] = "norm"
    clip_at: Positive | None = None  # None: as `max_norm` says for `norm`, 5 for the others
    ignore: Literal["none", "norm", "value", "momentum", "momentum_norm"] = "none"
    ignore_at: Positive = 5.0
    after: int = Field(100, ge=0, le=10**9)  # steps before which nothing is compared with running means

    @property
    def ruled(self) -> bool:
        """Whether gradients are treated in other ways than clipped by their norm."""
        return self.clip != "norm" or self.ignore != "none"

    def treated(self, grad: Tensor, root: Tensor, count: Tensor, max_norm: float | Tensor) -> Tensor:
        """Gradients as rows [K, all numbers] by the rules above; `root`, of the running mean square, is alike."""
        size, usual = (
            torch.linalg.vector_norm(grad, dim=1, keepdim=True),
            torch.linalg.vector_norm(root, dim=1)[:, None],
        )
        usual, root = (torch.where(count[:, None] > self.after, x, inf) for x in (usual, root))
        most, limit = self.ignore_at, self.clip_at or 5.0
        kept = {  # a comparison with what is not finite is false: such gradients are ignored, too
            "none": True,
            "norm": size <= most,
            "value": (grad.abs() <= most).all(1, keepdim=True),
            "momentum": (grad.abs() <= most * root).all(1, keepdim=True),
            "momentum_norm": size <= most * usual,
        }[self.ignore]
        match self.clip:
            case "norm":
                clipped = grad * ((self.clip_at or max_norm) / (size + 1e-6)).clamp(max=1.0)
            case "value":
                clipped = grad.clamp(-limit, limit)
            case "momentum":
                clipped = torch.clamp(grad, -limit * root, limit * root)
            case "momentum_norm":
                clipped = grad * (limit * usual / (size + 1e-6)).clamp(max=1.0)
        return clipped if kept is True else torch.where(kept, clipped, 0.0)


USUAL = OptimConfig()


class Optimiser(ABC):
    """Moves the parameters of modules down a loss, its gradient clipped by the joint norm; frozen ones stay.

    A subclass says in `kept` what it remembers of each parameter, the mean `square` of its gradient among it, and moves
    both in `apply`.
    """

    rules: OptimConfig = USUAL
    forgets: float = 0.0  # the share of `square` that stays, where it starts from zero and is corrected for that
    weight_decay: float = 0.0

    def __init__(self, *modules: nn.Module, lr: float, max_norm: float = inf, allow_unused: bool = False) -> None:
        named = {f"{i}.{name}": p for i, m in enumerate(modules) for name, p in m.named_parameters() if p.requires_grad}
        self.names, self.params = list(named), list[Tensor](named.values())
        self.lr, self.max_norm, self.allow_unused = lr, max_norm, allow_unused
        self.count = torch.zeros((), device=self.params[0].device)  # of steps
        self.reduce: Callable[[Grads], Grads] = same  # several learners put their all-reduce here

    def step(self, loss: Tensor, lr: Tensor | None = None) -> Tensor:
        """One step down the gradient of `loss`; returns the gradient's norm before clipping."""
        grads = self.reduce(gradients(loss, self.params, self.names, self.allow_unused))
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(norms(list(grads))))
            if self.rules.ruled:
                grads = self.treated(grads)
            elif self.max_norm < inf:
                grads = foreach_mul(list(grads), (self.max_norm / (norm + 1e-6)).clamp(max=1.0))
            self.count.add_(1)
            self.apply(list(grads), self.lr if lr is None else lr)
        return norm

    def treated(self, grads: Grads) -> Grads:
        """By the rules: as one row, of which each gradient is a part."""
        row, square = (torch.cat([x.flatten() for x in many])[None] for many in (grads, self.kept()["square"]))
        count = self.count[None]
        whole = self.rules.treated(row, root_of(square, self.forgets, count), count, self.max_norm)[0]
        parts = whole.split([grad.numel() for grad in grads])
        return [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)]

    @abstractmethod
    def apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        """Moves parameters and what is kept, in place."""

    @abstractmethod
    def kept(self) -> dict[str, list[Tensor]]:
        """What is remembered from step to step, a tensor per parameter each."""

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p) for p in self.params]

    def state(self) -> State:
        kept = {f"{kind}/{n}": x for kind, own in self.kept().items() for n, x in zip(self.names, own, strict=True)}
        return State({**kept, "count": self.count})

    @torch.no_grad()
    def restore(self, state: State) -> None:
        for name, tensor in self.state().tensors.items():
            tensor.copy_(state.tensors[name])


def root_of(square: Tensor, forgets: float, count: Tensor) -> Tensor:
    """The root of a running mean [K, N], as if it had not started from zero."""
    return (square / correction(forgets, count)[:, None]).sqrt() if forgets else square.sqrt()


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015); with a weight decay AdamW (Loshchilov and Hutter 2019)."""

    forgets = 0.999

    def __init__(
        self, *modules: nn.Module, lr: float, max_norm: float = inf, eps: float = 1e-8, beta1: float = 0.9,
        allow_unused: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*modules, lr=lr, max_norm=max_norm, allow_unused=allow_unused)
        self.eps, self.beta1, self.mean, self.square = eps, beta1, self.zeros(), self.zeros()

    def kept(self) -> dict[str, list[Tensor]]:
        return {"mean": self.mean, "square": self.square}

    def apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        beta1, beta2 = self.beta1, self.forgets
        if self.weight_decay:
            foreach_mul_(self.params, 1 - lr * self.weight_decay)
        if cpu_adam.fits(self.params):
            kept = self.params, grads, self.mean, self.square, self.count
            cpu_adam.step(*kept, lr=lr, betas=(beta1, beta2), eps=self.eps)
            return
        foreach_lerp_(self.mean, grads, 1 - beta1)
        if torch.compiler.is_compiling():  # costs a SAC update 1 %; after some hundred of them it saves 3 %
            for mean in self.mean:
                mean.mul_(mean.abs() > TINY)
        foreach_mul_(self.square, beta2)
        foreach_addcmul_(self.square, grads, grads, 1 - beta2)
        size = lr / correction(beta1, self.count)
        scale = foreach_sqrt(self.square)
        foreach_div_(scale, correction(beta2, self.count).sqrt())
        foreach_add_(scale, self.eps)
        change = foreach_div(self.mean, scale)
        foreach_mul_(change, size)
        foreach_sub_(self.params, change)


class RMSprop(Optimiser):
    """RMSprop (Tieleman and Hinton 2012), without momentum: what DQN and IMPALA were published with."""

    def __init__(
        self, *modules: nn.Module, lr: float, max_norm: float = inf, eps: float = 1e-8, decay: float = 0.99,
        allow_unused: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*modules, lr=lr, max_norm=max_norm, allow_unused=allow_unused)
        self.eps, self.decay, self.square = eps, decay, self.zeros()

    def kept(self) -> dict[str, list[Tensor]]:
        return {"square": self.square}

    def apply(self, grads: list[Tensor], lr: float | Tensor) -> None:
        foreach_mul_(self.square, self.decay)
        foreach_addcmul_(self.square, grads, grads, 1 - self.decay)
        scale = foreach_sqrt(self.square)
        foreach_add_(scale, self.eps)
        change = foreach_div(grads, scale)
        foreach_mul_(change, lr)
        foreach_sub_(self.params, change)


def optimiser(
    cfg: OptimConfig, *modules: nn.Module, lr: float, max_norm: float = inf, eps: float = 1e-8, beta1: float = 0.9,
    allow_unused: bool = False,
) -> Optimiser:  # fmt: skip
    """The optimiser of a config, with what an algorithm says of it; `max_norm` is the limit of `clip: norm`."""
    max_norm = cfg.clip_at or max_norm
    made: Optimiser
    if cfg.name == "rmsprop":
        made = RMSprop(*modules, lr=lr, max_norm=max_norm, eps=eps, allow_unused=allow_unused)
    else:
        made = Adam(*modules, lr=lr, max_norm=max_norm, eps=eps, beta1=beta1, allow_unused=allow_unused)
        made.weight_decay = cfg.weight_decay if cfg.name == "adamw" else 0.0
    made.rules = cfg
    return made
