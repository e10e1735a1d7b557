"""Halves that take turns: each slot sees its own steps in their order, for any number of workers, resumed or not."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion import ops
from ganglion.core import Row
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from tests.equal.runs import SORTS, config, finish, metrics, saved

MORE = {"workers": 2, "halves": True}


def halved(sort: str, folder: Path, **more: Any) -> Any:
    return config(sort, folder, 1_000, env={**SORTS[sort]["env"], **MORE, **more})


def closed(run: Run) -> Run:
    run.close()
    return run


@pytest.mark.parametrize("sort", ["ppo", "dqn", "impala"])
def test_stopped_anywhere_and_resumed_with_other_workers(sort: str, tmp_path: Path) -> None:
    closed(finish(Run.create(halved(sort, tmp_path / "whole"))))
    folder, dice = tmp_path / "stopped", random.Random(5)
    run = Run.create(halved(sort, folder, workers=4))
    for workers in (2, 4):
        stream = run.stream()
        for _ in range(dice.randint(30, 120)):
            next(stream)
        run.save()
        for _ in range(7):  # what a save had to wait for does not change what follows
            next(stream)
        run.save()
        stream.close()
        closed(run)
        run = Run.open(folder, [f"env.workers={workers}"])
    closed(finish(run))
    assert saved(folder) == saved(tmp_path / "whole")
    assert metrics(folder) == metrics(tmp_path / "whole")


def walked(cfg: Any, steps: int) -> tuple[list[Row], Any]:
    trainer, rows = build(cfg), list[Row]()
    trainer.explorer.sink.push = lambda block, *_: rows.extend(ops.unstack(block))  # type: ignore[method-assign]
    for _ in range(steps):
        trainer.run_collect()
    return rows, trainer


def test_each_slot_walks_as_it_would_alone(tmp_path: Path) -> None:
    """Repeats every slot's actions in environments of this process: the same rows."""
    cfg = halved("dqn", tmp_path / "unused")
    rows, trainer = walked(cfg, 120)
    trainer.explorer.state()  # lets the second half land
    trainer.explorer.env.close()
    plain = build(config("dqn", tmp_path / "unused", env={**SORTS["dqn"]["env"], "workers": 0}))
    env = plain.explorer.env
    step = plain.explorer.begin()[0]
    for row in rows:
        assert torch.equal(row.obs, step.obs) and torch.equal(row.valid, step.valid)
        step = env.step(row.action)
        assert torch.equal(row.reward, step.reward) and torch.equal(row.terminated, step.terminated)
    assert trainer.at.episodes > 5 and trainer.at.env_steps == sum(int(row.valid.sum()) for row in rows)


def test_a_killed_worker_loses_no_other_row(tmp_path: Path) -> None:
    rows, trainer = walked(halved("dqn", tmp_path / "unused", max_failures=10), 20)
    for half in (0, 1):
        os.kill(trainer.explorer.env.pool.crew.pids()[half], signal.SIGKILL)
        for _ in range(20):
            trainer.run_collect()
    pool, faults = trainer.explorer.env.pool, trainer.explorer.faults
    assert faults.kinds["death"] == 2 and len(pool.replaced) == 2 and len(rows) == 60
    dead = sum(int((~row.valid & ~row.truncated & ~row.terminated).sum()) for row in rows)
    ends = sum(int((row.terminated | row.truncated).sum()) for row in rows)
    assert faults.rows_lost <= 2 and abs(dead - ends) <= 4  # a dead row after each ending, the last ones not yet
    trainer.explorer.state()
    trainer.explorer.env.close()


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": 3}, {"slots": 3}, {"frame_stack": 2}])
def test_what_cannot_be_halved_is_bad_input(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"env\.halves: needs env\.workers and env\.slots"):
        build(halved("dqn", tmp_path, **wrong))
