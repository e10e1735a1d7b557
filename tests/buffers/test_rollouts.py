"""Rollouts and extras from a replay, against a buffer that remembers every row and looks them up one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion import ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig, RolloutConfig
from ganglion.core import Box, Discrete, EnvSpec, Past, Progress, Rollout, Row, Sample, Transition
from ganglion.errors import UserError
from tests.buffers.naive import feed, random_rows
from tests.buffers.test_frames import FRAMES, same, walk

CPU, GAMMA = torch.device("cpu"), 0.9


def said(rows: list[Row]) -> list[Row]:
    """Rows that say where they are, in a number and in a vector."""
    g, slots = torch.Generator().manual_seed(len(rows)), len(rows[0].reward) if rows else 0
    said = lambda t: {"time": torch.full((slots,), float(t)), "pi": torch.rand(slots, 3, generator=g)}  # noqa: E731
    return [row._replace(extras=said(t)) for t, row in enumerate(rows)]


def stream(world: str, slots: int, count: int, seed: int) -> tuple[EnvSpec, list[Row]]:
    if world in FRAMES:
        spec, rows = walk(FRAMES[world], 3, slots, count, seed, size=2 if world == "grey" else 0)
    else:
        rows, _ = random_rows(slots, count, seed, memory=world == "memory")
        spec = EnvSpec(Box((1,)), Discrete(2), slots)
    return spec, said(rows)


def expected(rows: list[Row], time: int, slot: int, length: int) -> Rollout:
    """The rollout from one row on, [T, 1, ...], row by row."""
    along = [ops.map_tree(lambda x: x[slot : slot + 1], rows[time + k]) for k in range(length + 1)]
    past = Past(tuple(m[None] for m in along[0].memory), torch.stack([row.start for row in along[:-1]]))
    last = along[-1]
    discount = [torch.tensor([0.0 if row.terminated else GAMMA]) for row in along[:-1]]
    cut = [row.terminated | row.truncated for row in along[:-1]]
    rest = ops.stack([(row.obs, row.action, row.reward, row.valid, row.extras) for row in along[:-1]])
    after = ops.map_tree(lambda x: x[None], last.obs), Past(tuple(m[None] for m in last.memory), last.start[None])
    return Rollout(*rest[:3], torch.stack(discount), torch.stack(cut), *rest[3:], past, after)


def check(sample: Sample[Rollout], rows: list[Row], length: int, oldest: int) -> None:
    t = sample.data
    times = t.extras["time"]
    assert times.shape == (length, sample.index.shape[1]) and sample.index.shape[0] == 1
    assert times[0].min() >= oldest and times[-1].max() < len(rows) - 1, "all rows are there, and one after them"
    slots = len(rows[0].reward)
    for i in range(times.shape[1]):
        time, slot = int(times[0, i]), int(sample.index[0, i]) % slots
        want = expected(rows, time, slot, length)
        assert same(ops.map_tree(lambda x, i=i: x[:, i : i + 1], t), want), (time, slot)
        assert torch.equal(sample.weight[:, i] > 0, want.valid[:, 0])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([ReplayConfig, PrioritisedConfig]), st.sampled_from(["plain", "memory", "grey", "named"]),
       st.integers(1, 3), st.integers(1, 6), st.integers(0, 60), st.integers(0, 10_000))  # fmt: skip
def test_every_rollout_is_the_rows_one_by_one(kind, world, slots, length, count, seed):
    """With endings and truncations, memories and frames, before the ring is full, at the write head and after it."""
    spec, rows = stream(world, slots, count, seed)
    buffer = kind(capacity=14 * slots, batch=20).rollouts(GAMMA, length).build(spec, CPU)
    g = torch.Generator().manual_seed(seed)
    for first in range(0, count, 9):
        feed(buffer, rows[first : first + 9])
        if buffer.ready():
            sample = buffer.take(torch.rand(20, generator=g, dtype=torch.float64), Progress())
            oldest = max(min(first + 9, count) - buffer.ring.length, 0)
            check(sample, rows[: first + 9], length, oldest)
            buffer.feedback(sample.index, torch.rand(20, generator=g))


def test_all_starts_are_drawn_up_to_the_write_head():
    spec, rows = stream("plain", 2, 40, 3)
    buffer = ReplayConfig(capacity=24).rollouts(GAMMA, 4).build(spec, CPU)
    feed(buffer, rows)
    times = buffer.take(torch.linspace(0, 1 - 1e-9, 400, dtype=torch.float64), Progress()).data.extras["time"]
    assert times[0].unique().tolist() == list(range(28, 36)) and times[-1].max() == 38


@pytest.mark.parametrize("world", ["plain", "memory", "grey"])
@pytest.mark.parametrize(("n", "sequence"), [(1, 1), (1, 4), (3, 1), (2, 5)])
def test_transitions_bring_what_was_said_of_their_rows(world: str, n: int, sequence: int):
    spec, rows = stream(world, 2, 40, 1)
    recurrent = world != "plain"
    buffer = ReplayConfig(capacity=50, sequence=sequence).folded(n, GAMMA, recurrent).build(spec, CPU)
    feed(buffer, rows)
    sample: Sample[Transition] = buffer.take(torch.rand(64, dtype=torch.float64), Progress())
    t = sample.data
    assert set(t.extras) == {"time", "pi"}, "and nothing that the replay keeps of its own"
    for i in range(64):
        slot = int(sample.index[0, i]) % 2
        for k in range(sequence):
            row = rows[int(t.extras["time"][k, i])]
            assert int(t.extras["time"][k, i]) == int(t.extras["time"][0, i]) + k
            assert torch.equal(t.extras["pi"][k, i], row.extras["pi"][slot])
            assert t.valid[k, i] == row.valid[slot] and t.cut[k, i] == (row.terminated | row.truncated)[slot]
            if n == 1:
                assert t.reward[k, i] == row.reward[slot], "raw"


def test_a_part_of_a_sample_is_taken_along_its_slots():
    """What `plan` does: everything in a sample has slots as its second axis."""
    spec, rows = stream("memory", 2, 30, 1)
    for asked in (ReplayConfig(sequence=3).folded(1, GAMMA, True), ReplayConfig().rollouts(GAMMA, 3)):
        buffer = asked.build(spec, CPU)
        feed(buffer, rows)
        sample: Any = buffer.take(torch.rand(12, dtype=torch.float64), Progress())
        some = ops.take(sample, torch.tensor([7, 2]), dim=1)
        assert torch.equal(some.index, sample.index[:, [7, 2]])
        assert torch.equal(some.data.extras["time"], sample.data.extras["time"][:, [7, 2]])


def test_a_sample_of_nothing_changes_nothing():
    """Whoever resumes asks for one, to see how a sample is built."""
    spec, rows = stream("plain", 2, 30, 1)
    for kind in (ReplayConfig, PrioritisedConfig):
        buffer = kind().folded(1, GAMMA, False).build(spec, CPU)
        feed(buffer, rows)
        buffer.take(torch.rand(12, dtype=torch.float64), Progress(opt_steps=50))
        before = {name: x.clone() for name, x in buffer.state().tensors.items()}
        assert buffer.take(torch.empty(0, dtype=torch.float64), Progress()).index.shape == (1, 0)
        assert all(torch.equal(before[name], x) for name, x in buffer.state().tensors.items())


def test_a_name_that_frames_need_is_refused():
    spec, rows = walk(FRAMES["grey"], 3, 2, 4, 0)
    buffer = ReplayConfig().folded(1, GAMMA, False).build(spec, CPU)
    with pytest.raises(ValueError, match="'back'"):
        feed(buffer, [rows[0]._replace(extras={"back": torch.zeros(2)})])


def test_rollouts_are_no_transitions():
    with pytest.raises(UserError, match=r"algo\.replay\.kind: rollout keeps whole rollouts"):
        RolloutConfig().folded(1, GAMMA, False)
