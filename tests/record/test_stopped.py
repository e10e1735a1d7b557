"""A run ends when an evaluation reaches the target, and only then."""

from __future__ import annotations

from math import nan

import pytest

from ganglion.core import LogData, Progress, Stop
from ganglion.record.stages import Stopped


@pytest.mark.parametrize(("mean", "target", "stops"), [(9.9, 10.0, False), (10.0, 10.0, True), (11.0, 10.0, True)])
def test_a_target_reached_ends_the_run(mean: float, target: float, stops: bool) -> None:
    wish = Stopped(target).seen(LogData("evaluate", Progress(), {"eval/return_mean": mean}))
    assert wish == (Stop("target", finished=True) if stops else None)


def test_nan_reaches_nothing() -> None:
    assert Stopped(10.0).seen(LogData("evaluate", Progress(), {"eval/return_mean": nan})) is None


def test_without_a_target_nothing_stops() -> None:
    assert Stopped(None).seen(LogData("evaluate", Progress(), {"eval/return_mean": 1e9})) is None


def test_the_end_is_evaluated_once_after_the_last_update(tmp_path):
    from ganglion.runtime.run import Run
    from tests.equal.runs import config, finish, metrics

    run = finish(Run.create(config("ppo", tmp_path / "end", budget=900, eval={"every": "300 steps", "episodes": 2})))
    judged = [line for line in metrics(run.folder) if line["kind"] == "evaluate"]
    assert [line["env_steps"] for line in judged if line["env_steps"] >= 900] == [run.trainer.at.env_steps]
    assert judged[-1]["opt_steps"] == run.trainer.at.opt_steps
