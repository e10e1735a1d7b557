"""A run does not depend on who walks its slots: this process, or any number of workers, killed and resumed or not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ganglion.config.files import dump
from ganglion.runtime.run import Run
from tests.equal.runs import SORTS, config, finish, metrics, saved

HERE = ["ppo", "dqn"]


def pooled(sort: str, folder: Path, workers: int, budget: int = 1_000) -> Any:
    return config(sort, folder, budget, env={**SORTS[sort]["env"], "workers": workers})


def closed(run: Run) -> Run:
    run.close()
    return run


@pytest.mark.parametrize("sort", HERE)
def test_hashes_do_not_depend_on_the_number_of_workers(sort: str, tmp_path: Path) -> None:
    finish(Run.create(pooled(sort, tmp_path / "0", 0)))
    for workers in (1, 2, 4):
        closed(finish(Run.create(pooled(sort, tmp_path / str(workers), workers))))
        assert saved(tmp_path / str(workers)) == saved(tmp_path / "0")
        assert metrics(tmp_path / str(workers)) == metrics(tmp_path / "0")


def test_stopped_and_resumed_with_another_number_of_workers(tmp_path: Path) -> None:
    finish(Run.create(pooled("ppo", tmp_path / "whole", 0)))
    folder, dice = tmp_path / "stopped", random.Random(3)
    run = Run.create(pooled("ppo", folder, 2))
    for workers in (3, 0, 1):
        stream = run.stream()
        for _ in range(dice.randint(30, 120)):
            next(stream)
        run.save()
        stream.close()
        closed(run)
        run = Run.open(folder, [f"env.workers={workers}"])
    closed(finish(run))
    assert saved(folder) == saved(tmp_path / "whole")
    assert metrics(folder) == metrics(tmp_path / "whole")


def test_sigkill_of_a_run_and_resume(tmp_path: Path) -> None:
    """A real process with workers of its own, killed in the middle; they go with it, and it goes on exactly."""
    reference = closed(finish(Run.create(pooled("ppo", tmp_path / "whole", 2, 4_000)))).folder
    folder = tmp_path / "killed"
    (tmp_path / "killed.yaml").write_text(dump(pooled("ppo", folder, 2, 4_000)))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [["train", str(tmp_path / "killed.yaml")], ["resume", str(folder)]]
    for attempt in words:
        run = subprocess.Popen([sys.executable, "-m", "ganglion", *attempt], stdout=subprocess.DEVNULL, env=env)
        until = time.monotonic() + 60
        before = len(list((folder / "checkpoints").glob("*")))
        while len(list((folder / "checkpoints").glob("*"))) <= before and time.monotonic() < until:
            if run.poll() is not None:
                break
            time.sleep(0.02)
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)
        run.wait()
    closed(finish(Run.open(folder)))
    assert saved(folder) == saved(reference)
    assert metrics(folder) == metrics(reference)
