"""Replay against a naive buffer that walks episodes step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.buffers import PrioritisedConfig, ReplayConfig
from ganglion.core import Box, Discrete, EnvSpec, Progress
from tests.buffers.naive import feed, random_rows

CPU = torch.device("cpu")


def spec(slots: int) -> EnvSpec:
    return EnvSpec(Box((1,)), Discrete(2), slots)


def build(slots: int, capacity: int, n: int, gamma: float = 0.9, recurrent: bool = False, **settings):
    return ReplayConfig(capacity=capacity, **settings).folded(n, gamma, recurrent).build(spec(slots), CPU)


def take(buffer, count: int, seed: int = 0, at: Progress = Progress()):
    g = torch.Generator().manual_seed(seed)
    return buffer.take(torch.rand(count, generator=g, dtype=torch.float64), at)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(12, 60), st.integers(1, 4), st.integers(5, 90), st.integers(0, 10_000))
def test_every_transition_equals_the_naive_one(slots, capacity, n, count, seed):
    rows, naive = random_rows(slots, count, seed)
    buffer = build(slots, capacity, n)
    feed(buffer, rows)
    if not buffer.ready():
        assert min(count, buffer.ring.length) <= n
        return
    sample = take(buffer, 200, seed)
    t = sample.data
    times = (t.obs[0, :, 0] // 1000).long()
    slot = (t.obs[0, :, 0] % 1000).long()
    oldest = max(count - buffer.ring.length, 0)
    assert times.min() >= oldest and times.max() < count - n, "only rows whose later rows are all there"
    for i in range(200):
        row = naive.rows[times[i]][slot[i]]
        assert bool(sample.weight[0, i]) == row["valid"]
        if row["valid"]:
            reward, discount, after = naive.transition(int(times[i]), int(slot[i]), n, 0.9)
            assert t.reward[0, i].item() == pytest.approx(reward, abs=1e-5)
            assert t.discount[0, i].item() == pytest.approx(discount, abs=1e-6)
            assert t.next_obs[0, i, 0].item() == after, "the true last observation at an ending"
        assert t.action[0, i] == times[i]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(1, 3), st.integers(20, 70), st.integers(0, 10_000))
def test_every_sequence_equals_the_naive_one(slots, length, n, count, seed):
    rows, naive = random_rows(slots, count, seed, memory=True)
    buffer = build(slots, 40 * slots, n, recurrent=True, sequence=length)
    feed(buffer, rows)
    sample = take(buffer, 50, seed)
    t = sample.data
    assert t.obs.shape[:2] == (length, 50) and t.next_obs.shape[0] == length + n - 1
    for i in range(50):
        time, slot = divmod(int(t.obs[0, i, 0]), 1000)
        assert t.past.memory[0][0, i, 0] == t.obs[0, i, 0], "the memory before the first row"
        assert t.next_past.memory[0][0, i, 0] == t.next_obs[0, i, 0], "and before the first next row"
        for k in range(length):
            row = naive.rows[time + k][slot]
            assert t.obs[k, i, 0] == row["obs"] and bool(t.past.start[k, i]) == row["start"]
            assert bool(sample.weight[k, i]) == row["valid"]
            if row["valid"]:
                reward, discount, after = naive.transition(time + k, slot, n, 0.9)
                assert t.reward[k, i].item() == pytest.approx(reward, abs=1e-5)
                assert t.discount[k, i].item() == pytest.approx(discount, abs=1e-6)
                assert t.next_obs[t.ahead[k, i], i, 0] == after


def test_sampling_is_uniform_over_what_can_be_sampled():
    rows, _ = random_rows(4, 30, 0)
    buffer = build(4, 80, 1)
    feed(buffer, rows)
    sample = take(buffer, 40_000)
    counts = torch.bincount(sample.index[0], minlength=80).float()
    live = counts[counts > 0]
    assert len(live) == (20 - 1) * 4
    assert (live / live.mean() - 1).abs().max() < 0.25


def test_use_and_staleness_are_counted_and_limited():
    rows, _ = random_rows(1, 12, 3)
    buffer = build(1, 12, 1, max_use=2, max_staleness=8)
    feed(buffer, rows)
    middle = torch.full((1,), 0.5, dtype=torch.float64)
    index = buffer.take(middle, Progress(opt_steps=9)).index
    assert buffer.usage.uses(index) == 1
    weights = [float(buffer.take(middle, Progress(opt_steps=9)).weight.sum()) for _ in range(2)]
    valid = float(buffer.ring.held.valid[index[0]])
    assert weights == [valid, 0.0], "a third use counts nothing"
    late = buffer.take(torch.tensor([0.01], dtype=torch.float64), Progress(opt_steps=9))
    assert float(late.weight.sum()) == 0.0, "row 0 is 9 updates old, and 8 are allowed"
    assert set(buffer.metrics()) >= {"rows", "use", "staleness"}


def test_a_row_drawn_twice_at_once_is_not_lost_by_its_limit():
    rows, _ = random_rows(1, 12, 3)
    buffer = build(1, 12, 1, max_use=1)
    feed(buffer, rows)
    live = int(buffer.ring.held.valid[:11].flatten().nonzero()[0])
    twice = torch.full((2,), (live + 0.5) / 11, dtype=torch.float64)
    assert buffer.take(twice, Progress()).weight.tolist() == [[1.0, 1.0]]
    assert buffer.take(twice, Progress()).weight.tolist() == [[0.0, 0.0]]


def test_burn_in_rows_warm_the_memory_up_only():
    rows, _ = random_rows(2, 40, 1, memory=True)
    buffer = build(2, 80, 1, recurrent=True, sequence=6, burn_in=2)
    feed(buffer, rows)
    weight = take(buffer, 30).weight
    assert not weight[:2].any() and weight[2:].any()


@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
@pytest.mark.parametrize("count", [0, 7, 60])
def test_state_round_trip_continues_the_same(kind, count):
    rows, _ = random_rows(3, 80, 5)
    make = lambda: kind(capacity=90).folded(2, 0.9, False).build(spec(3), CPU)  # noqa: E731
    one, two = make(), make()
    feed(one, rows[:count])
    two.restore(one.state())
    for buffer in (one, two):
        feed(buffer, rows[count:])
    a, b = take(one, 64), take(two, 64)
    assert torch.equal(a.index, b.index) and torch.equal(a.weight, b.weight)
    assert torch.equal(a.data.reward, b.data.reward) and torch.equal(a.data.next_obs, b.data.next_obs)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(2, 60), st.integers(1, 16))
def test_stamps_name_the_last_push_into_each_block(pushed, length, block):
    from ganglion.buffers.storage import RowRing

    ring = RowRing(length, CPU, block)
    ring.pushed = pushed
    last = [0] * -(-length // block)
    for p in range(pushed):
        last[p % length // block] = p + 1
    assert ring.stamps() == tuple(last)
