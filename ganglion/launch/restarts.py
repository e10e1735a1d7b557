"""A run kept alive: in a process of its own, resumed from its newest checkpoint when that dies."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from types import FrameType
from typing import IO, Any

from ganglion.fleet.temporary_folders import sweep
from ganglion.processes import caught, findable, python, with_parent

FINAL = {0, 2, 3, 4, 129, 130, 143}  # exit codes that another try would not change: well, bad input, diverged, stopped
SHORT, PAUSE = 10.0, 2.0  # seconds: one that died sooner is not tried again at once


class RunProcess(subprocess.Popen[bytes]):
    """A process in a session of its own, so that Ctrl-C reaches it once; it is asked to stop when its parent dies."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], deaf: IO[bytes] | None = None) -> None:
        """`deaf`: where it writes, if not where its parent does; then it, and all it starts, do not hear SIGTERM."""
        own: dict[str, Any] = {"env": findable(environ), "stdout": deaf, "stderr": deaf}
        super().__init__(list(command), start_new_session=True, preexec_fn=block if deaf else with_parent, **own)

    def clear(self) -> None:
        """Ends what it left behind, processes of Ray's that look only now and then whether they are needed."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        sweep()


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with_parent(signal.SIGKILL)


class Restarter:
    """Starts a run, and starts it again while restarts are left. Signals go to the run, which saves and ends."""

    def __init__(
        self,
        begun: Callable[[], bool],
        restarts: int,
        tell: Callable[[str], None],
        mend: Callable[[int], None] = lambda code: None,
    ) -> None:
        """`begun`: whether the run's folder is there, and something to resume. `mend` is told the exit code before
        another try."""
        self.begun, self.left, self.tell, self.mend = begun, restarts, tell, mend
        self.process: RunProcess | None = None
        self.asked: list[signal.Signals] = []

    def keep(self, train: Sequence[str], resume: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
        """The exit code of the last life."""
        with caught(self.pass_on):
            while True:
                began = monotonic()
                self.process = RunProcess(resume if self.begun() else train, environ)
                if self.asked:  # just when there was none to tell
                    self.process.send_signal(self.asked[-1])
                code = self.process.wait()
                self.process.clear()
                if code in FINAL or self.asked:
                    return code if code >= 0 else 128 - code
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                if not self.left:
                    self.tell(f"the run ended ({how}), and no restart is left. Continue with: {text(resume)}")
                    return code if code > 0 else 128 - code
                self.left -= 1
                self.tell(f"the run ended ({how}): resumed from its newest checkpoint; {self.left} restarts left")
                sleep(PAUSE if monotonic() - began < SHORT else 0)
                self.mend(code)
                if self.asked:  # meanwhile
                    return 128 + self.asked[-1]

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self.asked.append(signal.Signals(number))
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


def begun(folder: str) -> bool:
    """Whether a run is there, on a disk or in a store."""
    from ganglion.record.stores import located

    return (located(folder, "RUN") / "config.yaml").exists()


def text(command: Sequence[str]) -> str:
    """A command as one would type it."""
    words = list(command)
    return " ".join(["ganglion", *words[4:]] if words[1:4] == ["-P", "-m", "ganglion"] else words)


def command(*words: str) -> list[str]:
    """Ganglion itself, by the same Python."""
    return python("ganglion", *words)
