"""Several runs by the command line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ganglion.cli import main

Captured = pytest.CaptureFixture[str]
ASK = ["train", "--algo", "ppo", "--env", "torch:cartpole", "algo.horizon=16", "env.slots=4", "algo.epochs=1",
       "train.budget=300 steps", "eval={every: 100 steps, episodes: 2}", "log.writers=[console, jsonl]"]  # fmt: skip


def test_seeds_are_runs(tmp_path: Path, capsys: Captured) -> None:
    assert main([*ASK, "run.seed=5", f"run.dir={tmp_path / 'all'}", "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert "Last" in said and "95 % interval" in said and "over 2 runs" in said
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["seed=5", "seed=6"]
    one = str(tmp_path / "all" / "seed=6")
    assert main(["eval", one, "--episodes", "2"]) == 0
    assert main(["resume", one, "train.budget=400 steps", "log.writers=[jsonl]"]) == 0


def test_cases_of_a_sweep_together(tmp_path: Path, capsys: Captured) -> None:
    assert main([*ASK, f"run.dir={tmp_path / 'lr'}", "sweep.algo.lr=[1e-3, 1e-4]", "--together"]) == 0
    assert sorted(path.name for path in (tmp_path / "lr").iterdir()) == ["lr=0.0001", "lr=0.001"]
    capsys.readouterr()
    assert main([*ASK, f"run.dir={tmp_path / 'no'}", "sweep.algo.minibatches=[1, 2]", "--together"]) == 2
    assert "algo.minibatches: runs that train together may differ in run.seed" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("save", "said"), [("never", "so nothing was saved"), ("100 steps", "Interrupted and saved")])
def test_an_interruption_says_what_was_saved(
    save: str, said: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.cli.train_seeds.follow", lambda seeds, asked: asked(signal.SIGTERM, None))
    assert main([*ASK, f"run.dir={tmp_path / 'all'}", f"save={save}", "--seeds", "2"]) == 143
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("count", "message"), [("1", "--seeds should be between 2 and 1024, got 1"), ("x", "--seeds")])
def test_counts_that_make_no_sense(count: str, message: str, capsys: Captured) -> None:
    assert main([*ASK, "--seeds", count]) == 2
    assert message in capsys.readouterr().err
