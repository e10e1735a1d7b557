"""Rollouts of whole episodes, against rows remembered one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion import ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig, RolloutConfig
from ganglion.core import Box, Discrete, EnvSpec, Progress, Row
from ganglion.errors import UserError
from tests.buffers.naive import Naive, block, random_rows
from tests.buffers.test_blocks import push

CPU, GAMMA = torch.device("cpu"), 0.9
NOW = Progress()


def built(slots: int, horizon: int, keep: int = 1) -> Any:
    spec = EnvSpec(Box((1,)), Discrete(2), slots)
    return RolloutConfig(episodes=True).rollouts(GAMMA, horizon, keep).build(spec, CPU)


def parts(naive: Naive, rows: int, horizon: int) -> list[tuple[int, int, int]]:
    """(row in which it is known, slot, first row) of each episode or part of one, among the first so many rows."""
    found = []
    for slot in range(naive.slots):
        first = None
        for t in range(rows):
            row = naive.rows[t][slot]
            if row["valid"] and first is None:
                first = t
            elif first is not None and (not row["valid"] or t - first == horizon):
                found.append((t, slot, first))
                first = t if row["valid"] else None
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(0, 10_000), st.booleans())
def test_items_are_the_episodes_in_the_order_in_which_they_end(slots, horizon, keep, seed, resumed):
    rows, naive = random_rows(slots, 120, seed, memory=True)
    buffer, given_out, items = built(slots, horizon, keep), [], []
    for t, row in enumerate(rows):
        push(buffer, [row], t)
        while buffer.ready():
            given_out += parts(naive, t + 1, horizon)[len(given_out) :][:slots]
            item = buffer.take(torch.empty(0), NOW)
            check(item, given_out[-slots:], naive, horizon)
            items.append(ops.map_tree(torch.clone, item))
            most = min(len(items), keep)
            for a, b in zip(*map(ops.leaves, (buffer.recent(most), ops.concat(items[-most:], 1))), strict=True):
                assert torch.equal(a, b)
            buffer.release()
        if resumed and t == 60:
            again = built(slots, horizon, keep)
            again.restore(buffer.state())
            buffer = again
    assert len(given_out) + slots > len(parts(naive, 120, horizon)), "none is left behind"


def check(item: Any, which: list[tuple[int, int, int]], naive: Naive, horizon: int) -> None:
    for k, (_, slot, first) in enumerate(which):
        for t in range(horizon):
            row = naive.rows[first + t][slot] if first + t < len(naive.rows) else {"valid": False}
            inside = bool(item.valid[t, k])
            ended = any(not naive.rows[first + s][slot]["valid"] for s in range(t + 1) if first + s < len(naive.rows))
            assert inside == (not ended)
            if inside:
                assert float(item.reward[t, k]) == pytest.approx(row["reward"])
                assert float(item.discount[t, k]) == pytest.approx(0.0 if row["terminated"] else GAMMA)
                last = t == horizon - 1 or not naive.rows[first + t + 1][slot]["valid"]
                assert bool(item.cut[t, k]) == last
                after = item.obs[t + 1, k] if t + 1 < horizon else item.last[0][0, k]
                assert float(after) == naive.rows[first + t + 1][slot]["obs"], "what follows it, after its end too"
        assert float(item.past.memory[0][0, k, 0]) == naive.rows[first][slot]["obs"]


def test_many_rows_at_once_are_rows_one_by_one():
    rows, _ = random_rows(3, 60, 5)
    one, many = built(3, 7), built(3, 7)
    for t in range(0, 60, 3):
        for row in rows[t : t + 3]:
            push(one, [row], t)
        push(many, rows[t : t + 3], t)
        for buffer in (one, many):
            if buffer.ready():
                buffer.release()
        assert one.ended == many.ended and one.open == many.open and one.used == many.used


def test_a_stream_that_breaks_off_ends_an_episode():
    """A start without an ending before it: the row before shows what can be known of what followed."""
    rows = [row_at(t, start=t in (0, 3)) for t in range(5)]
    buffer = built(1, 10)
    push(buffer, rows, 0)
    item = buffer.take(torch.empty(0), NOW)
    assert item.valid[:, 0].tolist() == [True, True] + [False] * 8 and item.cut[1, 0]
    assert float(item.obs[2, 0]) == 2.0


def row_at(t: int, start: bool) -> Row:
    no, number = torch.zeros(1, dtype=torch.bool), torch.full((1,), float(t))
    return Row(number[:, None], torch.zeros(1), number, no, no, ~no, torch.full((1,), start), {}, ())


def test_what_was_saved_must_fit():
    buffer = built(2, 5)
    push(buffer, random_rows(2, 30, 0)[0], 0)
    state = buffer.state()
    with pytest.raises(ValueError, match="outside"):
        table = state.tensors["own/episodes"].clone()
        table[0, 1] = 10_000
        built(2, 5).restore(state._replace(tensors={**state.tensors, "own/episodes": table}))
    assert block(random_rows(2, 1, 0)[0]).reward.shape == (1, 2)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 3), st.integers(1, 90), st.integers(0, 10_000))
def test_replayed_sequences_begin_and_end_with_an_episode(slots, length, n, count, seed):
    rows, naive = random_rows(slots, count, seed, memory=True)
    replay = ReplayConfig(capacity=20 * slots, batch=64, sequence=length, episodes=True)
    buffer = replay.folded(n, GAMMA, True).build(EnvSpec(Box((1,)), Discrete(2), slots), CPU)
    starts = set[float]()
    for t, row in enumerate(rows):
        push(buffer, [row], t)
        oldest, newest = max(t + 1 - buffer.ring.length, 0), t + 1 - buffer.fold.reach
        starts = {
            naive.rows[k][b]["obs"] for k in range(oldest, newest) for b in range(slots) if naive.rows[k][b]["start"]
        }
        assert buffer.ready() == bool(starts)
    if not starts:
        return
    sample = buffer.take(torch.linspace(0, 1 - 1e-9, 64, dtype=torch.float64), NOW)
    first = sample.data.obs[0, :, 0]
    assert set(first.tolist()) <= starts and (len(starts) > 20 or set(first.tolist()) == starts)
    for k in range(64):
        time, slot = divmod(int(first[k]), 1_000)
        for j in range(length):
            row = naive.rows[time + j][slot]
            own = row["valid"] and not any(naive.rows[time + i][slot]["start"] for i in range(1, j + 1))
            assert bool(sample.weight[j, k] > 0) == own


def test_priorities_are_not_of_episodes():
    with pytest.raises(UserError, match=r"algo\.replay\.episodes: draws episodes evenly"):
        PrioritisedConfig(episodes=True).folded(1, GAMMA, False).build(EnvSpec(Box((1,)), Discrete(2), 2), CPU)
