"""`ganglion tune` and sweeps in parallel, with processes as a user would have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ganglion.cli import main
from ganglion.config.files import load
from tests.tuning.inline import SMALL

pytest.importorskip("optuna")
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tune_from_the_first_trial_to_the_winner(capsys: Captured) -> None:
    words = ["--trials", "2", "--confirm", "2", "--workers", "1", "--space", "algo.lr.start", "--study", "s"]
    assert main(["tune", *SMALL, *words]) == 0
    said = capsys.readouterr().out
    assert "trial   0 finished" in said and "rank  trial  score" in said
    assert "On 2 fresh seeds the winner:" in said and "its optimism, as the best of 2 trials:" in said
    assert load("s/winner.yaml").algo.kind == "ppo"
    assert main(["tune", "s", "--confirm", "0"]) == 0  # all is there: nothing is trained
    assert "trial   " not in capsys.readouterr().out


def test_a_sweep_in_parallel_ends_with_a_table(capsys: Captured) -> None:
    words = ["sweep.algo.lr.start=[1e-3, 1e-2]", "sweep.run.seed=[0, 1]", "run.dir=swept", "--parallel", "1"]
    assert main(["train", *SMALL, *words]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["rank", "eval/return_mean", "95", "%", "runs", "lr.start", "first", "run"]
    assert sorted(line.split()[0] for line in table[1:]) == ["1", "2"]
    assert {line.split()[-3] for line in table[1:]} >= {"2"} or all(" 2 " in line for line in table[1:])
    assert len(list(Path("swept").glob("*/checkpoints"))) == 4


def test_show_space(capsys: Captured) -> None:
    assert main(["tune", "cartpole/ppo", "--show-space"]) == 0
    assert "algo.lr.start      1e-05 to 0.1, logarithmic" in capsys.readouterr().out
    assert not Path("studies").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "pbtt"], "Did you mean 'pbt'?"),
        (["--trials", "many"], "trials: should be a valid integer, got 'many'"),
        (["--space", "algo.lrr=1..2"], "Did you mean 'lr'?"),
        (["--workers", "0"], "--workers should be between 1 and 1024, got 0"),
        (["eval=never"], "eval.every: 'never'"),
        (["--method", "pbt", "--interval", "soon"], "interval: should be a number and a unit"),
        (["sweep.run.seed=[0,1]"], "a sweep is several configs"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: Captured) -> None:
    assert main(["tune", *SMALL, *words]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert not Path("studies").exists()


def test_hints_before_a_run_and_after(capsys: Captured) -> None:
    words = ["--algo", "dqn", "--env", "CartPole-v1", "train.budget=40 steps", "env.slots=2", "eval=never", "run.dir=r"]
    assert main(["train", *words]) == 0
    said = capsys.readouterr().out
    assert "Note: train.budget ends at 40 steps, before the first update at 1,000 env steps." in said
    assert "Note: there is a preset for this environment: ganglion train cartpole/dqn" in said
    assert main(["resume", "r"]) == 0
    assert "Its budget of 40 steps is spent: nothing is left to train." in capsys.readouterr().out


def test_list_says_what_each_thing_is(capsys: Captured) -> None:
    assert main(["list"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "dqn Deep Q-learning" in said and "csv metrics.csv in the run's folder, one column per number" in said


def test_show_says_what_each_setting_means(capsys: Captured) -> None:
    assert main(["show", "cartpole/dqn", "--explain"]) == 0
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert said["algo.target_every"] == "50 updates between two copies onto the target"
    assert said["algo.gamma"] == "0.99 discount of later rewards"
    assert said["algo.tau"].startswith("none instead of copies: how far the target moves")  # a field of three lines
    assert said["eval.max_steps"] == "27000 of an episode, which is then scored as it stands"
