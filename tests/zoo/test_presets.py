"""Every preset loads, says what it is for, round-trips, and builds the run it describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ganglion.config import RunConfig
from ganglion.config.files import dump, load
from ganglion.registry import presets

PRESETS = presets()
PROMISED = {
    "cartpole/a2c": 200_000,
    "cartpole/acer": 200_000,
    "cartpole/dqn": 50_000,
    "cartpole/c51": 50_000,
    "cartpole/iqn": 50_000,
    "cartpole/pqn": 200_000,
    "cartpole/qrdqn": 50_000,
    "cartpole/rainbow": 50_000,
    "cartpole/ppo": 100_000,
    "cartpole/impala": 500_000,
    "cartpole/reinforce": 200_000,
    "cartpole/trpo": 200_000,
    "cartpole/apex": 200_000,
    "acrobot/ppo": 200_000,
    "deepsea/bootstrapped_dqn": 300_000,
    "pendulum/ppo": 200_000,
    "pendulum/sac": 20_000,
    "pendulum/td3": 20_000,
    "pendulum/ddpg": 20_000,
    "pendulum/crossq": 20_000,
    "cartpole/discrete_sac": 50_000,
    "pendulum/tqc": 20_000,
    "pendulum/flashsac": 20_000,
    "cartpole-novelocity/ppo": 200_000,
    "mountaincar/dqn": 120_000,
    "lunarlander/ppo": 1_000_000,
    "minigrid-doorkey/ppo": 200_000,
    "minatar-breakout/dqn": 1_000_000,
    "bipedalwalker/sac": 500_000,
    "halfcheetah/sac": 150_000,
    "pong/ppo": 1_500_000,
}

NEEDS = {  # how an environment's id, or its kind, starts -> the package it needs
    "LunarLander": "Box2D",
    "BipedalWalker": "Box2D",
    "HalfCheetah": "mujoco",
    "Hopper": "mujoco",
    "MiniGrid": "minigrid",
    "MinAtar": "minatar",
    "atari": "ale_py",
    "sumo": "libsumo",
}


def test_the_promised_presets_are_there() -> None:
    assert set(PROMISED) <= set(PRESETS)


@pytest.mark.parametrize("name", PROMISED)
def test_budgets_are_those_the_results_are_for(name: str) -> None:
    budget = load(name).train.budget
    assert (budget.count, budget.unit) == (PROMISED[name], "steps")


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip(name: str) -> None:
    config = load(name)
    assert load(dump(config)) == config


@pytest.mark.parametrize("name", PRESETS)
def test_named_for_its_algorithm_and_described(name: str) -> None:
    first = PRESETS[name].read_text().splitlines()[0]
    assert re.fullmatch(r"# \S.{10,100}", first), "the first line is what `ganglion list zoo` shows"
    short = name.split("/")[1].split("-")[0]
    config = load(name)
    assert {"apex": "dqn"}.get(short, short) == (config.algo.kind if config.league is None else "league")


@pytest.mark.parametrize("name", PRESETS)
def test_a_best_model_is_chosen_from_enough_evaluations(name: str) -> None:
    config = load(name)
    assert config.eval.every.unit == "steps"
    assert config.train.budget.count >= 10 * config.eval.every.count
    assert config.eval.episodes >= 10


@pytest.mark.parametrize("name", PRESETS)
def test_makes_its_first_steps(name: str, tmp_path: Path) -> None:
    from ganglion.runtime.run import Run

    config = load(name)
    for start, package in NEEDS.items():
        if str(getattr(config.env, "id", "")).startswith(start) or config.env.kind == start:
            pytest.importorskip(package)
    if getattr(config.env, "id", "").startswith("HalfCheetah"):
        pytest.importorskip("mujoco")
    quiet = ["log.writers=[]", "train.target=null", "eval=never", "save=never"]
    config = load(name, [f"run.dir={tmp_path / 'run'}", "run.device=cpu", *quiet])
    assert isinstance(config, RunConfig)
    run = Run.create(config)
    for _, log in zip(range(5), run.stream()):
        assert log.kind == "collect"
    assert run.trainer.at.env_steps >= 5 * config.env.slots - config.env.slots
