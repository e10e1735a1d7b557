"""Whole runs by the command line: train, evaluate, watch, resume, interrupt."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ganglion
from ganglion.cli import main
from ganglion.record.checkpoint_files import counted
from ganglion.registry import TABLE

ROOT = Path(__file__).parents[2]
Captured = pytest.CaptureFixture[str]
ASK = ["train", "--algo", "dqn", "--env", "CartPole-v1", "train.budget=600 steps", "eval.episodes=2"]
QUICK = ["algo.limiter.warmup=100", "algo.replay.capacity=500", "save.every=300 steps", "log.writers=[jsonl]"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main([*ASK, *QUICK, f"run.dir={folder}"]) == 0
    return folder


def test_a_run_is_a_folder(trained: Path) -> None:
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "run.json"} <= {path.name for path in trained.iterdir()}
    assert main(["show", str(trained)]) == 0


def test_its_folder_is_not_used_twice(trained: Path, capsys: Captured) -> None:
    before = sorted(path.name for path in trained.rglob("*"))
    assert main([*ASK, *QUICK, f"run.dir={trained}"]) == 2
    assert f"ganglion resume {trained}" in capsys.readouterr().err
    assert sorted(path.name for path in trained.rglob("*")) == before


def test_evaluation_is_deterministic(trained: Path, capsys: Captured) -> None:
    shown = []
    for which in ("--best", "--best", "--last"):
        assert main(["eval", str(trained), "--episodes", "3", "--json", which]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert shown[0]["checkpoint"] != shown[2]["checkpoint"]
    assert len(shown[0]["returns"]) == 3
    assert shown[0]["mean"] == pytest.approx(sum(shown[0]["returns"]) / 3)
    assert main(["eval", str(trained), "--episodes", "3"]) == 0
    assert "95 % interval" in capsys.readouterr().out


def test_play_writes_a_gif(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["play", str(trained), "--out", str(tmp_path / "a" / "b.gif"), "--frames", "5"]) == 0
    assert "5 frames in" in capsys.readouterr().out
    assert (tmp_path / "a" / "b.gif").read_bytes().startswith(b"GIF89a")


def test_resume_with_a_longer_budget(trained: Path, capsys: Captured) -> None:
    assert main(["resume", str(trained), "train.budget=900 steps"]) == 0
    assert max(filter(None, map(counted, os.listdir(trained / "checkpoints")))) >= (900, 1)
    assert main(["resume", str(trained), "train.budgt=900 steps"]) == 2
    assert "Did you mean 'budget'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algo", "dqn", "--env", "CartPol-v1"], "Did you mean 'CartPole-v1'?"),
        (["--algo", "sac", "--env", "CartPole-v1"], "sac"),
        (["--algo", "dqn", "--env", "CartPole-v1", "log=[wandb]"], "pip install 'ganglion[wandb]'"),
        (["--algo", "ppo", "--env", "CartPole-v1", "eval.env=Acrobot-v1"], "eval.env: its observations are Box"),
        (["--algo", "ppo", "--env", "CartPole-v1", "eval.env=MountainCarContinuous-v0"], "eval.env: "),
        (["--algo", "dqq", "--env", "CartPole-v1"], f"unknown algo 'dqq'. Accepted: {', '.join(TABLE['algo'])}"),
    ],
)
def test_what_does_not_fit_leaves_no_folder(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_train_from_python(tmp_path: Path) -> None:
    run = ganglion.train(
        None, ["algo=dqn", "env={kind: gym, id: CartPole-v1}", *ASK[5:], *QUICK, f"run.dir={tmp_path}"]
    ).run
    assert run.trainer.at.fraction == 1.0
    assert "env steps" in run.summary()["Trained"]


def test_scored_in_another_environment(tmp_path: Path, capsys: Captured) -> None:
    """Where only the last step of an episode counts, and that -1."""
    world = "eval.env={kind: gym, id: CartPole-v1, options: {sutton_barto_reward: true}}"
    assert main([*ASK, *QUICK, "eval.every=300 steps", world, f"run.dir={tmp_path / 'run'}"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["eval/return_mean"] for line in lines if "eval/return_mean" in line} == {-1.0}
    assert all(line["collect/return_mean"] > 5 for line in lines if "collect/return_mean" in line)
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert "-1.00" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_resumes(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*ASK, *QUICK, f"run.dir={folder}", "train.budget=10M steps", "save.every=5M steps", "eval=never"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ganglion", *words, "log.every=200 steps"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert any("Ctrl-C saves and stops" in process.stdout.readline() for _ in range(2)), "after a note, if any"
        while not (metrics := folder / "metrics.jsonl").exists() or metrics.stat().st_size == 0:
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert f"ganglion resume {folder}" in out
    assert "Traceback" not in err
    [(saved, _)] = filter(None, map(counted, os.listdir(folder / "checkpoints")))
    assert main(["resume", str(folder), f"train.budget={saved + 100} steps"]) == 0


def test_a_terminal_that_is_closed_saves_the_run(tmp_path: Path) -> None:
    """Its SIGHUP counts as SIGTERM does, and that nothing can be said any more changes neither that nor the code."""
    folder = tmp_path / "run"
    words = [*ASK, *QUICK, f"run.dir={folder}", "train.budget=10M steps", "save.every=5M steps", "eval=never"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ganglion", *words, "log.every=200 steps", "log.writers=[console, jsonl]"]
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started with it ignored
        os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    until = time.monotonic() + 60
    while not (metrics := folder / "metrics.jsonl").exists() or metrics.stat().st_size == 0:
        assert time.monotonic() < until
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 1 << 16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    assert any(counted(path.name) for path in (folder / "checkpoints").iterdir())
