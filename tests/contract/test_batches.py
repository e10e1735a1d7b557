"""Samples lie in memory that the next sample takes over: nobody may hold on to one, and nobody does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ganglion import ops
from ganglion.buffers import Replay
from ganglion.buffers.copies import CopyBuffer
from ganglion.config import RunConfig
from ganglion.core import Buffer, LogData, Progress, Rollout
from ganglion.runtime.build import build
from ganglion.runtime.trainer import Trainer
from tests.equal.runs import SORTS, fingerprint

REPLAYS = [sort for sort, cfg in SORTS.items() if "replay" in cfg["algo"]]


def trainer(sort: str, **replay: Any) -> Trainer:
    algo = {**SORTS[sort]["algo"], "replay": {**SORTS[sort]["algo"]["replay"], **replay}}
    return build(RunConfig.model_validate({**SORTS[sort], "algo": algo, "train": {"budget": "600 steps"}}))


def ring_of(buffer: Buffer) -> Replay:
    """Where rows are kept, of slots or of copies."""
    replay = buffer.inner if isinstance(buffer, CopyBuffer) else buffer
    assert isinstance(replay, Replay)
    return replay


def spoil(buffer: Replay) -> None:
    assert buffer.ring.views
    for gather in (*buffer.ring.gathers.values(), *(records for records, _ in buffer.ring.views.values())):
        gather.out.view(torch.uint8).random_()


@pytest.mark.parametrize("sort", REPLAYS)
def test_nothing_of_a_batch_is_used_after_its_update(sort: str) -> None:
    """Its memory is filled with noise after every update; parameters, buffers and metrics stay what they were."""
    clean, spoiled = trainer(sort), trainer(sort)
    told: list[LogData] = list(clean())
    for log, before in zip(spoiled(), told, strict=True):
        if log.kind == "learn":
            spoil(ring_of(spoiled.learner.buffer))
        assert {k: float(v) for k, v in log.metrics.items()} == {k: float(v) for k, v in before.metrics.items()}
    assert fingerprint(clean.state()) == fingerprint(spoiled.state())


@pytest.mark.parametrize("sort", [sort for sort in REPLAYS if sort != "hindsight"])  # whose goals are made anew
def test_batches_lie_where_the_last_one_lay(sort: str) -> None:
    one = trainer(sort)
    for _ in one():
        pass
    buffer = one.learner.buffer
    places = []
    for seed in range(2):
        uniform = torch.rand(buffer.wants, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        data = buffer.take(uniform, Progress()).data
        after = data.last[0] if isinstance(data, Rollout) else data.next_obs
        places.append([x.data_ptr() for x in ops.leaves((data.obs, after, data.action))])
    assert places[0] == places[1]


def test_learning_from_frames_is_learning_from_whole_stacks() -> None:
    """Bit by bit, while no frame has been overwritten."""
    frames, whole = trainer("frames", capacity=2_000), trainer("frames", capacity=2_000)
    cfg = whole.learner.buffer.cfg
    spec = whole.source.env.spec
    assert spec.frame is not None and frames.learner.buffer.history == 2
    whole.learner.buffer = cfg.folded(frames.learner.agent.algo.cfg.n_step, 0.99, False).build(
        replace(spec, frame=None), torch.device("cpu")
    )
    for used in (frames, whole):
        for _ in used():
            pass
    assert whole.learner.buffer.history == 0
    assert fingerprint(frames.learner.agent.state()) == fingerprint(whole.learner.agent.state())
