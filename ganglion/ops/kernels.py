"""The scan as one kernel for CUDA tensors, imported when first needed: Triton comes with torch's CUDA builds."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

CHUNK = 1024  # rows that one program scans at a time


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _later_then(f_later, y_later, f, y):  # type: ignore[no-untyped-def]
    """Two spans of y = x + f * next as one, the later one first: the order of a reverse scan."""
    return f_later * f, y + f * y_later


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scan_slot(x_at, f_at, y_at, rows, slots, chunk: tl.constexpr, chunks: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per slot: chunks of rows from the last to the first, each by a parallel scan, joined by a carry."""
    slot = tl.program_id(0).to(tl.int64)
    carry = tl.full((), 0.0, y_at.dtype.element_ty)
    for i in range(chunks):
        first = (chunks - 1 - i) * chunk
        row = first + tl.arange(0, chunk)
        live = row < rows
        place = row * slots + slot
        x = tl.load(x_at + place, mask=live, other=0.0)
        f = tl.load(f_at + place, mask=live, other=0.0)
        passed, y = tl.associative_scan((f, x), 0, _later_then, reverse=True)
        y += passed * carry
        tl.store(y_at + place, y, mask=live)
        carry = tl.sum(tl.where(row == first, y, 0.0), 0).to(y_at.dtype.element_ty)


def fused_scan(x: Tensor, factor: Tensor) -> Tensor:
    """`scan` of [T, ...] tensors in one launch."""
    x, factor = x.contiguous(), factor.contiguous()
    y = torch.empty_like(x)
    rows = x.shape[0]
    slots = x.numel() // max(rows, 1)
    chunk = min(CHUNK, triton.next_power_of_2(rows))
    if slots:
        _scan_slot[(slots,)](x, factor, y, rows, slots, chunk, triton.cdiv(rows, chunk))
    return y
