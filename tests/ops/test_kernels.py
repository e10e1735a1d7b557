"""The CUDA scan: interpreted on the CPU where Triton is installed, and on a device where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from ganglion import ops

CHECK = """
import torch
from ganglion.ops import kernels, scan
for chunk in (1024, 8):
    kernels.CHUNK = chunk
    for rows, slots in ((1, 1), (2, 3), (7, 2), (16, 1), (33, 2)):
        x, f = torch.randn(rows, slots), torch.rand(rows, slots) * (torch.rand(rows, slots) < 0.8)
        torch.testing.assert_close(kernels.fused_scan(x, f), scan(x, f))
"""


def test_interpreted_kernel() -> None:
    pytest.importorskip("triton")
    folder = str(Path(__file__).parents[2])
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    subprocess.run([sys.executable, "-c", CHECK], check=True, env=env)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (128, 64), (1024, 64), (1025, 3), (5000, 2), (16, 2, 3)])
def test_kernel_on_a_device(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, dtype=dtype, generator=g)
    f = torch.rand(*shape, dtype=dtype, generator=g) * (torch.rand(*shape, generator=g) < 0.95)
    tight = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    assert_close(ops.scan(x.cuda(), f.cuda()).cpu(), ops.scan(x, f), **tight)


@pytest.mark.gpu
def test_kernel_gradients_on_a_device() -> None:
    x, f = (torch.randn(9, 2, dtype=torch.float64, device="cuda", requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(ops.scan, (x, f))
