"""The kernels of `gpu_mlp`: one program is some rows of one net. D, H and W are the numbers of a row and the units of
the two layers, DP, HP and WP the same rounded up; C nets read each group of rows."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]


@triton.jit
def activated(x, TANH: tl.constexpr):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0 if TANH else tl.maximum(x, 0.0)


@triton.jit
def slope(y, TANH: tl.constexpr):
    """Of an activation, from what it gave."""
    return 1.0 - y * y if TANH else tl.where(y > 0.0, 1.0, 0.0)


@triton.jit
def table(base, rows, columns, ROWS, COLUMNS: tl.constexpr):
    """A table of ROWS x COLUMNS, zero beyond them."""
    inside = (rows[:, None] < ROWS) & (columns[None, :] < COLUMNS)
    return tl.load(base + rows[:, None] * COLUMNS + columns[None, :], mask=inside, other=0.0)


@triton.jit
def forward_kernel(
    x, w1, b1, w2, b2, out, count,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, TANH: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    net, rows = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d, h, w = tl.arange(0, DP), tl.arange(0, HP), tl.arange(0, WP)
    seen = table(x + net // C * count * D, rows, d, count, D)
    one = tl.dot(seen, table(w1 + net * D * H, d, h, D, H), input_precision=PRECISION)
    one = activated(one + tl.load(b1 + net * H + h, mask=h < H, other=0.0)[None, :], TANH)
    two = tl.dot(one, table(w2 + net * H * W, h, w, H, W), input_precision=PRECISION)
    two = activated(two + tl.load(b2 + net * W + w, mask=w < W, other=0.0)[None, :], TANH)
    inside = (rows[:, None] < count) & (w[None, :] < W)
    tl.store(out + net * count * W + rows[:, None] * W + w[None, :], two, mask=inside)


@triton.jit
def backward_kernel(
    grad, x, w1, b1, w2, b2, sums, into, count,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, TANH: tl.constexpr, PRECISION: tl.constexpr, INWARD: tl.constexpr,
) -> None:  # fmt: skip
    net, program, programs = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    d, h, w = tl.arange(0, DP), tl.arange(0, HP), tl.arange(0, WP)
    first, second = table(w1 + net * D * H, d, h, D, H), table(w2 + net * H * W, h, w, H, W)
    bias1 = tl.load(b1 + net * H + h, mask=h < H, other=0.0)[None, :]
    bias2 = tl.load(b2 + net * W + w, mask=w < W, other=0.0)[None, :]
    sum1, sum2 = tl.zeros((DP, HP), tl.float32), tl.zeros((HP, WP), tl.float32)
    lean1, lean2 = tl.zeros((HP,), tl.float32), tl.zeros((WP,), tl.float32)
    for start in range(program * ROWS, count, programs * ROWS):
        rows = start + tl.arange(0, ROWS)
        seen = table(x + net // C * count * D, rows, d, count, D)
        one = activated(tl.dot(seen, first, input_precision=PRECISION) + bias1, TANH)
        two = activated(tl.dot(one, second, input_precision=PRECISION) + bias2, TANH)
        back = table(grad + net * count * W, rows, w, count, W) * slope(two, TANH)
        sum2 = tl.dot(tl.trans(one), back, sum2, input_precision=PRECISION)
        lean2 += tl.sum(back, 0)
        back = tl.dot(back, tl.trans(second), input_precision=PRECISION) * slope(one, TANH)
        sum1 = tl.dot(tl.trans(seen), back, sum1, input_precision=PRECISION)
        lean1 += tl.sum(back, 0)
        if INWARD:
            further = tl.dot(back, tl.trans(first), input_precision=PRECISION)
            inside = (rows[:, None] < count) & (d[None, :] < D)
            tl.store(into + net * count * D + rows[:, None] * D + d[None, :], further, mask=inside)
    at = sums + (net * programs + program) * (D * H + H + H * W + W)
    tl.store(at + d[:, None] * H + h[None, :], sum1, mask=(d[:, None] < D) & (h[None, :] < H))
    at += D * H
    tl.store(at + h, lean1, mask=h < H)
    at += H
    tl.store(at + h[:, None] * W + w[None, :], sum2, mask=(h[:, None] < H) & (w[None, :] < W))
    at += H * W
    tl.store(at + w, lean2, mask=w < W)
