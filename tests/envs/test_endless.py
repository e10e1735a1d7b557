"""Evaluation where episodes do not end: it has a limit, says so, and can be interrupted."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from ganglion.cli import main
from ganglion.runtime.run import Run
from tests.envs.faulty import Endless

SLOTS = 3
ASK = ["train", "--algo", "dqn", "--env", "Endless-v0", f"env.slots={SLOTS}", "env.workers=0", "log.writers=[jsonl]",
       "train.budget=120 steps", "eval.every=60 steps", "algo.limiter.warmup=30", "algo.replay.capacity=200",
       "algo.replay.batch=8", "algo.net.hidden=[8]", "run.device=cpu", "eval.episodes=7"]  # fmt: skip


@pytest.fixture(autouse=True)
def endless() -> Any:
    gymnasium.register("Endless-v0", "tests.envs.faulty:Endless")
    Endless.made, Endless.rang = 0, False
    yield
    gymnasium.registry.pop("Endless-v0")


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "seconds": 0} for line in lines if "eval/return_mean" in line]


def test_an_episode_that_does_not_end_is_cut_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert main([*ASK, "eval.max_steps=40", f"run.dir={tmp_path / 'run'}"]) == 0
    told = [record.getMessage() for record in caplog.records if "eval.max_steps" in record.getMessage()]
    assert len(told) == 1 and "not ended after 40 steps" in told[0] and "env.time_limit" in told[0]
    first, last = evaluations(tmp_path / "run")
    for line in (first, last):
        assert line["eval/episodes"] == SLOTS and line["eval/length_mean"] == 40
        assert 0 <= line["eval/return_mean"] <= 80


def test_episodes_that_end_are_not_touched_by_the_limit(tmp_path: Path) -> None:
    """Nor are those that end just there; a slot that is cut keeps the episodes it has ended."""
    words = [*ASK, "env.time_limit=30"]
    for name, limit in (("free", 1000), ("just", 30), ("cut", 29)):
        assert main([*words, f"eval.max_steps={limit}", f"run.dir={tmp_path / name}"]) == 0
    free, just, cut = (evaluations(tmp_path / name) for name in ("free", "just", "cut"))
    assert free == just and free[0]["eval/episodes"] == 7 and free[0]["eval/length_mean"] == 30
    assert cut[0]["eval/episodes"] == SLOTS and cut[0]["eval/length_mean"] == 29


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_an_evaluation_and_the_run_is_saved(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was due then is due when it is resumed: all is as if it had not been interrupted."""
    if signal.getsignal(number) == signal.SIG_IGN:  # as nohup has its children do
        signal.signal(number, signal.SIG_DFL)
    folder, whole = tmp_path / "run", tmp_path / "whole"
    bell = f"env.options={{number: {int(number)}, at: 300}}"  # long after training has ended
    assert main([*ASK, bell, f"run.dir={folder}", "eval.max_steps=1000000000"]) == 128 + number
    assert "Interrupted and saved" in capsys.readouterr().out
    assert evaluations(folder) == []
    assert [path.name.split("-")[0] for path in (folder / "checkpoints").iterdir() if "-" in path.name] == ["60"]
    assert main(["resume", str(folder), "eval.max_steps=40"]) == 0
    assert main([*ASK, bell, f"run.dir={whole}", "eval.max_steps=40"]) == 0
    assert scores(folder) == scores(whole) and len(scores(whole)) == 2


def scores(folder: Path) -> list[tuple[int, float]]:
    return [(line["env_steps"], line["eval/return_mean"]) for line in evaluations(folder)]


def test_a_signal_in_the_last_evaluation_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    bell = f"env.options={{number: {int(signal.SIGTERM)}, at: 300}}"
    assert main([*ASK, bell, f"run.dir={tmp_path / 'run'}", "eval.every=100k steps", "eval.max_steps=1000"]) == 143
    assert main(["resume", str(tmp_path / "run"), "eval.max_steps=40"]) == 0
    assert [steps for steps, _ in scores(tmp_path / "run")] == [120]


def test_evaluation_has_as_many_slots_as_training(tmp_path: Path) -> None:
    assert main([*ASK, "env.slots=1", "eval.max_steps=10", f"run.dir={tmp_path / 'run'}"]) == 0
    assert Endless.made == 2, "one to train with, one to evaluate with"
    run = Run.open(tmp_path / "run", ["train.budget=200 steps", "eval.slots=5"])
    for _ in run.stream():
        pass
    assert run.trainer.evaluator.env is not None and run.trainer.evaluator.env.spec.slots == 5
    run.close()
