"""The choice made for the user: who steps the slots follows from what a step costs, and changes nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from ganglion.cli.training_loop import drive
from ganglion.envs import GymConfig, auto_workers
from ganglion.envs.auto_workers import Choice, Cost, choose, measure, usable_cores
from ganglion.envs.pool import PoolEnv
from ganglion.runtime.run import Run
from tests.envs import sleepy
from tests.envs.worlds import InfoMask
from tests.equal.runs import SORTS, config, finish, metrics, saved

SHORT, LONG = Cost(5e-6, False), Cost(1e-3, False)


@pytest.mark.parametrize(
    ("cost", "slots", "cores", "workers"),
    [
        (SHORT, 8, 2, 0),
        (SHORT, 8, 64, 0),
        (SHORT, 1024, 4, 4),  # short steps, but very many of them
        (LONG, 8, 2, 2),
        (LONG, 8, 6, 4),  # shares of 2, which 4 workers can do as well
        (LONG, 3, 16, 3),
        (LONG, 8, 1, 0),  # nobody to share with
        (LONG, 1, 16, 0),
        (Cost(1e-3, True), 8, 1, 4),  # waiting needs no core
        (Cost(1e-3, True), 8, 2, 8),
        (Cost(30e-6, False), 8, 2, 0),  # faster perhaps, not clearly
    ],
)
def test_workers_where_they_are_clearly_faster(cost: Cost, slots: int, cores: int, workers: int) -> None:
    assert choose(cost, slots, cores).workers == workers


def test_a_pool_for_an_environment_that_sleeps_and_none_for_cartpole(monkeypatch: pytest.MonkeyPatch) -> None:
    sleepy.register()
    monkeypatch.setattr(auto_workers, "usable_cores", lambda: 2)
    asleep, why = GymConfig(id="Sleepy-v0").settled()
    assert asleep.workers == 8 and "mostly waiting" in why and "8 workers" in why
    awake, why = GymConfig(id="CartPole-v1").settled()
    assert awake.workers == 0 and "this process steps the 8 slots" in why
    env: Any = asleep.build()
    try:
        assert isinstance(env, PoolEnv) and len(env.pool.shares) == 8
    finally:
        env.close()


def test_what_is_settled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_workers, "measure", lambda make: pytest.fail("it was set, not left to be chosen"))
    for workers in (0, 3):
        settled, why = GymConfig(id="CartPole-v1", workers=workers).settled()
        assert (settled.workers, why) == (workers, "")
    assert GymConfig(id="CartPole-v1", vector=True).settled()[0].workers == 0


def test_measuring_leaves_random_numbers_alone() -> None:
    def make(slot: int) -> Any:
        np.random.random()
        random.random()
        return gymnasium.make("CartPole-v1")

    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    assert measure(make).seconds > 0 and usable_cores() >= 1
    assert (random.random(), np.random.random()) == expected


def test_what_no_worker_can_import_stays_here() -> None:
    gymnasium.register("Nameless-v0", entry_point=lambda: InfoMask())
    try:
        settled, why = GymConfig(id="Nameless-v0").settled()
        assert settled.workers == 0 and "could not import" in why
    finally:
        del gymnasium.registry["Nameless-v0"]


def chosen(workers: int) -> Any:
    return lambda cost, slots, cores: Choice(workers, f"{workers} were chosen")


def left_open(sort: str, folder: Path, budget: int = 1_000) -> Any:
    return config(sort, folder, budget, env={**SORTS[sort]["env"], "workers": "auto"})


def test_the_choice_is_said_kept_and_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for workers in (0, 2):
        monkeypatch.setattr(auto_workers, "choose", chosen(workers))
        run = Run.create(left_open("ppo", tmp_path / str(workers)))
        assert drive(run) == 0
        assert f"{workers} were chosen" in capsys.readouterr().out
        assert f"workers: {workers}" in (run.folder / "config.yaml").read_text()
    assert saved(tmp_path / "0") == saved(tmp_path / "2")
    assert metrics(tmp_path / "0") == metrics(tmp_path / "2")


def test_a_resumed_run_does_not_choose_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_workers, "choose", chosen(2))
    run = Run.create(left_open("ppo", tmp_path / "run"))
    stream = run.stream()
    for _ in range(50):
        next(stream)
    run.save()
    stream.close()
    run.close()
    monkeypatch.setattr(auto_workers, "measure", lambda make: pytest.fail("measured again"))
    again = Run.open(tmp_path / "run")
    assert isinstance(again.trainer.source.env, PoolEnv) and again.why == ""
    finish(again)
    again.close()
