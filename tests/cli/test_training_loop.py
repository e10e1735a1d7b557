"""Driving a run: to its end, to a signal, to a full disk. The run is a stand-in."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from ganglion.cli import main
from ganglion.config import RunConfig
from ganglion.core import Command, LogData, Progress, Stop
from ganglion.errors import LearnerLostError, UserError
from ganglion.runtime.run import Run

Captured = pytest.CaptureFixture[str]
ASK = ["train", "algo=sketch", "env=world", "log=[drum]"]


class Pretend:
    """A run of ten events; `at_three` happens at the third."""

    made: list[Pretend]
    saved: Path | None = Path("runs/my run/checkpoints/3")
    at_three: Callable[[], None]

    def __init__(self, config: RunConfig) -> None:
        self.cfg, self.folder, self.why = config, Path("runs/my run"), ""
        self.commands: list[Command | None] = []
        self.checkpoints = SimpleNamespace(newest=lambda: self.saved)
        self.made.append(self)

    def needs(self) -> int:
        return 2_500_000

    def close(self) -> None:
        self.closed = True

    def summary(self) -> Mapping[str, str]:
        return {"Best": "12.00 mean return"}

    def stream(self) -> Generator[LogData, Command | None, Stop]:
        for number in range(10):
            if number == 3:
                type(self).at_three()
            command = yield LogData("collect", Progress(env_steps=number), {})
            self.commands.append(command)
            if isinstance(command, Stop):
                return command
        return Stop("budget", finished=True)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> type[Pretend]:
    made: list[Pretend] = []
    monkeypatch.setattr(Pretend, "made", made, raising=False)
    monkeypatch.setattr(Pretend, "at_three", staticmethod(lambda: None), raising=False)
    monkeypatch.setattr(Run, "create", Pretend)
    return Pretend


def test_a_finished_run_says_what_to_do_next(pretend: type[Pretend], capsys: Captured) -> None:
    assert main(ASK) == 0
    out = capsys.readouterr().out
    assert "2.5 MB of disk" in out
    assert "12.00 mean return" in out
    assert "ganglion eval 'runs/my run' --episodes 100" in out
    assert "ganglion play 'runs/my run'" in out
    assert pretend.made[0].commands == [None] * 10


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_and_says_how_to_resume(
    number: signal.Signals, code: int, pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(pretend, "at_three", staticmethod(lambda: os.kill(os.getpid(), number)))
    assert main([*ASK, "--import", "json"]) == code
    assert "ganglion resume 'runs/my run' --import json" in capsys.readouterr().out
    assert pretend.made[0].commands == [None, None, None, Stop(f"interrupted by {number.name}")]
    assert signal.getsignal(number) is before


def test_a_hang_up_that_nohup_ignores_stays_ignored(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(pretend, "at_three", staticmethod(lambda: signal.raise_signal(signal.SIGHUP)))
        assert main(ASK) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sys_exit_in_the_middle_of_a_run_is_a_failure(
    pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretend, "at_three", staticmethod(lambda: sys.exit(0)))
    assert main(ASK) == 3
    assert "env: it called sys.exit(0). What was saved before is whole." in capsys.readouterr().err


@pytest.mark.parametrize("error", [UserError("too late."), OSError(errno.EIO, "lost"), KeyboardInterrupt()])
def test_nothing_is_promised_where_nothing_was_saved(
    error: BaseException, pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(pretend, "at_three", staticmethod(fail))
    monkeypatch.setattr(pretend, "saved", None)
    assert main(ASK) in (1, 2, 130)
    err = capsys.readouterr().err
    assert "Nothing had been saved yet." in err and "resume" not in err


def test_a_second_interrupt_ends_at_once(
    pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pretend, "at_three", staticmethod(twice))
    assert main(ASK) == 130
    assert "What was saved before is whole. Continue with: ganglion resume" in capsys.readouterr().err


def test_a_full_disk_is_a_message(pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pretend, "at_three", staticmethod(full))
    assert main(ASK) == 1
    err = capsys.readouterr().err
    assert err.startswith("ganglion: No space left on device. What was saved before is whole.")
    assert "Traceback" not in err


def test_bad_input_found_late_says_how_to_resume(
    pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crowded() -> None:
        raise UserError("a checkpoint needs 5 MB and 1 MB are free.")

    monkeypatch.setattr(pretend, "at_three", staticmethod(crowded))
    assert main(ASK) == 2
    assert "1 MB are free. What was saved before is whole. Continue with: ganglion resume" in capsys.readouterr().err


def test_a_signal_that_ends_a_learner_too_ends_the_run(
    pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not started again, as it would be after a death that nobody asked for."""

    def both() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise LearnerLostError("learner 1 died")

    monkeypatch.setattr(pretend, "at_three", staticmethod(both))
    assert main(ASK) == 143
    assert "learner 1 died" in (err := capsys.readouterr().err) and "Continue with: ganglion resume" in err
    assert len(pretend.made) == 1 and pretend.made[0].closed


def test_a_reader_that_has_left_ends_no_run(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> None:
    """`ganglion train | head -1`."""

    def left(*lines: str) -> None:
        if not lines[0].startswith("Run in"):
            raise BrokenPipeError

    monkeypatch.setattr("ganglion.cli.training_loop.say", left)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert main(ASK) == 0
    assert pretend.made[0].commands == [None] * 10


def test_a_sweep_runs_one_after_the_other(
    pretend: type[Pretend], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.cli.sweep.ranked", lambda folders: [f"{len(folders)} ranked"])
    assert main([*ASK, "sweep.run.seed=[3,4]"]) == 0
    assert [run.cfg.run.seed for run in pretend.made] == [3, 4]
    said = capsys.readouterr().out
    assert "Run 2 of 2: World-v0-sketch-seed=4" in said and said.endswith("2 ranked\n")


def test_an_interrupted_sweep_stops(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretend, "at_three", staticmethod(lambda: signal.raise_signal(signal.SIGINT)))
    assert main([*ASK, "sweep.run.seed=[3,4]"]) == 130
    assert len(pretend.made) == 1


def test_an_interrupted_run_that_never_saves_says_so(pretend: type[Pretend], capsys: Captured) -> None:
    pretend.at_three = staticmethod(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert main([*ASK, "save=never"]) == 143
    assert "nothing was saved" in capsys.readouterr().out
