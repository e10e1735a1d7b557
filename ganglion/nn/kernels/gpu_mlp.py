"""Small perceptrons on a GPU: two layers of many nets as one kernel forward and one backward.

What a layer computes never leaves the chip: backward computes it again, which is quicker than reading it. The rows are
shared out to programs; each adds up the gradients of its rows, and their sum is taken in a fixed order: the same rows
give the same bits. Needs triton, which comes with torch for CUDA.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

WIDEST = 64  # units of a layer, and numbers of a row: what a program can hold
ROWS, PROGRAMS = 64, 128  # rows at a time, and programs of a net that share them out
KINDS = ("tanh", "relu")


def fits(x: Tensor, sizes: tuple[int, ...], activation: str) -> bool:
    """Whether nets of these sizes can be computed here."""
    if x.device.type != "cuda" or x.dtype != torch.float32 or len(sizes) != 3 or activation not in KINDS:
        return False
    return max(sizes) <= WIDEST


@torch.library.custom_op("ganglion::gpu_mlp", mutates_args=())
def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kind: str, tf32: bool) -> Tensor:
    """[G, N, D] and nets [G * C, ...] -> [G * C, N, H]: C nets read each group of rows."""
    nets, (_, rows, _) = len(w1), x.shape
    out = x.new_empty(nets, rows, w2.shape[-1])
    grid = (-(-rows // ROWS), nets)
    kernels()[0][grid](x.contiguous(), w1, b1, w2, b2, out, rows, **form(x, w1, w2, kind, tf32), num_warps=4)
    return out


@mlp.register_fake
def _(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kind: str, tf32: bool) -> Tensor:
    return x.new_empty(len(w1), x.shape[1], w2.shape[-1])


@torch.library.custom_op("ganglion::gpu_mlp_backward", mutates_args=())
def backward(
    grad: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kind: str, tf32: bool, inward: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of all parameters of each net, one after the other [G * C, P], and of the rows [G * C, N, D]."""
    nets, (_, rows, _) = len(w1), x.shape
    programs = min(-(-rows // ROWS), PROGRAMS)
    sums = x.new_empty(nets, programs, sum(p[0].numel() for p in (w1, b1, w2, b2)))
    into = x.new_empty(nets, *x.shape[1:]) if inward else x.new_empty(nets, 0, x.shape[2])
    given = (grad.contiguous(), x.contiguous(), w1, b1, w2, b2, sums, into, rows)
    kernels()[1][(programs, nets)](*given, **form(x, w1, w2, kind, tf32), INWARD=inward, num_warps=4)
    return sums.sum(1), into


@backward.register_fake
def _(
    grad: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kind: str, tf32: bool, inward: bool
) -> tuple[Tensor, Tensor]:
    size = sum(p[0].numel() for p in (w1, b1, w2, b2))
    return x.new_empty(len(w1), size), x.new_empty(len(w1), x.shape[1] if inward else 0, x.shape[2])


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.kind, ctx.tf32 = inputs[5:]


def differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, *params = ctx.saved_tensors
    inward = ctx.needs_input_grad[0]
    if torch.is_grad_enabled():  # the gradient will be differentiated, too, and the kernel cannot be
        into, *grads = gradients(ctx.kind, grad, *ctx.saved_tensors)
        return into if inward else None, *grads, None, None
    flat, into = torch.ops.ganglion.gpu_mlp_backward(grad, x, *params, ctx.kind, ctx.tf32, inward)
    parts = flat.split([p[0].numel() for p in params], 1)
    grads = [part.view_as(p) for part, p in zip(parts, params, strict=True)]
    return into.unflatten(0, (len(x), -1)).sum(1) if inward else None, *grads, None, None


def gradients(kind: str, grad: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> list[Tensor]:
    """Those of the rows and of all parameters by plain operations, which have gradients of their own."""
    act = torch.tanh if kind == "tanh" else torch.relu
    rows = x[:, None].expand(-1, len(w1) // len(x), -1, -1).flatten(0, 1)  # of each net
    one = act(rows @ w1 + b1)
    two = act(one @ w2 + b2)
    grad = grad * (1 - two * two if kind == "tanh" else (two > 0).to(two.dtype))
    inner = (grad @ w2.transpose(1, 2)) * (1 - one * one if kind == "tanh" else (one > 0).to(one.dtype))
    into = (inner @ w1.transpose(1, 2)).unflatten(0, (len(x), -1)).sum(1)
    parts = [rows.transpose(1, 2) @ inner, inner.sum(1), one.transpose(1, 2) @ grad, grad.sum(1)]
    return [into, *(part.view_as(p) for part, p in zip(parts, (w1, b1, w2, b2), strict=True))]


@mlp.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    """Nets of several models are more nets; each model's rows are groups of their own."""
    size = info.batch_size
    moved = [a if dim is None else a.movedim(dim, 0) for a, dim in zip(args[:5], in_dims[:5], strict=True)]
    whole = [a.expand(size, *a.shape) if dim is None else a for a, dim in zip(moved, in_dims[:5], strict=True)]
    out = mlp(*(a.flatten(0, 1).contiguous() for a in whole), *args[5:])
    return out.unflatten(0, (size, -1)), 0


mlp.register_autograd(differentiate, setup_context=keep)


def form(x: Tensor, w1: Tensor, w2: Tensor, kind: str, tf32: bool) -> dict[str, Any]:
    """What the kernels are compiled for. Products need at least 16 of everything."""
    sizes = {"D": x.shape[2], "H": w1.shape[2], "W": w2.shape[2]}
    padded = {f"{name}P": max(16, 1 << (size - 1).bit_length()) for name, size in sizes.items()}
    own = {**sizes, **padded, "C": len(w1) // len(x), "ROWS": ROWS}
    # three products of tf32 are as good as one of float32, for which there are no tensor cores
    return {**own, "TANH": kind == "tanh", "PRECISION": "tf32" if tf32 else "tf32x3"}


@cache
def kernels() -> tuple[Any, Any]:
    from ganglion.nn.kernels.gpu_mlp_triton import backward_kernel, forward_kernel

    return forward_kernel, backward_kernel
