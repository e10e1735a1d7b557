"""Prioritised replay against plain arithmetic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.buffers import PrioritisedConfig, SumTree
from ganglion.core import Progress
from tests.buffers.naive import feed, random_rows
from tests.buffers.test_replay import CPU, spec, take


def build(slots: int, capacity: int, n: int = 1, **settings):
    return PrioritisedConfig(capacity=capacity, **settings).folded(n, 0.9, False).build(spec(slots), CPU)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 31, 700, 3_000, 70_000]), st.integers(0, 10_000), st.sampled_from([2, 64, 8_192]))
def test_tree_finds_by_cumulative_mass(size, seed, top):
    g = torch.Generator().manual_seed(seed)
    mass = torch.rand(size, generator=g, dtype=torch.float64) ** 9 * (torch.rand(size, generator=g) < 0.5)
    mass[torch.randint(size, (1,), generator=g)] = 1.0
    tree = SumTree(size, CPU, top)
    tree.set(torch.arange(size), mass)
    uniform = torch.cat([torch.rand(100, generator=g, dtype=torch.float64), torch.tensor([0.0, 1 - 2**-53])])
    found, masses = tree.find(uniform)
    assert torch.equal(masses, mass[found])
    assert (mass[found] > 0).all(), "nothing without mass is ever found"
    cum = mass.cumsum(0)
    low = cum[found] - mass[found]
    assert ((uniform * cum[-1] >= low - 1e-9) & (uniform * cum[-1] <= cum[found] + 1e-9)).all()
    assert torch.isclose(tree.total, mass.sum())


def plain(tree: SumTree) -> SumTree:
    """Without compiled code."""
    tree.code = None
    return tree


def tensors(tree: SumTree) -> SumTree:
    """As on any other device."""
    tree.code, tree.host, tree.levels = None, False, tree.tensors
    return tree


MADE = {"compiled": lambda tree: tree, "numpy": plain, "tensors": tensors}.values()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([40, 2_100, 70_000]), st.integers(0, 10_000), st.sampled_from([2, 64, 8_192]))
def test_sums_do_not_drift_and_all_find_the_same(size, seed, top):
    g = torch.Generator().manual_seed(seed)
    trees = [made(SumTree(size, CPU, top)) for made in MADE]
    for count in (size, 50, 50, 7):
        index = torch.randint(size, (count,), generator=g)
        mass = torch.rand(count, generator=g, dtype=torch.float64) ** 8
        uniform = torch.rand(count, generator=g, dtype=torch.float64)
        few = index.unique()[:5]
        for tree in trees:
            tree.set_largest(index, mass)
            tree.set(few, mass[: len(few)])
        found = [tree.find(uniform) for tree in trees]
        assert all(torch.equal(a, b) for each in found for a, b in zip(found[0], each, strict=True))
    rebuilt = SumTree(size, CPU, top)
    rebuilt.rebuild(trees[0].mass[:size])
    for levels in zip(*(tree.tensors for tree in (*trees, rebuilt)), strict=True):
        assert all(torch.equal(level, levels[0]) for level in levels)


@pytest.mark.parametrize("made", MADE)
def test_rounding_never_leads_to_where_no_mass_is(made):
    """Numbers whose sum and whose difference both round up: what is left of the draw is all that is left."""
    for masses in ([7.5, 0.0, 2**52 + 2, 0.0], [1.0, 1e-30, 0.0, 0.0], [0.0, 0.0, 3e-300, 0.0]):
        tree = made(SumTree(8, CPU, top=1))
        tree.set(torch.arange(4), torch.tensor(masses, dtype=torch.float64))
        last = torch.ones(1, dtype=torch.float64)  # which a share of the mass may round to
        at, mass = tree.find(last)
        assert mass > 0 and masses[at] == mass


def test_largest_mass_of_a_repeated_position_counts():
    tree = SumTree(100, CPU)
    tree.set(torch.arange(100), torch.ones(100, dtype=torch.float64))
    tree.set_largest(torch.tensor([5, 5, 7]), torch.tensor([0.5, 0.2, 3.0], dtype=torch.float64))
    assert tree.get(torch.tensor([5])) == 0.5 and tree.total == 98 + 0.5 + 3.0


def test_only_valid_complete_rows_are_drawn_also_across_the_write_head():
    for n in (1, 3):
        rows, naive = random_rows(3, 200, n)
        buffer = build(3, 60, n)
        for i, row in enumerate(rows):
            feed(buffer, [row])
            if i > n and buffer.ready():
                t = take(buffer, 16, i).data
                times, slots = (t.obs[0, :, 0] // 1000).long(), (t.obs[0, :, 0] % 1000).long()
                assert times.min() > i - buffer.ring.length and times.max() <= i - n
                assert all(naive.rows[a][b]["valid"] for a, b in zip(times, slots, strict=True))


def test_priorities_shape_the_draw_and_the_weights():
    rows, _ = random_rows(1, 40, 7)
    buffer = build(1, 40, alpha=1.0, beta={"kind": "constant", "value": 1.0})
    feed(buffer, rows)
    live = torch.nonzero(buffer.tree.mass[:40]).squeeze(-1)
    buffer.feedback(live[None], torch.arange(1, len(live) + 1).float())
    sample = take(buffer, 20_000)
    counts = torch.bincount(sample.index[0], minlength=40)[live].double()
    expected = torch.arange(1, len(live) + 1).double()
    assert torch.allclose(counts / counts.sum(), expected / expected.sum(), atol=5e-3)
    assert sample.weight.shape == (1, 20_000), "one weight per row: [T, B], never [B, B]"
    by_row = {int(i): float(w) for i, w in zip(sample.index[0], sample.weight[0], strict=True)}
    for k, row in enumerate(live.tolist()):
        assert abs(by_row[row] - 1 / (k + 1)) < 1e-4, (
            "beta 1 undoes the bias: weight is 1/priority, scaled to at most 1"
        )


def test_beta_follows_its_schedule_and_new_rows_are_most_urgent():
    rows, _ = random_rows(1, 30, 2)
    buffer = build(1, 60, alpha=1.0)
    feed(buffer, rows[:20])
    live = torch.nonzero(buffer.tree.mass[:60]).squeeze(-1)
    buffer.feedback(live[None], torch.full((len(live),), 9.0))
    feed(buffer, rows[20:25])
    new = buffer.tree.mass[19:24][buffer.ring.held.valid[19:24, 0]]
    assert torch.allclose(new, torch.full_like(new, 9.0), atol=1e-3)
    buffer.feedback(live[None, :1], torch.tensor([1.0]))
    early = take(buffer, 500, at=Progress(fraction=0.0)).weight.min()
    late = take(buffer, 500, at=Progress(fraction=1.0)).weight.min()
    assert late < early, "full correction weighs often-drawn rows less"


def test_a_nan_priority_is_taken_as_most_urgent():
    rows, _ = random_rows(1, 20, 2)
    buffer = build(1, 40)
    feed(buffer, rows)
    index = take(buffer, 1).index
    buffer.feedback(index, torch.tensor([float("nan")]))
    assert buffer.tree.total.isfinite()
