"""Adam's arithmetic as one operation on a CPU, torch's own: written out it is a dozen, a fifth of a small update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fits(params: Sequence[Tensor]) -> bool:
    """Whether these can be moved so: the operation reads memory in its order. A compiler makes its own."""
    first = params[0]
    if first.is_cuda or first.dtype != torch.float32 or torch.compiler.is_compiling():
        return False
    return all(p.is_contiguous() for p in params)


def step(
    params: list[Tensor], grads: list[Tensor], mean: list[Tensor], square: list[Tensor], count: Tensor, *,
    lr: float | Tensor, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    """The step number `count`, in place."""
    grads = [grad if grad.is_contiguous() else grad.contiguous() for grad in grads]
    torch._fused_adam_(
        params, grads, mean, square, [], [count] * len(params), lr=lr, beta1=betas[0], beta2=betas[1],
        weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip
