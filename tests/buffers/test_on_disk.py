"""A replay in a file: the same samples, and more rows than a process may have in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ganglion import mapped, ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig
from ganglion.core import Progress, State
from ganglion.errors import UserError
from ganglion.record import checkpoint
from ganglion.record.checkpoint import Checkpoints
from tests.buffers.test_blocks import WORLDS, push, rows_of

CPU = torch.device("cpu")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at a process as Linux shows it")


def uniform(seed: int) -> torch.Tensor:
    return torch.rand(16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_file(x: torch.Tensor) -> bool:
    """Whether its numbers lie in a file without a name, as the system sees it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= x.data_ptr() < last:
            return line.endswith("(deleted)")
    return False


@linux
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
def test_samples_are_those_of_memory_also_after_a_checkpoint(kind, world: str, tmp_path: Path, monkeypatch) -> None:
    spec, rows = rows_of(world, 2, 60, 3)
    build = lambda store: (  # noqa: E731
        kind(capacity=40, batch=16, store=store).folded(2, 0.9, world == "memory").build(spec, CPU)
    )
    made = [build("memory"), build("disk")]
    for t in range(0, 60, 5):
        for buffer in made:
            push(buffer, rows[t : t + 5], t)
    assert in_file(made[1].ring.records) and not in_file(made[0].ring.records)
    monkeypatch.setattr(checkpoint, "too_large", lambda size: True)
    saved = Checkpoints(tmp_path, 1)
    state, _ = saved.load(saved.save(made[1].state(), 60, {}))
    assert all(in_file(x) for ring in state.rings.values() for x in ring.arrays.values())
    again = build("disk")
    again.restore(State(state.tensors, state.scalars, state.rings))
    for seed in range(3):
        first, *others = [ops.map_tree(torch.clone, b.take(uniform(seed), Progress())) for b in (*made, again)]
        for other in others:
            for a, b in zip(ops.leaves(first), ops.leaves(other), strict=True):
                assert torch.equal(a, b)


LARGE = """
import resource, torch
from ganglion.buffers import ReplayConfig
from ganglion.core import Box, Discrete, EnvSpec, Past, Progress, Row
from ganglion.errors import UserError

spec, off = EnvSpec(Box((256,)), Discrete(2), 1), torch.zeros(1, 1, dtype=torch.bool)
row = Row(torch.ones(1, 1, 256), torch.zeros(1, 1), torch.ones(1, 1), off, off, ~off, off, {}, ())
def full(store):
    cfg = ReplayConfig(capacity=4_000_000, batch=4, store=store)
    replay = cfg.folded(1, 0.9, False).build(spec, torch.device("cpu"))
    for _ in range(3):
        replay.push(row, (row.obs[0], Past((), off)), Progress())
    return float(replay.take(torch.rand(4, dtype=torch.float64), Progress()).data.obs.sum())
full_once = ReplayConfig(capacity=10, batch=4).folded(1, 0.9, False).build(spec, torch.device("cpu"))
resource.setrlimit(resource.RLIMIT_DATA, (3_000_000_000,) * 2)
assert full("disk") == 1024.0
try:
    full("memory")
except UserError as error:
    assert "no room" in str(error)
else:
    raise SystemExit("it fitted")
"""


@linux
def test_rows_that_no_memory_holds() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2_000:]


def test_it_is_for_a_cpu() -> None:
    spec, _ = rows_of("vector", 1, 1, 0)
    with pytest.raises(UserError, match=r"algo\.replay\.store: disk is for run\.device cpu, not meta"):
        ReplayConfig(store="disk").folded(1, 0.9, False).build(spec, torch.device("meta"))
    assert not mapped.too_large(1_000) and mapped.too_large(1 << 60)
