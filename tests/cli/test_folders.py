"""Folders of runs: many processes at once, what a killed one leaves, and folders that go while a run trains."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import ganglion
from ganglion.cli import main
from ganglion.errors import DiskError
from ganglion.record import atomic_write, stages
from ganglion.record.checkpoint import Checkpoints, load
from ganglion.runtime import run as runs
from ganglion.runtime.run import Run, load_agents
from tests.equal.runs import config, finish, metrics
from tests.record.conftest import Quick

SOAK = os.environ.get("GANGLION_SOAK") == "1"
MANY = 12 if SOAK else 6
LOOKS = 75 if SOAK else 15
Captured = pytest.CaptureFixture[str]
TINY = ["algo=dqn", "env={kind: toy, id: identity, slots: 2}", "algo.replay.capacity=100", "train.budget=40 steps",
        "algo.limiter.warmup=10", "eval=never", "log=[jsonl]"]  # fmt: skip


# ------------------------------------------------------------ many processes at once


def at_once(count: int, words: Callable[[int], list[str]], folder: Path) -> list[int]:
    """The exit codes of so many processes of their own; what each says on stderr is in a file."""

    def child(number: int) -> None:
        with open(folder / f"said-{number}", "w") as file, redirect_stderr(file):
            code = main(words(number))
        os._exit(code)

    forked = multiprocessing.get_context("fork")
    processes = [forked.Process(target=child, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = multiprocessing.get_context("fork").Barrier(MANY)

    class Now:
        """All processes have one time, and choose their names at the same moment."""

        @staticmethod
        def now() -> datetime:
            together.wait(60)
            return datetime(2026, 1, 1, 12)

    for module in ("ganglion.record.run_folder", "ganglion.runtime.run"):
        monkeypatch.setattr(f"{module}.datetime", Now, raising=False)
    monkeypatch.chdir(tmp_path)
    codes = at_once(MANY, lambda number: ["train", *TINY, f"run.seed={number}"], tmp_path)
    assert codes == [0] * MANY, [path.read_text() for path in tmp_path.glob("said-*")]
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == MANY
    assert sorted(ganglion.load_config(folder / "config.yaml").run.seed for folder in folders) == list(range(MANY))
    assert all(Checkpoints(folder / "checkpoints", 1).newest() for folder in folders)


def test_a_folder_given_to_many_is_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, build = multiprocessing.get_context("fork").Barrier(MANY), runs.build

    def late(*given: Any) -> Any:
        """All have found the folder unused, and none has written into it."""
        together.wait(60)
        return build(*given)

    monkeypatch.setattr(runs, "build", late)
    folder = tmp_path / "run"
    codes = at_once(MANY, lambda number: ["train", *TINY, f"run.seed={number}", f"run.dir={folder}"], tmp_path)
    assert sorted(codes) == [0] + [2] * (MANY - 1)
    first = codes.index(0)
    assert ganglion.load_config(folder / "config.yaml").run.seed == first
    for number in set(range(MANY)) - {first}:
        assert str(folder) in (tmp_path / f"said-{number}").read_text()
    monkeypatch.undo()
    assert main(["resume", str(folder), "train.budget=60 steps"]) == 0


# ------------------------------------------------------------ what a killed process leaves


@pytest.mark.parametrize("left", [[".lock"], [".new-config.yaml"], [".lock", ".new-config.yaml", ".new-run.json"]])
def test_a_run_killed_before_its_config_was_there_is_begun_anew(left: list[str], tmp_path: Path) -> None:
    for name in left:
        (tmp_path / name).write_text("algo: {ki")
    assert main(["resume", str(tmp_path)]) == 2
    assert main(["train", *TINY, f"run.dir={tmp_path}"]) == 0
    assert not list(tmp_path.glob(".new-*"))


def test_a_run_that_could_not_be_written_down_leaves_its_folder_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(atomic_write.Disk):
        def write(self, path: Path, parts: Any) -> None:
            if "run.json" in path.name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            super().write(path, parts)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, "disk", Full())
        assert main(["train", *TINY, f"run.dir={tmp_path}"]) == 1
    assert main(["train", *TINY, f"run.dir={tmp_path}"]) == 0


def test_what_is_no_run_is_not_said_to_be_one(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "notes.txt").touch()
    assert main(["train", *TINY, f"run.dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said and "ganglion resume" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


# ------------------------------------------------------------ a folder that goes while a run trains


def trained_while(folder: Path, happens: Callable[[], None]) -> Run:
    run = Run.create(config("dqn", folder, 1_000))
    for log in run.stream():
        if log.at.env_steps > 500 and happens is not None:
            happens()
            happens = None  # type: ignore[assignment]
    run.close()
    return run


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_run_whose_folder_is_gone_is_saved_in_a_new_one(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, away = tmp_path / "run", tmp_path / "away"
    with caplog.at_level(logging.WARNING):
        run = trained_while(folder, lambda: shutil.rmtree(folder) if how == "removed" else folder.rename(away))
    assert caplog.text.count(f"{folder} was removed or moved away") == 1 and "made anew" in caplog.text
    newest = run.checkpoints.newest()
    assert newest is not None and newest.name == "{}-{}".format(*run.trainer.at)
    assert main(["eval", str(folder), "--episodes", "1"]) == 0
    assert metrics(folder)[-1]["env_steps"] == run.trainer.at.env_steps
    assert finish(Run.open(folder, ["train.budget=1200 steps"])).trainer.at.env_steps >= 1_200
    if how == "moved":
        assert main(["eval", str(away), "--episodes", "1"]) == 0


def test_another_run_in_its_place_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def replaced() -> None:
        folder.rename(tmp_path / "away")
        finish(Run.create(config("dqn", folder, 200, run={"dir": str(folder), "seed": 7}))).close()

    with pytest.raises(DiskError, match=r"was removed or moved away.*is there already"):
        trained_while(folder, replaced)
    assert ganglion.load_config(folder / "config.yaml").run.seed == 7
    assert finish(Run.open(folder)).trainer.at.env_steps < 300


def test_a_folder_that_goes_after_the_last_save_is_not_said_to_be_there(tmp_path: Path, capsys: Captured) -> None:
    folder, close = tmp_path / "run", stages.Saved.after

    def after(stage: stages.Saved, stop: Any) -> Any:
        yield from close(stage, stop)
        shutil.rmtree(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Saved, "after", after)
        assert main(["train", *TINY, f"run.dir={folder}"]) == 1
    said = capsys.readouterr()
    assert "Score it" not in said.out and f"{folder} was removed or moved away" in said.err


class Faulty(atomic_write.Disk):
    """Fails once."""

    def __init__(self, code: int) -> None:
        self.code, self.failed = code, ""

    def write(self, path: Path, parts: Any) -> None:
        if "checkpoints" in str(path) and not self.failed:
            self.failed = str(path)
            raise OSError(self.code, os.strerror(self.code), str(path))
        super().write(path, parts)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_error_in_a_save_is_borne(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Faulty(code)
    monkeypatch.setattr(atomic_write, "disk", disk)
    with caplog.at_level(logging.WARNING):
        run = finish(Run.create(config("dqn", tmp_path / "run", 600)))
    run.close()
    assert f"{disk.failed}: {os.strerror(code)}" in caplog.text and "Training goes on" in caplog.text
    newest = run.checkpoints.newest()
    assert newest is not None and newest.name == "{}-{}".format(*run.trainer.at)


# ------------------------------------------------------------ readers beside a run that trains


def test_the_newest_that_is_removed_meanwhile_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(config("dqn", tmp_path / "run", 2_000, save={"every": "100 steps", "keep": 1}))
    stream, found = run.stream(), Checkpoints.newest
    while run.checkpoints.newest() is None:
        next(stream)
    left = [2]

    def newest(store: Checkpoints) -> Any:
        """What is found is gone when it is read, twice."""
        path = found(store)
        if left[0]:
            left[0] -= 1
            while found(store) == path:
                next(stream)
        return path

    monkeypatch.setattr(Checkpoints, "newest", newest)
    _, _, path = load_agents(tmp_path / "run", "last")
    assert path == str(found(run.checkpoints)) and left == [0]
    stream.close()


def saving(folder: Path) -> None:
    """Saves as often as it can, for ever."""
    atomic_write.disk = Quick()  # of this process, which is a copy
    cfg = config("dqn", folder, 10**9, save={"every": "1 steps", "keep": 1}, eval={"every": "8 steps", "episodes": 1})
    run = Run.create(cfg)
    for log in run.stream():
        if log.kind == "evaluate":
            run.save_best()


def test_readers_beside_a_run_that_saves_all_the_time_never_miss(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=saving, args=(tmp_path / "run",))
    process.start()
    try:
        while Checkpoints(tmp_path / "run" / "checkpoints", 1).best() is None:
            assert process.is_alive()
        paths = [load_agents(tmp_path / "run", which)[2] for which in ("last", "best") for _ in range(LOOKS)]
    finally:
        process.kill()
        process.join()
    assert len(set(paths)) > 2 and all(path.endswith("best") for path in paths[LOOKS:])


def test_a_checkpoint_that_is_damaged_is_still_refused(tmp_path: Path) -> None:
    finish(Run.create(config("dqn", tmp_path / "run", 200))).close()
    newest = Checkpoints(tmp_path / "run" / "checkpoints", 1).newest()
    assert isinstance(newest, Path)
    (newest / "state.safetensors").write_bytes(b"x" * 100)
    assert main(["eval", str(tmp_path / "run"), "--last"]) == 2
    with pytest.raises(ganglion.UserError, match="damaged"):
        load(newest)
