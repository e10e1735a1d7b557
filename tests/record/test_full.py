"""A disk without room for a while: training goes on, the last good checkpoint survives, later saves succeed."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganglion.core import LogData, Progress
from ganglion.errors import DiskError
from ganglion.record import atomic_write, stages
from ganglion.record.checkpoint import load
from ganglion.record.checkpoint_files import counted
from ganglion.record.writers import jsonl
from ganglion.runtime.run import Run
from tests.equal.runs import config


class Crowded(atomic_write.Disk):
    """A disk that has no room while it is told so."""

    full = False

    def write(self, path: Path, parts: Any) -> None:
        if self.full:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, parts)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowded]:
    made = Crowded()
    monkeypatch.setattr(atomic_write, "disk", made)
    monkeypatch.setattr(stages, "AGAIN", 0.02)
    yield made


def test_training_goes_on_and_later_saves_succeed(
    disk: Crowded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create(config("dqn", tmp_path / "run", 2_000))
    saves: list[tuple[bool, int]] = []
    with caplog.at_level(logging.WARNING):
        for log in run.stream():
            disk.full = 500 <= log.at.env_steps < 1_200
            if log.kind == "save":
                saves.append((disk.full, log.at.env_steps))
            if disk.full:
                newest = run.checkpoints.newest()
                assert newest is not None and counted(newest.name) < (520, 0)
                if log.kind == "record":
                    load(newest)  # every byte is checked
    run.close()
    assert run.trainer.at.env_steps >= 2_000 and not any(full for full, at in saves if at > 520)
    assert min(at for _, at in saves if at > 520) < 1_400 and "Training goes on" in caplog.text
    newest = run.checkpoints.newest()
    assert newest is not None and counted(newest.name) == run.trainer.at[:2]


def test_the_last_save_must_succeed(disk: Crowded, tmp_path: Path) -> None:
    run = Run.create(config("dqn", tmp_path / "run", 600))
    with pytest.raises(DiskError, match="disk is full"):
        for log in run.stream():
            disk.full = log.at.env_steps > 400
    run.close()


def test_a_failure_that_cannot_be_written_down_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create(config("dqn", tmp_path / "run", 200))
    (run.folder / "failures").touch()  # where a folder would be
    with caplog.at_level(logging.WARNING):
        run.failed.file("failures", "0-1", LogData("collect", Progress(), {}), {"kind": "raise"})
    assert "0-1.json was not written" in caplog.text
    run.close()


class Slow:
    """A file on such a disk: it takes half of what it is given, then nothing."""

    def __init__(self, file: Any, code: int) -> None:
        self.file, self.room, self.code = file, 1 << 30, code

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(self.code, os.strerror(self.code))
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_metrics_wait_for_room(code: int, tmp_path: Path) -> None:
    writer = jsonl.Jsonl(tmp_path / "metrics.jsonl")
    writer.file = slow = Slow(writer.file, code)  # type: ignore[assignment]
    for step in range(6):
        slow.room = {2: 30, 3: 0, 4: 50}.get(step, 1 << 30)
        writer.write(LogData("record", Progress(step), {}))
        text = (tmp_path / "metrics.jsonl").read_text()
        assert text.endswith("}\n")  # never half a line
        assert len(text.splitlines()) == {2: 2, 3: 2, 4: 2}.get(step, step + 1)
    slow.room = 0
    writer.write(LogData("record", Progress(6), {}))
    slow.room = 1 << 30
    writer.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == list(range(7))
