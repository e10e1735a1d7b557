"""A source of one's own: DQN from rows in a file, eager, compiled, batched over runs and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ganglion
from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Row
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.run import Run
from ganglion.runtime.seeds import Seeds
from tests.contract import recorded
from tests.contract.test_own_algorithms import close, trained
from tests.contract.worlds import one_graph

DQN = "{kind: dqn, epsilon: 0.2, replay: {capacity: 400, batch: 16}, limiter: {opt_interval: 8, warmup: 40}}"
REST = ["env={kind: torch, id: cartpole, slots: 4}", "train.budget=400 steps", "eval={every: 200 steps, episodes: 2}",
        "save={every: 150 steps}", "log={every: 200 steps, writers: [jsonl]}", "run.device=cpu",
        "run.fast=eager", "algo.net.hidden=[16]"]  # fmt: skip


def config(*more: str, mode: str = "recorded") -> RunConfig:
    return ganglion.load_config(None, [f"algo={DQN}", *REST, f"run.mode={mode}", *more])


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Iterator[Path]:
    """Rows of a run that explores."""
    made, seen = build(config("train.budget=600 steps", mode="local")), list[Row]()
    assert isinstance(made.source, Explorer)
    sink = made.source.seats[0].sink
    inner = sink.push
    sink.push = lambda rows, ahead, at: (seen.append(ops.map_tree(torch.clone, rows)), inner(rows, ahead, at))[1]  # type: ignore[method-assign]
    trained(made)
    recorded.record(ops.concat(seen), tmp_path / "rows.npz")
    yield tmp_path / "rows.npz"
    recorded.FILE.clear()


def test_the_rows_that_were_collected_teach_the_same() -> None:
    """With the same random numbers, as long as the rows last."""
    close(trained(build(config(mode="local"))), trained(build(config())))


def test_as_one_graph() -> None:
    torch._dynamo.reset()
    compiled = build(config(), Engine(torch.device("cpu"), one_graph))
    close(trained(build(config())), trained(compiled), exactly=False)


def test_resumed(tmp_path: Path) -> None:
    whole = Run.create(config(f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(config(f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps > 250:
            break
    left.close()
    again = Run.open(tmp_path / "left")
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)
    assert "Rows" in again.summary()


def test_batched_over_runs(tmp_path: Path) -> None:
    seeds = Seeds([config(f"run.dir={tmp_path / str(k)}", f"run.seed={k}") for k in range(2)])
    for _ in seeds.stream():
        pass
    for k, run in enumerate(seeds.runs):
        alone = trained(build(config(f"run.seed={k}")))
        close(alone, dict(run.trainer.learner.agent.state().tensors), exactly=False)


def test_modes_are_registered_kinds() -> None:
    with pytest.raises(UserError, match=r"run.mode: .*local, sync, threads, ray, files, offline, recorded.*'recorded'"):
        config(mode="recorde")
