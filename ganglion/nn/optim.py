"""Adam as in-place tensor operations, so that a whole `learn` can be one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor, nn

from ganglion.core import State

Grads = Sequence[Tensor]
TINY = 1e-30  # moves no parameter; a mean without new gradients would shrink to numbers that processors are slow with


def same(grads: Grads) -> Grads:
    return grads


def norms(grads: list[Tensor]) -> list[Tensor]:
    """The norm of each: one operation when eager; a compiler fuses them only one by one."""
    if torch.compiler.is_compiling():
        return [torch.linalg.vector_norm(grad) for grad in grads]
    return list(torch._foreach_norm(grads))


def power(base: float, count: Tensor) -> Tensor:
    """base ** count. A compiler would compute it again for each few elements that are scaled with it, which took as
    long as all the rest of Adam; of an exponential it knows that once is better. This one is 1, and changes no bit."""
    value: Tensor = base**count
    return value * (count * 0).exp() if torch.compiler.is_compiling() else value


class Adam:
    """Adam (Kingma and Ba 2015) over the parameters of modules, gradients clipped by their joint norm."""

    def __init__(self, *modules: nn.Module, lr: float, max_norm: float = inf, eps: float = 1e-8) -> None:
        self.named = {f"{i}.{name}": p for i, m in enumerate(modules) for name, p in m.named_parameters()}
        self.params: list[Tensor] = list(self.named.values())
        self.lr, self.max_norm, self.eps = lr, max_norm, eps
        self.mean = [torch.zeros_like(p) for p in self.params]
        self.square = [torch.zeros_like(p) for p in self.params]
        self.count = torch.zeros((), device=self.params[0].device)
        self.reduce: Callable[[Grads], Grads] = same  # several learners put their all-reduce here

    def step(self, loss: Tensor, lr: Tensor | None = None) -> Tensor:
        """One step down the gradient of `loss`; returns the gradient's norm before clipping."""
        grads = self.reduce(torch.autograd.grad(loss, self.params))
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(norms(list(grads))))
            if self.max_norm < inf:
                grads = torch._foreach_mul(list(grads), (self.max_norm / (norm + 1e-6)).clamp(max=1.0))
            self.apply(list(grads), self.lr if lr is None else lr)
        return norm

    def apply(self, grads: list[Tensor], lr: float | Tensor, beta1: float = 0.9, beta2: float = 0.999) -> None:
        self.count.add_(1)
        torch._foreach_lerp_(self.mean, grads, 1 - beta1)
        if torch.compiler.is_compiling():  # costs a SAC update 1 %; after some hundred of them it saves 3 %
            for mean in self.mean:
                mean.mul_(mean.abs() > TINY)
        torch._foreach_mul_(self.square, beta2)
        torch._foreach_addcmul_(self.square, grads, grads, 1 - beta2)
        size = lr / (1 - power(beta1, self.count))
        scale = torch._foreach_sqrt(self.square)
        torch._foreach_div_(scale, (1 - power(beta2, self.count)).sqrt())
        torch._foreach_add_(scale, self.eps)
        change = torch._foreach_div(self.mean, scale)
        torch._foreach_mul_(change, size)
        torch._foreach_sub_(self.params, change)

    def state(self) -> State:
        names = list(self.named)
        mean = {f"mean/{n}": m for n, m in zip(names, self.mean, strict=True)}
        square = {f"square/{n}": s for n, s in zip(names, self.square, strict=True)}
        return State({**mean, **square, "count": self.count})

    @torch.no_grad()
    def restore(self, state: State) -> None:
        for name, tensor in self.state().tensors.items():
            tensor.copy_(state.tensors[name])
