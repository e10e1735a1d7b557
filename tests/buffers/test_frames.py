"""Frames kept once, against buffers that keep whole stacks; the stacks are made by the wrapper itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion import ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig
from ganglion.buffers.frames import BACK, Frames
from ganglion.core import Box, Composite, Discrete, EnvSpec, Progress, Row, Space, Step
from ganglion.envs import FrameStack
from ganglion.record.checkpoint import Checkpoints
from tests.buffers.naive import feed
from tests.contract.worlds import RandomWorld

CPU = torch.device("cpu")
FRAMES: dict[str, Space] = {
    "vector": Box((3,)),
    "grey": Box((4, 4), torch.uint8),
    "channel first": Box((1, 5, 5), torch.uint8),
    "colour last": Box((5, 5, 2), torch.uint8),
    "one pixel tall": Box((2, 7, 3)),
    "named": Composite({
        "pixels": Box((1, 4, 4), torch.uint8), "speed": Box((2,)), "gear": Discrete(3),
        "action_mask": Box((2,), torch.bool, (0.0,), (1.0,)),
    }),
}  # fmt: skip


class World(RandomWorld):
    """Random frames and endings; masks are bits."""

    def mask(self, step: Step) -> Step:
        if not isinstance(step.obs, dict):
            return step
        return step._replace(obs={**step.obs, "action_mask": step.obs["action_mask"] > 0})

    def reset(self, seed: int) -> Step:
        return self.mask(super().reset(seed))

    def step(self, action: Any) -> Step:
        return self.mask(super().step(action))

    def check_legal(self, action: Any) -> None: ...


def walk(frame: Space, count: int, slots: int, rows: int, seed: int, size: int = 0) -> tuple[EnvSpec, list[Row]]:
    """Rows as an Explorer makes them; `size` numbers of memory."""
    env = FrameStack(World(EnvSpec(frame, Discrete(2), slots)), count)
    step, start, made = env.reset(seed), torch.ones(slots, dtype=torch.bool), []
    for t in range(rows):
        action = torch.full((slots,), t % 2)
        after = env.step(action)
        memory = (torch.full((slots, size), float(t)),) if size else ()
        flags = (after.terminated, after.truncated, step.valid)
        made.append(Row(step.obs, action, after.reward, *flags, start, {}, memory))
        step, start = after, ~step.valid
    return env.spec, made


def both(spec: EnvSpec, cfg: ReplayConfig, n: int, recurrent: bool = False) -> tuple[Any, Any]:
    """A buffer that keeps frames, and a naive one that keeps stacks."""
    make = cfg.folded(n, 0.9, recurrent)
    frames, naive = make.build(spec, CPU), make.build(replace(spec, frame=None), CPU)
    assert isinstance(frames.seen, Frames) and not isinstance(naive.seen, Frames)
    return frames, naive


def same(a: Any, b: Any, where: torch.Tensor | None = None) -> bool:
    """Trees of equal leaves, on rows [T, N] where asked."""
    pairs = zip(ops.leaves(a), ops.leaves(b), strict=True)
    return all(torch.equal(x, y) if where is None else torch.equal(x[where], y[where]) for x, y in pairs)


def drawable(buffer: Any) -> torch.Tensor:
    """Every flat position that may be sampled, [1, N]."""
    first = buffer.ring.pushed - buffer.ring.filled + buffer.lost
    times = torch.arange(first, buffer.ring.pushed - buffer.fold.reach)
    return ((times[:, None] * buffer.slots + torch.arange(buffer.slots)) % buffer.size).reshape(1, -1)


cases = st.tuples(
    st.sampled_from(list(FRAMES)), st.integers(2, 5), st.integers(1, 3), st.integers(1, 60), st.integers(0, 10_000)
)


@settings(max_examples=80, deadline=None)
@given(cases, st.integers(1, 3), st.integers(12, 25), st.sampled_from([1, 4]))
def test_every_sample_is_that_of_a_buffer_of_whole_stacks(case, n, length, sequence):
    kind, count, slots, rows, seed = case
    spec, made = walk(FRAMES[kind], count, slots, rows, seed)
    frames, naive = both(spec, ReplayConfig(capacity=length * slots, sequence=sequence), n)
    feed(frames, made)
    feed(naive, made)
    if not frames.ready():
        return
    index = drawable(frames)
    a, b = (buffer.gather(index, None, Progress()) for buffer in (frames, naive))
    assert torch.equal(a.weight, b.weight) and same(a.data.obs, b.data.obs), "also of dead rows"
    assert same(ops.map_tree(lambda x: x, a.data.next_obs), b.data.next_obs, a.weight > 0)
    assert same(a.data._replace(obs=(), next_obs=()), b.data._replace(obs=(), next_obs=()))


@settings(max_examples=40, deadline=None)
@given(cases, st.integers(1, 3), st.integers(1, 5))
def test_every_sequence_with_memory_is_that_of_a_buffer_of_whole_stacks(case, n, sequence):
    """Also what follows a dead row: the memory runs through it."""
    kind, count, slots, rows, seed = case
    spec, made = walk(FRAMES[kind], count, slots, rows, seed, size=3)
    frames, naive = both(spec, ReplayConfig(capacity=20 * slots, sequence=sequence), n, recurrent=True)
    feed(frames, made)
    feed(naive, made)
    if frames.ready():
        a, b = (buffer.gather(drawable(frames), None, Progress()) for buffer in (frames, naive))
        assert same(a.data, b.data)


@settings(max_examples=30, deadline=None)
@given(cases, st.sampled_from([ReplayConfig, PrioritisedConfig]), st.integers(1, 3))
def test_what_is_drawn_at_the_write_head_is_what_was_seen(case, kind, n):
    name, count, slots, rows, seed = case
    spec, made = walk(FRAMES[name], count, slots, rows, seed)
    buffer = kind(capacity=12 * slots).folded(n, 0.9, False).build(spec, CPU)
    g = torch.Generator().manual_seed(seed)
    for t, row in enumerate(made):
        feed(buffer, [row])
        if not buffer.ready():
            continue
        sample = buffer.take(torch.rand(20, generator=g, dtype=torch.float64), Progress())
        assert torch.isin(sample.index, drawable(buffer)).all()
        for i, index in enumerate(sample.index[0].tolist()):
            place, slot = divmod(index, slots)
            time = t - (t - place) % buffer.ring.length
            assert same(ops.map_tree(lambda x, i=i: x[0, i], sample.data.obs), ops.select(made[time].obs, slot))


def test_priorities_are_never_given_to_rows_without_their_frames():
    spec, made = walk(FRAMES["vector"], 4, 2, 60, 1)
    buffer = PrioritisedConfig(capacity=40).folded(1, 0.9, False).build(spec, CPU)
    for row in made:
        feed(buffer, [row])
        live = torch.nonzero(buffer.tree.mass).flatten()
        assert torch.isin(live, drawable(buffer)).all()


@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
@pytest.mark.parametrize("count", [0, 5, 45])
def test_a_saved_buffer_continues_the_same(kind, count, tmp_path):
    spec, made = walk(FRAMES["named"], 4, 2, 70, 3)
    one, two = (kind(capacity=60).folded(2, 0.9, False).build(spec, CPU) for _ in range(2))
    feed(one, made[:count])
    checkpoints = Checkpoints(tmp_path, 1)
    two.restore(checkpoints.load(checkpoints.save(one.state(), 1, {}))[0])
    uniform = torch.rand(64, dtype=torch.float64)
    for buffer in (one, two):
        feed(buffer, made[count:])
    a, b = (buffer.take(uniform, Progress()) for buffer in (one, two))
    assert same(a, b)
    assert torch.equal(one.ring.held.extras[BACK], two.ring.held.extras[BACK])


def test_a_wrapper_that_changes_stacks_without_saying_so_is_found_out():
    spec, made = walk(FRAMES["vector"], 3, 2, 8, 0)
    buffer = ReplayConfig(capacity=40).folded(1, 0.9, False).build(spec, CPU)
    with pytest.raises(ValueError, match=r"EnvSpec\.frame"):
        feed(buffer, [row._replace(obs=row.obs + torch.arange(9.0) * t) for t, row in enumerate(made)])


def used(tree: Any) -> int:
    """Bytes of all tensors, each storage once."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in ops.leaves(tree)}.values())


@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
def test_a_million_frames_fit_in_seven_and_a_half_gigabytes(kind):
    """Bytes per row of a filled buffer, all leaves and counters included."""
    slots, rows = 8, 4_096
    frame = Box((1, 84, 84), torch.uint8)
    spec = EnvSpec(Box((4, 84, 84), torch.uint8), Discrete(6), slots, frame=frame)
    buffer = kind(capacity=rows).folded(1, 0.99, False).build(spec, CPU)
    off, obs = torch.zeros(slots, dtype=torch.bool), torch.zeros(slots, 4, 84, 84, dtype=torch.uint8)
    row = Row(obs, torch.zeros(slots, dtype=torch.int64), torch.zeros(slots), off, off, ~off, ~off, {}, ())
    for t in range(rows // slots):
        feed(buffer, [row._replace(obs=obs + t % 7)])
    usage = buffer.usage
    held = [buffer.ring.leaves, buffer.ring.records, usage.counts, usage.born]
    if kind is PrioritisedConfig:
        held += [buffer.tree.tensors, buffer.tree.below]
    per_row = used(tuple(x for part in held for x in (part if isinstance(part, list) else [part]))) / rows
    assert 84 * 84 < per_row < 84 * 84 + 80
    assert per_row * 1_000_000 < 7.5e9


def test_memory_is_taken_as_rows_come():
    """A large buffer costs nothing before it is filled."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4_096

    spec, made = walk(Box((84, 84), torch.uint8), 4, 2, 3, 0)
    before = resident()
    buffer = ReplayConfig(capacity=100_000).folded(1, 0.99, False).build(spec, CPU)
    feed(buffer, made)
    assert ops.leaves(buffer.ring.held.obs)[0].nbytes > 700e6
    assert resident() - before < 100e6
