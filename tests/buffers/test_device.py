"""On a GPU a replay gives what it gives in main memory."""

from __future__ import annotations

import pytest
import torch

from ganglion import ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig
from ganglion.core import Progress
from tests.buffers.naive import feed
from tests.buffers.test_frames import FRAMES, walk

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize(("n", "recurrent"), [(1, False), (3, False), (1, True), (2, True)])
def test_a_sample_of_a_gpu_is_that_of_main_memory(kind, name, n, recurrent):
    spec, rows = walk(FRAMES[name], 3, 4, 90, seed=n, size=5 if recurrent else 0)
    make = kind(capacity=200, batch=32).folded(n, 0.9, recurrent)
    buffers = [make.build(spec, torch.device(device)) for device in ("cpu", "cuda")]
    for buffer in buffers:
        feed(buffer, rows)
    g = torch.Generator().manual_seed(0)
    for update in range(4):
        uniform = torch.rand(32, generator=g, dtype=torch.float64)
        samples = [buffer.take(uniform, Progress(opt_steps=100 + update)) for buffer in buffers]
        for here, there in zip(*(ops.leaves(sample) for sample in samples), strict=True):
            assert torch.allclose(here.double(), there.cpu().double(), atol=1e-6)
        for buffer, sample in zip(buffers, samples, strict=True):
            buffer.feedback(sample.index, torch.linspace(0, 2, 32, device=sample.index.device))
    restored = make.build(spec, torch.device("cuda"))
    restored.restore(buffers[0].state())
    again = [buffer.take(uniform, Progress(opt_steps=200)) for buffer in (buffers[0], restored)]
    assert all(
        torch.allclose(x.double(), y.cpu().double(), atol=1e-6) for x, y in zip(*map(ops.leaves, again), strict=True)
    )
