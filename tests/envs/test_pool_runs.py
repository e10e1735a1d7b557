"""Runs whose environments fail: training goes on, failures are written down, too many stop a run that is saved."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from ganglion.cli import main
from ganglion.config import RunConfig
from ganglion.config.files import dump
from ganglion.core import Row
from ganglion.errors import EnvError
from ganglion.record.checkpoint import Checkpoints
from ganglion.runtime.engine import Engine, as_it_is
from ganglion.runtime.run import Run
from tests.envs.test_pool_faults import Killing

PPO = {"kind": "ppo", "horizon": 16, "net": {"hidden": [16]}}


@pytest.fixture(autouse=True)
def failing() -> Any:
    """An environment that raises in slots 1 and 3, at step 7 of each of its episodes."""
    gymnasium.register("Sometimes-v0", "tests.envs.faulty:Sometimes")
    yield
    gymnasium.registry.pop("Sometimes-v0")


def config(folder: Path, workers: int, **more: Any) -> RunConfig:
    bad = ({}, {"how": "raise"})
    env = {"kind": "gym", "id": "Sometimes-v0", "slots": 4, "per_slot": bad, "workers": workers, **more}
    quiet = {"eval": "never", "save": "400 steps", "log": {"every": "100 steps", "writers": ["jsonl"]}}
    return RunConfig.model_validate(
        {"algo": PPO, "env": env, "train": {"budget": "400 steps"}, "run": {"dir": str(folder)}, **quiet}
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_training_goes_on(workers: int, tmp_path: Path) -> None:
    run = Run.create(config(tmp_path / "run", workers))
    rows: list[Row] = []
    push = run.trainer.learner.push
    run.trainer.learner.push = lambda row, *rest: (rows.append(row), push(row, *rest))[1]  # type: ignore[method-assign]
    for _ in run.stream():
        pass
    faults = run.trainer.source.faults
    assert faults.count == faults.rows_lost > 10 and "Failures" in run.summary()
    # A row whose action was lost is no row to learn from: it is invalid, and so is the dead row after it.
    valid = torch.stack([row.valid for row in rows])
    truncated = torch.stack([row.truncated for row in rows])
    assert not valid[truncated].any() and truncated.sum() == faults.count
    assert run.trainer.at.env_steps == int(valid.sum())
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env/failures"] == faults.count and last["env/rows_lost"] == faults.rows_lost
    written = sorted((run.folder / "failures").glob("*.json"))
    assert len(written) == faults.count
    run.close()
    again = Run.open(run.folder)
    assert again.trainer.source.faults.count == faults.count  # the count is the run's
    again.close()


@pytest.mark.parametrize("way", ["here", "workers", "blocks"])
def test_too_many_stop_a_run_that_is_saved(way: str, tmp_path: Path) -> None:
    workers = 0 if way in ("here", "blocks") else 2
    engine = Engine(torch.device("cpu"), as_it_is) if way == "blocks" else None  # compiled in name alone
    run = Run.create(config(tmp_path / "run", workers, max_failures=3), engine)
    with pytest.raises(EnvError, match=r"failed 4 times \(4 raise\), and 3 were allowed.*failures"):
        for _ in run.stream():
            pass
    run.close()
    newest = Checkpoints(run.folder / "checkpoints", 1).newest()
    assert newest is not None
    more = Run.open(run.folder, ["env.max_failures=1000"])
    assert more.trainer.at == run.trainer.at
    for _ in more.stream():
        pass
    more.close()


def test_workers_that_can_no_longer_be_started_end_a_run_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = Killing(monkeypatch)
    run = Run.create(config(tmp_path / "run", 2, per_slot=(), max_failures=6))
    with pytest.raises(EnvError, match=r"failed \d+ times \(\d+ death\), and 6 were allowed.*failures"):
        for log in run.stream():
            if log.at.env_steps > 50 and not kill.left:
                kill.told, kill.left = "take", 1000
                os.kill(run.trainer.source.env.pool.worker_processes.pids()[0], signal.SIGKILL)
    run.close()
    kill.left = 0
    before = run.trainer.source.faults.numbers()
    more = Run.open(run.folder, ["env.max_failures=1000"])
    assert more.trainer.at == run.trainer.at and more.trainer.at.env_steps > 50
    for _ in more.stream():
        pass
    more.close()
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env/replaced"] == before["env/replaced"] and "env/rows_in_flight" in last


@pytest.mark.parametrize("workers", [0, 2])
def test_what_pools_count_goes_on_after_a_resume(workers: int, tmp_path: Path) -> None:
    """Also where the run goes on without workers."""
    run = Run.create(config(tmp_path / "run", 2, per_slot=()))
    pool = run.trainer.source.env.pool
    for log in run.stream():
        if log.at.env_steps > 200 and not pool.replaced:
            os.kill(pool.worker_processes.pids()[0], signal.SIGKILL)
            os.waitid(os.P_PID, pool.worker_processes.pids()[0], os.WEXITED | os.WNOWAIT)
    run.close()
    first = run.trainer.source.faults.numbers()
    assert first["env/replaced"] == 1 and first["env/rows_in_flight"] > 0
    more = Run.open(run.folder, ["train.budget=800 steps", f"env.workers={workers}"])
    assert more.trainer.source.faults.numbers() == first
    pool = more.trainer.source.env.pool if workers else None
    for log in more.stream():
        if pool and log.at.env_steps > 600 and not pool.replaced:
            os.kill(pool.worker_processes.pids()[0], signal.SIGKILL)
    more.close()
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env/replaced"] == 1 + bool(workers) and last["env/rows_in_flight"] >= first["env/rows_in_flight"]
    assert f"{1 + bool(workers)} workers replaced" in more.summary()["Failures"]


def test_the_command_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(dump(config(tmp_path / "run", 0, max_failures=3)))
    assert main(["train", str(file)]) == 3
    said = capsys.readouterr().err
    assert "env.max_failures: Sometimes-v0 failed 4 times" in said and "ganglion resume" in said
    assert main(["replay", str(tmp_path / "run")]) == 0
    listed = capsys.readouterr().out
    assert "1-0" in listed and "RuntimeError: sometimes" in listed and "step 6" in listed


def test_a_failed_episode_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(config(tmp_path / "run", 2))
    for _ in run.stream():
        pass
    run.close()
    failure = json.loads((run.folder / "failures" / "3-1.json").read_text())
    assert main(["replay", str(run.folder), "3-1"]) == 0
    said = capsys.readouterr().out
    assert "It failed again" in said and "RuntimeError: sometimes" in said and "faulty.py" in said
    assert f"seed {failure['seed']}, 7 actions" in said
    total = sum(failure["actions"][0][:-1])
    assert f"Return  {total:g}" in said and "Length  6" in said
    assert main(["replay", str(run.folder), "3-999"]) == 2
    assert "Accepted: 1-0" in capsys.readouterr().err


def test_a_replay_that_does_not_fail_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(config(tmp_path / "run", 0))
    for _ in run.stream():
        pass
    text = (run.folder / "config.yaml").read_text().replace("how: raise", "how: never")  # as if it had been mended
    (run.folder / "config.yaml").write_text(text)
    assert main(["replay", str(run.folder), "1-0"]) == 0
    assert "It did not fail again" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [0, 2])
def test_other_episodes_are_logged_on_request(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(config(tmp_path / "run", workers, per_slot=(), log_episodes=2))
    totals = [episode.total for log in run.stream() for episode in log.episodes if episode.slot == 1]
    run.close()
    logged = sorted(path.stem for path in (run.folder / "episodes").glob("1-*.json"))
    assert logged == [f"1-{episode}" for episode in range(0, len(totals), 2)]
    assert main(["replay", str(run.folder), "1-2"]) == 0
    said = capsys.readouterr().out
    assert f"Return  {totals[2]:g}" in said and "The same as then." in said
