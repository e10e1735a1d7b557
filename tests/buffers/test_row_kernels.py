"""Compiled loops and numpy give the same to the last bit; without a compiler a replay goes on."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from ganglion import ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig, row_kernels
from ganglion.core import Progress
from tests.buffers.naive import feed
from tests.buffers.test_frames import FRAMES, walk

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(row_kernels.code() is None, reason="needs a C compiler")


def told(kind: Any, name: str, n: int, recurrent: bool, frames: bool) -> list[torch.Tensor]:
    """All that a buffer gives and keeps over a few rounds of pushes, samples and priorities."""
    spec, rows = walk(FRAMES[name], 3, 4, 130, seed=n, size=5 if recurrent else 0)
    spec = spec if frames else replace(spec, frame=None)
    buffer = kind(capacity=200, batch=32, max_staleness=110).folded(n, 0.9, recurrent).build(spec, CPU)
    g, seen = torch.Generator().manual_seed(0), []
    for first in range(0, 130, 26):
        feed(buffer, rows[first : first + 26])
        for update in range(3):
            uniform = torch.rand(32, generator=g, dtype=torch.float64)
            sample = buffer.take(uniform, Progress(opt_steps=first + update, fraction=first / 130))
            seen += [x.clone() for x in ops.leaves(sample)]
            priority = torch.rand(32, generator=g)
            priority[update] = (float("inf"), float("nan"), 7.0)[update]
            buffer.feedback(sample.index, priority)
    state = buffer.state()
    arrays = [x.clone() for ring in state.rings.values() for x in ring.arrays.values()]
    return [*seen, *state.tensors.values(), *arrays, torch.tensor(list(buffer.metrics().values()))]


@needs_compiler
@pytest.mark.parametrize("kind", [ReplayConfig, PrioritisedConfig])
@pytest.mark.parametrize(("name", "frames"), [("vector", False), ("channel first", True), ("named", True)])
@pytest.mark.parametrize(("n", "recurrent"), [(1, False), (3, False), (1, True)])
def test_numpy_gives_what_compiled_loops_give(kind, name, frames, n, recurrent, monkeypatch):
    fast = told(kind, name, n, recurrent, frames)
    monkeypatch.setattr(row_kernels, "code", lambda: None)
    plain = told(kind, name, n, recurrent, frames)
    assert len(fast) == len(plain)
    for a, b in zip(fast, plain, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@needs_compiler
def test_rows_that_do_not_lie_as_they_are_kept_are_stored_all_the_same():
    spec, rows = walk(FRAMES["vector"], 3, 4, 20, seed=0)
    spec = replace(spec, frame=None)
    plain, odd = (ReplayConfig(capacity=200, batch=8).folded(1, 0.9, False).build(spec, CPU) for _ in range(2))
    feed(plain, rows)
    with_gaps = [ops.map_tree(lambda x: torch.stack([x, x], -1)[..., 0], row) for row in rows[1:]]
    feed(odd, [rows[0], *(row._replace(reward=row.reward.double()) for row in with_gaps)])
    assert torch.equal(plain.ring.records, odd.ring.records)


@needs_compiler
def test_it_is_compiled_once(tmp_path):
    library = row_kernels.built(tmp_path / "kept")
    made = library.stat().st_mtime_ns
    assert row_kernels.built(tmp_path / "kept") == library and library.stat().st_mtime_ns == made
    assert [path.name for path in library.parent.iterdir()] == [library.name], "nothing is left beside it"
    assert row_kernels.load(library).use.restype is not None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_there_is_none_and_the_log_says_so(compiler, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert row_kernels.code.__wrapped__() is None
    assert "without compiled loops" in caplog.text
