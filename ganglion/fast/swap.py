"""When the fast forms of `act` and `learn` take over from the eager ones."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from ganglion.core import Progress, State
from ganglion.fast.compile import TOO_OLD, keep_private
from ganglion.processes import findable, importable, python

log = logging.getLogger(__name__)
LATE = 60  # seconds that a compiler which has fallen behind is waited for


class Compiler:
    """Another process, of low priority, that compiles the same code and so fills torch's cache on disk.

    A thread of this process would slow its loop down and disturb its random stream.
    """

    def __init__(self, config: Path, modules: Sequence[str] = ()) -> None:
        self.command = python("ganglion.runtime.precompile", str(config), json.dumps(importable()), *modules)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It knows this process's id, and ends when this one does, however that may be."""
        keep_private()  # both use the same
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [*self.command, "--parent", str(os.getpid())]
        self.process = subprocess.Popen(command, env=findable(), **quiet)  # type: ignore[call-overload]

    def wait(self) -> None:
        """Until it has finished, but not for ever: what it could not do this process will do itself."""
        if self.process is None:
            return
        try:
            self.process.wait(LATE)
        except subprocess.TimeoutExpired:
            log.warning("the compiler is late: compiling here")
        self.stop()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Swap:
    """Eager until the opt step `since`, then fast if the run is long enough to be worth it.

    Both are read from counters, so that a run repeats and a resumed one continues in the form it was in.
    """

    def __init__(self, since: int = 0, least: int = 0, able: bool = True) -> None:
        self.since, self.least = since, least  # opt steps; `least`: in the whole run
        self.able = able  # whether there is a fast form to go over to
        self.on = since == 0
        self.compiler: Compiler | None = None

    def look(self, at: Progress) -> None:
        """Before the update that `at` counts up to."""
        if self.on or at.opt_steps > self.since or not self.worth(at):
            return
        if not self.able:
            if at.opt_steps == self.since:
                log.warning(TOO_OLD, torch.__version__)
            return
        if at.opt_steps == self.since // 4 and self.compiler is not None:
            self.compiler.start()
        if at.opt_steps == self.since:
            if self.compiler is not None:
                self.compiler.wait()
            self.on = True

    @property
    def went(self) -> bool:
        """Whether it has gone over in the course of the run: by now the compiled functions are on disk."""
        return self.on and self.since > 0

    def worth(self, at: Progress) -> bool:
        return at.fraction > 0 and at.opt_steps / at.fraction >= self.least

    def state(self) -> State:
        return State({}, {"on": self.on})

    def restore(self, state: State) -> None:
        on = state.scalars.get("on", False)
        if not isinstance(on, bool):
            raise ValueError(f"{str(on)[:40]!r} is neither true nor false")
        self.on = self.since == 0 or on
