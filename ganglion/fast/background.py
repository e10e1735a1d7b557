"""Compilation in the background, by another process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ganglion.fast.compile import keep_private
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
