"""CSV and MLflow, numbers and callbacks of one's own, timers."""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path

import pytest

import ganglion
from ganglion.core import Evaluate, Stop
from ganglion.record.writers.csv import CsvConfig
from ganglion.record.writers.mlflow import MlflowConfig
from ganglion.timers import TIMERS, Timers, timer
from tests.record.test_writers import record, run_at
from tests.tuning.inline import base


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_grows_columns(tmp_path: Path) -> None:
    writer = CsvConfig().build(run_at(tmp_path))
    writer.write(record(100, a=0.5))
    writer.write(record(200, a=0.25, **{"learn/loss": float("nan")}))
    writer.write(record(300, b=1.0))
    found = rows(tmp_path)
    assert [row["env_steps"] for row in found] == ["100", "200", "300"]
    told = [(row["a"], row["learn/loss"], row["b"]) for row in found]
    assert told == [("0.5", "", ""), ("0.25", "nan", ""), ("", "", "1.0")]
    writer.close()


def test_a_resumed_table_leaves_out_what_was_not_saved(tmp_path: Path) -> None:
    writer = CsvConfig().build(run_at(tmp_path))
    for steps in (100, 200, 300):
        writer.write(record(steps, a=1.0))
    again = CsvConfig().build(run_at(tmp_path, steps=200, offset=1))
    again.write(record(250, a=2.0))
    assert [(row["env_steps"], row["a"]) for row in rows(tmp_path)] == [("100", "1.0"), ("200", "1.0"), ("250", "2.0")]
    fresh = CsvConfig().build(run_at(tmp_path, offset=0))  # resumed from the beginning
    fresh.write(record(10, a=3.0))
    assert len(rows(tmp_path)) == 1


class Client:
    """What is used of MLflow's."""

    told: list[tuple[str, object]] = []

    def __init__(self, where: str) -> None:
        self.told.append(("where", where))

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return "1"

    def create_run(self, place: str, run_name: str) -> object:
        self.told.append(("run", run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    def log_param(self, run: str, name: str, value: str) -> None:
        self.told.append((name, value))

    def log_batch(self, run: str, metrics: list[tuple[object, ...]]) -> None:
        if any(metric[0] == "fails" for metric in metrics):
            raise ConnectionError("the server is away")
        self.told += [("metric", metric) for metric in metrics]

    def set_terminated(self, run: str) -> None:
        self.told.append(("ended", run))


def test_mlflow_is_told_numbers_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a stand-in of its client: the package is no dependency of the tests."""
    entities = types.SimpleNamespace(Metric=lambda *values: values)
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=Client, entities=entities))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Client.told = []
    for _ in range(2):
        writer = MlflowConfig().build(run_at(tmp_path / "run"))
        writer.write(record(100, a=0.5, bad=float("nan")))
        writer.close()
    told = Client.told
    assert told[0] == ("where", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert [value for name, value in told if name == "run"] == ["cartpole-dqn"]  # taken up again, not made anew
    assert ("algo.kind", "dqn") in told
    assert [value for name, value in told if name == "metric"] == [("a", 0.5, 500, 100)] * 2
    writer = MlflowConfig().build(run_at(tmp_path / "run"))
    writer.write(record(100, fails=1.0))
    assert "Training goes on" in caplog.text
    writer.write(record(100, fails=1.0))  # not tried again


def test_numbers_and_callbacks_of_ones_own(tmp_path: Path) -> None:
    run = ganglion.Run.create(base(f"run.dir={tmp_path / 'run'}", "log={every: 16 steps, writers: [csv]}"))
    seen: list[str] = []
    asked: list[object] = [Evaluate()]
    run.metrics["mine/steps"] = lambda run: run.trainer.at.env_steps
    run.callbacks.append(lambda log: seen.append(log.kind))
    run.callbacks.append(lambda log: asked.pop() if asked else Stop("enough") if log.at.env_steps >= 40 else None)
    for _ in run.stream():
        pass
    run.close()
    found = rows(tmp_path / "run")
    assert all(float(row["mine/steps"]) == float(row["env_steps"]) for row in found if row["kind"] == "record")
    assert seen.index("evaluate") < 4 and 40 <= run.trainer.at.env_steps < 64


def test_timers_are_recorded(tmp_path: Path) -> None:
    TIMERS.lap()
    run = ganglion.Run.create(base(f"run.dir={tmp_path / 'run'}", "log={every: 16 steps, writers: [csv]}"))

    @timer("mine")
    def called(log: object) -> None:
        """Nothing."""

    run.callbacks.append(called)
    for _ in run.stream():
        pass
    run.close()
    found = [row for row in rows(tmp_path / "run") if row["kind"] == "record"]
    assert all(float(row["timer/mine_ms"]) > 0 and float(row["timer/mine_calls"]) >= 8 for row in found)


def test_timers_nest_and_start_anew() -> None:
    timers = Timers()
    inner = timer("inner", timers)
    with timer("outer", timers):
        for _ in range(3):
            with inner:
                pass
    found = timers.lap()
    assert found["timer/inner_calls"] == 3.0 and found["timer/outer_calls"] == 1.0
    assert found["timer/outer_ms"] > found["timer/inner_ms"] and timers.lap() == {}
