"""`ganglion train ENV`: an algorithm, slots and workers by the environment and the budget."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ganglion.cli import main
from ganglion.config import every
from ganglion.config.files import load
from ganglion.envs.auto_workers import Cost
from ganglion.registry import presets
from ganglion.runtime import choose_settings
from ganglion.runtime.choose_settings import preset, settings
from ganglion.runtime.run import Run


def test_the_preset_of_an_environment_is_taken() -> None:
    raw = settings("CartPole-v1")
    assert raw["run"]["chosen"] == "preset cartpole/dqn, tuned for this environment"
    assert load(raw).algo == load("cartpole/dqn").algo
    assert settings("ALE/Pong-v5")["run"]["chosen"].startswith("preset pong/dqn")


def test_a_preset_of_a_changed_environment_is_not_taken() -> None:
    """cartpole-novelocity has the same id, and sees less of it."""
    for name in presets():
        env = load(name).env
        own = preset(env)
        if own is not None:  # a league or several processes have none
            theirs = load(own).env.model_copy(update={"slots": env.slots})
            assert theirs.plain() | {"workers": 0} == env.plain() | {"workers": 0}, (name, own)
    assert preset(load(None, ["algo=ppo", "env=CartPole-v1", "env.time_limit=50"]).env) is None


@pytest.mark.parametrize(
    ("env", "budget", "kind"),
    [
        ("FrozenLake-v1", "50k steps", "dqn"),  # choices, few steps
        ("FrozenLake-v1", "2M steps", "ppo"),
        ("FrozenLake-v1", "1 h", "ppo"),
        ("MountainCarContinuous-v0", "50k steps", "sac"),  # bounded real actions
        ("MountainCarContinuous-v0", "5M steps", "ppo"),
        ("toy:hybrid", "50k steps", "hybrid_sac"),
        ("Blackjack-v1", "50k steps", "dqn"),
    ],
)
def test_the_algorithm_follows_spaces_and_budget(env: str, budget: str, kind: str) -> None:
    raw = settings(env, [f"train.budget={budget}"])
    assert raw["algo"]["kind"] == kind
    assert raw["run"]["chosen"].startswith(f"{kind}: ")
    assert load(raw).train.budget == every(budget)


def test_workers_follow_the_cost_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_settings, "usable_cores", lambda: 4)
    if sys.platform != "linux":
        pytest.skip("workers are processes of Linux")
    for seconds, slots, workers in ((5e-6, 4, 0), (20e-3, 4, 4)):
        monkeypatch.setattr(choose_settings, "measure", lambda make, cost=seconds: Cost(cost, False))
        env = settings("FrozenLake-v1")["env"]
        assert (env["slots"], env["workers"]) == (slots, workers)
    monkeypatch.setattr(choose_settings, "measure", lambda make: Cost(20e-3, False))
    raw = settings("FrozenLake-v1", ["train.budget=10M steps"])
    assert (raw["algo"]["kind"], raw["env"]["slots"], raw["env"]["workers"]) == ("ppo", 8, 4)
    assert "a step takes 20.0 ms: 4 workers step the 8 slots" in raw["run"]["chosen"]


def test_a_slow_environment_leaves_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of steps of 50 ms is 72,000: worth a replay."""
    monkeypatch.setattr(choose_settings, "measure", lambda make: Cost(50e-3, False))
    assert settings("FrozenLake-v1", ["train.budget=1 h"])["algo"]["kind"] == "dqn"


def test_several_agents_get_whole_copies() -> None:
    raw = settings("particles:spread", ["env.rounds=7"])  # three of them; no preset has this limit
    assert raw["algo"]["kind"] == "ppo" and load(raw).env.slots % 3 == 0


def test_what_was_chosen_stays_in_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ["FrozenLake-v1", "--budget", "300 steps", f"run.dir={run}", "eval=never", "env.slots=2", "algo.gamma=0.9"]
    assert main(["train", *words]) == 0
    said = capsys.readouterr().out
    assert "Chosen: dqn: choices, and a replay learns most from about 300 steps; 2 slots: a step takes" in said
    cfg = load(run / "config.yaml")
    assert cfg.run.chosen is not None and cfg.run.chosen in said
    assert (cfg.env.slots, getattr(cfg.algo, "gamma", None)) == (2, 0.9)
    made = Run.open(run)
    assert made.cfg.run.chosen == cfg.run.chosen
    made.close()


def test_an_algorithm_that_is_named_is_not_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--algo", "a2c", "--env", "CartPole-v1"],
        ["CartPole-v1", "--algo", "a2c"],
        ["CartPole-v1", "algo=a2c"],
    ):
        assert main(["show", *words]) == 0
        said = capsys.readouterr().out
        assert "chosen: null" in said and "kind: a2c" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["CartPole-v9"], "gymnasium has no environment 'CartPole-v9'. Did you mean 'CartPole-v1'?"),
        (["CartPole-v1", "--budget", "soon"], "train.budget: should be a number and a unit"),
        (["CartPole-v1", "--budget", "-5"], "train.budget: should be more than 0"),
        (["CartPole-v1", "env.slots=none"], "env.slots: "),
        (["CartPole-v1", "--algo", "ppoo"], "Did you mean 'ppo'?"),
        (["toy:identiti"], "Did you mean 'identity'?"),
        (["nothing.yaml"], "there is no preset or file 'nothing.yaml'"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
