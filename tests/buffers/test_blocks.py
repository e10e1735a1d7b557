"""Rows pushed as blocks: T of them at once are T pushes of one, to the last bit, also round the ring."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion import ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig, RolloutConfig, row_kernels
from ganglion.buffers.storage import RowRing
from ganglion.core import EnvSpec, Past, Progress, Row, State
from tests.buffers.naive import block, random_rows
from tests.buffers.test_frames import FRAMES, walk

CPU = torch.device("cpu")
KINDS = {
    "replay": ReplayConfig(capacity=2, max_use=3),
    "prioritised": PrioritisedConfig(capacity=2),
    "by error": PrioritisedConfig(capacity=2, initial="error"),
    "sequences": PrioritisedConfig(capacity=2, sequence=3, burn_in=1),
}
WORLDS = ["vector", "channel first", "named", "memory"]


def rows_of(world: str, slots: int, count: int, seed: int) -> tuple[EnvSpec, list[Row]]:
    """Small observations, frames that are kept once, memories; each row says what was expected of it."""
    size = 3 if world == "memory" else 0
    spec, rows = walk(FRAMES["vector" if world == "memory" else world], 3, slots, count, seed, size)
    g = torch.Generator().manual_seed(seed)
    said = lambda: {name: torch.randn(slots, generator=g) for name in ("q", "value")}  # noqa: E731
    return spec, [row._replace(extras=said()) for row in rows]


def push(buffer: Any, rows: list[Row], opt_steps: int) -> None:
    last = rows[-1]
    buffer.push(block(rows), (last.obs, Past((), last.start[None])), Progress(opt_steps=opt_steps))


def kept(state: State) -> list[torch.Tensor]:
    arrays = [x for ring in state.rings.values() for x in ring.arrays.values()]
    return [x.clone() for x in (*state.tensors.values(), *arrays)] + [
        torch.tensor(stamp) for ring in state.rings.values() for stamp in ring.stamps
    ]


def alike(one: Any, two: Any) -> None:
    """Both keep the same, and give the same."""
    for a, b in zip(kept(one.state()), kept(two.state()), strict=True):
        assert torch.equal(a, b)
    if one.ready():
        uniform = torch.rand(16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        samples = [buffer.take(uniform, Progress(opt_steps=90)) for buffer in (one, two)]
        for a, b in zip(*map(ops.leaves, samples), strict=True):
            assert torch.equal(a, b)
        priority = torch.linspace(0, 3, 16)
        for buffer, sample in zip((one, two), samples, strict=True):
            buffer.feedback(sample.index, priority)


def compared(kind: str, world: str, blocks: list[int], length: int, n: int, seed: int) -> None:
    spec, rows = rows_of(world, 2, sum(blocks), seed)
    cfg = KINDS[kind].model_copy(update={"capacity": 2 * length})
    one, many = (cfg.folded(n, 0.9, world == "memory").build(spec, CPU) for _ in range(2))
    first = 0
    for turn, count in enumerate(blocks):
        some, first = rows[first : first + count], first + count
        push(many, some, turn)
        for row in some:
            push(one, [row], turn)
        alike(one, many)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(KINDS)), st.sampled_from(WORLDS), st.lists(st.integers(1, 40), min_size=1, max_size=6),
       st.integers(9, 25), st.integers(1, 3), st.integers(0, 10_000))  # fmt: skip
def test_a_block_is_its_rows_one_by_one(kind, world, blocks, length, n, seed):
    """Also where it goes round the ring, or is longer than it."""
    compared(kind, world, blocks, length, n, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_block_is_its_rows_without_a_compiler(kind, world, monkeypatch):
    monkeypatch.setattr(row_kernels, "code", lambda: None)
    compared(kind, world, [1, 7, 20, 1, 31, 3, 3], 12, 2, 0)


def test_a_ring_keeps_the_newest_rows_of_a_block_that_is_longer():
    rows, _ = random_rows(2, 23, 0)
    ring = RowRing(5, CPU)
    ring.push(block(rows))
    assert ring.pushed == 23
    newest = [rows[18 + (place - 18) % 5] for place in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(ops.leaves(ring.rows), ops.leaves(block(newest)), strict=True))


def test_a_rollout_takes_blocks_that_fit_and_refuses_others():
    rows, _ = random_rows(2, 8, 0)
    one, many = (RolloutConfig().rollouts(0.9, 8).build(EnvSpec(FRAMES["vector"], FRAMES["vector"], 2), CPU)
                 for _ in range(2))  # fmt: skip
    for row in rows:
        push(one, [row], 0)
    push(many, rows[:5], 0)
    assert many.room() == 3 and not many.ready()
    with pytest.raises(ValueError, match="4 rows for a rollout that has room for 3"):
        push(many, rows[:4], 0)
    push(many, rows[5:], 0)
    assert many.room() == 0 and many.ready()
    items = [buffer.take(torch.empty(0), Progress()) for buffer in (one, many)]
    assert all(torch.equal(a, b) for a, b in zip(*map(ops.leaves, items), strict=True))
    many.release()
    assert many.room() == 8
