from __future__ import annotations

import errno
import json
import logging
import math
import sys
from pathlib import Path

import pytest

from ganglion.config import LogSection, every
from ganglion.core import LogData, Progress
from ganglion.errors import UserError
from ganglion.record.writers import RunInfo
from ganglion.record.writers.jsonl import Jsonl, JsonlConfig, read
from ganglion.record.writers.tensorboard import TensorboardConfig
from ganglion.record.writers.wandb import WandbConfig, mode, run_id


def run_at(folder: Path, steps: int = 0, offset: int | None = None) -> RunInfo:
    return RunInfo("cartpole-dqn", folder, {"algo": {"kind": "dqn"}}, every("50k steps"), Progress(steps), offset)


def record(steps: int, **metrics: float) -> LogData:
    return LogData("record", Progress(steps, steps // 10, steps // 100, 0.5, steps / 50_000), metrics)


def test_writers_are_chosen_by_name(tmp_path):
    kinds = [writer.kind for writer in LogSection(writers=("jsonl", "tensorboard", {"kind": "wandb"})).writers]
    assert kinds == ["jsonl", "tensorboard", "wandb"]


# ------------------------------------------------------------ jsonl


def test_a_line_holds_counters_and_metrics(tmp_path):
    writer = JsonlConfig().build(run_at(tmp_path))
    writer.write(record(1000, **{"episode/return": 23.5, "learn/loss": math.nan}))
    text = (tmp_path / "metrics.jsonl").read_text()  # before close: each line is flushed
    assert json.loads(text, parse_constant=pytest.fail) == {
        "kind": "record",
        "env_steps": 1000,
        "opt_steps": 100,
        "episodes": 10,
        "seconds": 0.5,
        "episode/return": 23.5,
        "learn/loss": "nan",
    }
    writer.close()


def test_numbers_that_json_lacks_come_back(tmp_path):
    writer = Jsonl(tmp_path / "m")
    writer.write(record(1, a=math.inf, b=-math.inf, c=math.nan, d=0.1))
    writer.close()
    (line,) = read(tmp_path / "m")
    assert line["a"] == math.inf and line["b"] == -math.inf and math.isnan(line["c"]) and line["d"] == 0.1


def test_a_resumed_run_leaves_the_same_file_as_one_never_stopped(tmp_path):
    logs = [record(n, x=n / 3) for n in range(10)]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _write(Jsonl(whole), logs)
    first = Jsonl(cut)
    for log in logs[:4]:
        first.write(log)
    offset = first.offset()
    first.write(LogData("save", Progress(4), {"path": "somewhere"}))
    _write(first, logs[4:7])  # after the checkpoint, before the kill
    with open(cut, "ab") as file:
        file.write(b'{"kind": "rec')
    _write(Jsonl(cut, offset), logs[4:])
    assert cut.read_bytes() == whole.read_bytes()


def _write(writer: Jsonl, logs: list[LogData]) -> None:
    for log in logs:
        writer.write(log)
    writer.close()


def test_a_new_run_begins_an_empty_file(tmp_path):
    _write(Jsonl(tmp_path / "m"), [record(1)])
    _write(Jsonl(tmp_path / "m"), [record(2)])
    assert [line["env_steps"] for line in read(tmp_path / "m")] == [2]


def test_lost_metrics_do_not_stop_a_resume(tmp_path, caplog):
    path = tmp_path / "m"
    _write(Jsonl(path), [record(1), record(2)])
    path.write_bytes(path.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        _write(Jsonl(path, offset=1000), [record(3)])
    assert [line["env_steps"] for line in read(path)] == [1, 3] and "lost" in caplog.text


def test_reading_leaves_out_a_torn_line(tmp_path):
    _write(Jsonl(tmp_path / "m"), [record(1)])
    with open(tmp_path / "m", "ab") as file:
        file.write(b'{"kind": "record", "env')
    assert len(list(read(tmp_path / "m"))) == 1


# ------------------------------------------------------------ tensorboard


def test_tensorboard_reads_back_and_forgets_what_a_resume_repeats(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for life, (start, stop) in enumerate(((0, 2), (0, 6), (3, 9))):  # resumed at the beginning, and at 3
        writer = TensorboardConfig().build(run_at(tmp_path, start, offset=100 * start if life else None))
        for n in range(start + 1, stop):
            writer.write(record(n, **{"episode/return": 10.0 * start + n}))
        writer.write(LogData("save", Progress(stop), {"path": "text is no scalar"}))
        writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["episode/return"]
    points = {event.step: event.value for event in events.Scalars("episode/return")}
    assert points == {1: 1, 2: 2, 3: 3, 4: 34, 5: 35, 6: 36, 7: 37, 8: 38}
    assert len(events.Scalars("episode/return")) == len(points)
    assert "config/text_summary" in events.Tags()["tensors"]


def test_a_full_disk_ends_tensorboard_and_not_the_run(tmp_path, monkeypatch, caplog):
    pytest.importorskip("tensorboard")
    writer = TensorboardConfig().build(run_at(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("add_scalar", "close"):  # where the writer's thread has died, so says whatever is asked of it
        monkeypatch.setattr(writer.events, name, full)
    for n in (1, 2):
        writer.write(record(n, **{"episode/return": 1.0}))
    writer.close()
    assert caplog.text.count("No space left on device") == 1


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"ganglion\[tensorboard\]"):
        TensorboardConfig().check()
    with pytest.raises(UserError, match=r"ganglion\[wandb\]"):
        WandbConfig().check()


# ------------------------------------------------------------ wandb


def test_wandb_is_offline_without_a_key(monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert mode() == "disabled"
    monkeypatch.setenv("WANDB_API_KEY", "from the environment")
    assert mode() is None


def test_wandb_has_no_setting_for_a_key():
    assert not [name for name in WandbConfig.model_fields if "key" in name or "token" in name]


def test_wandb_keeps_its_id(tmp_path):
    assert run_id(tmp_path) == run_id(tmp_path) != ""


def test_wandb_writes_offline_and_resumes_under_the_same_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged = []
    for start in (0, 1000):
        writer = WandbConfig(tags=("test",)).build(run_at(tmp_path, start))
        monkeypatch.setattr(writer.run, "log", lambda row, log=writer.run.log: (logged.append(row), log(row)))
        writer.write(record(start + 500, **{"episode/return": 1.5}))
        writer.write(LogData("save", Progress(1), {"path": "text is no scalar"}))
        assert writer.run.id == run_id(tmp_path) and writer.run.offline
        writer.close()
    assert [row["env_steps"] for row in logged] == [500, 1500] and logged[0]["episode/return"] == 1.5
    assert list((tmp_path / "wandb").glob(f"offline-run-*/run-{run_id(tmp_path)}.wandb"))
