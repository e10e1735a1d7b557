"""The one recursion behind all returns, in O(log T) large tensor operations instead of T small ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def scan(x: Tensor, factor: Tensor) -> Tensor:
    """y[t] = x[t] + factor[t] y[t + 1], y[T] = 0, along axis 0: [T, ...] -> [T, ...].

    Odd-even reduction (Blelloch 1990): neighbours merge into a problem of half the length, whose solution gives the
    rows left out. O(T) work, only products and sums: a factor of 0 cuts exactly, nothing is divided. The two forms
    below do the same arithmetic: one in place for eager speed, one without mutation for compilers. Eager CUDA tensors
    go through one kernel instead (ops/kernels.py).
    """
    factor = factor.expand_as(x)
    return _merge(x, factor) if torch.compiler.is_compiling() else _Scan.apply(x, factor)  # type: ignore[no-untyped-call]


def _sweep(x: Tensor, factor: Tensor) -> Tensor:
    """`scan` on fresh memory: an upward sweep merges spans of 1, 2, 4, ... rows, a downward one fills the gaps."""
    y, f = x.clone(memory_format=torch.contiguous_format), factor.clone(memory_format=torch.contiguous_format)
    rows, span = x.shape[0], 1
    while span < rows:
        lead, weight = y[: rows - span : 2 * span], f[: rows - span : 2 * span]
        lead.addcmul_(weight, y[span :: 2 * span])
        weight.mul_(f[span :: 2 * span])
        span *= 2
    while span > 1:
        span //= 2
        y[span : rows - span : 2 * span].addcmul_(f[span : rows - span : 2 * span], y[2 * span :: 2 * span])
    return y


def _merge(x: Tensor, factor: Tensor) -> Tensor:
    """`scan` without mutation; recursion on half the rows."""
    rows = x.shape[0]
    if rows < 2:
        return x
    half = rows // 2
    even_x, even_f = x[: 2 * half : 2], factor[: 2 * half : 2]
    odd_x, odd_f = x[1::2], factor[1::2]
    pair_x, pair_f = torch.addcmul(even_x, even_f, odd_x), even_f * odd_f
    if rows % 2:  # the last row has no neighbour: it is its own pair
        pair_x, pair_f = torch.cat([pair_x, x[-1:]]), torch.cat([pair_f, factor[-1:]])
    even_y = _merge(pair_x, pair_f)  # [half or half + 1, ...]
    if rows % 2:
        odd_y = torch.addcmul(odd_x, odd_f, even_y[1:])
        return torch.cat([torch.stack([even_y[:half], odd_y], 1).flatten(0, 1), even_y[half:]])
    odd_y = torch.cat([torch.addcmul(odd_x[:-1], odd_f[:-1], even_y[1:]), odd_x[-1:]])
    return torch.stack([even_y, odd_y], 1).flatten(0, 1)


@cache
def _fused() -> Callable[[Tensor, Tensor], Tensor] | None:
    """The kernel for CUDA tensors, where Triton is installed."""
    try:
        from ganglion.ops.kernels import fused_scan
    except ImportError:
        return None
    return fused_scan


class _Scan(torch.autograd.Function):
    """The gradient is a scan the other way: gx[t] = g[t] + factor[t - 1] gx[t - 1], gf[t] = gx[t] y[t + 1]."""

    @staticmethod
    def forward(x: Tensor, factor: Tensor) -> Tensor:
        fused = _fused() if x.is_cuda and x.dtype in (torch.float32, torch.float64) else None
        return _sweep(x, factor) if fused is None else fused(x, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, int | None], x: Tensor, factor: Tensor) -> tuple[Tensor, int]:
        """Several scans are one with a further axis at the end."""
        moved = [y[..., None] if axis is None else y.movedim(axis, -1) for y, axis in zip((x, factor), axes)]
        y: Tensor = _Scan.apply(*torch.broadcast_tensors(*moved))  # type: ignore[no-untyped-call]
        return y, y.dim() - 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        factor, y = ctx.saved_tensors
        none = torch.zeros_like(y[:1])
        back = scan(grads[0].flip(0), torch.cat([factor[:-1].flip(0), none])).flip(0)
        return back, back * torch.cat([y[1:], none])
