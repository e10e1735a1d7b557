"""One worker process as its pool sees it: started, spoken to, waited for, ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from ganglion.envs.worker import MESSAGE, WAKE, frame, push, read_frame
from ganglion.errors import EnvError, UserError

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # workers are the parallelism
LAST_WORDS = 0.3  # seconds for a worker that hangs to say where


class LostError(Exception):
    """A worker died, or did not answer in time."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind, self.error = kind, error


class Member:
    """A worker process and the two pipes to it. `load` is its first message: what to import."""

    def __init__(self, block: int, load: dict[str, Any]) -> None:
        into, self._tell = os.pipe()
        self._hear, out = os.pipe()
        self._trace = os.memfd_create("ganglion-trace")
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)
        bound = threading.current_thread() is threading.main_thread()  # else it would die with that thread
        words = [into, out, block, self._trace, os.getpid(), int(bound)]
        command = [sys.executable, "-P", "-m", "ganglion.envs.worker", *map(str, words)]
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(into, out, block, self._trace),
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": paths},
                process_group=0,  # Ctrl-C goes to the pool alone
            )
        finally:
            os.close(into)
            os.close(out)
        self.pid = self.process.pid
        self.answered = False
        self._head = WAKE  # the first byte of a message, where it has been read
        self.tell({"do": "load", **load})

    # ------------------------------------------------------------ speaking

    def wake(self) -> None:
        """Has it look at what is asked for. One that has died is noticed by whoever waits for its answer."""
        if not self.ended:
            with suppress(BrokenPipeError):
                os.write(self._tell, WAKE)

    def tell(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Sends a message. One that has died is noticed by whoever waits for its answer."""
        if not self.ended:
            with suppress(BrokenPipeError):
                push(self._tell, frame(message, payload))

    def ask(self, message: dict[str, Any], seconds: float, payload: bytes = b"") -> dict[str, Any]:
        """Tells and hears."""
        self.tell(message, payload)
        return self.hear(seconds)

    def ready(self, seconds: float) -> None:
        """Waits until it has imported what it needs."""
        if not self.answered:
            self.hear(seconds)
            self.answered = True

    def hear(self, seconds: float) -> dict[str, Any]:
        """Its next message. What it could not do is raised."""
        self._check()
        word, self._head = self._head, WAKE
        while word == WAKE:
            if not self._poll.poll(seconds * 1000):
                raise LostError("timeout", f"no answer within {seconds:g} s")
            word = os.read(self._hear, 1)
        if word != MESSAGE:
            raise self.death()
        try:
            message, _ = read_frame(self._hear)
        except ValueError:  # it died in the middle of a message
            raise self.death() from None
        if "error" in message:
            raise (UserError if message["user"] else EnvError)(message["error"])
        return message

    def doze(self, milliseconds: float) -> None:
        """Sleeps until it says something; one that has died is noticed."""
        self._check()
        if self._head == WAKE and self._poll.poll(milliseconds):
            self._head = os.read(self._hear, 1)
            if not self._head:
                raise self.death()

    @property
    def pipe(self) -> int:
        """What becomes readable when it has said something."""
        return self._hear

    # ------------------------------------------------------------ ending

    @property
    def ended(self) -> bool:
        """Whether it was hung up on."""
        return self._tell < 0

    def _check(self) -> None:
        if self.ended:
            raise LostError("death", "no worker could be started")

    def death(self) -> LostError:
        """How it died."""
        try:
            code = self.process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:  # an environment may close what is not its own
            return LostError("death", "the worker closed its pipes")
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
            return LostError("death", f"the worker was ended by {name}")
        return LostError("death", f"the worker ended with code {code}")

    def last_words(self, hangs: bool) -> str:
        """The stack it left behind; one that hangs is asked for it."""
        if hangs:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR1)
            until = monotonic() + LAST_WORDS
            while os.fstat(self._trace).st_size == 0 and monotonic() < until:
                sleep(0.005)
            sleep(0.01)  # the rest of it
        return os.pread(self._trace, 1 << 16, 0).decode(errors="replace") if self._trace >= 0 else ""

    def memory(self) -> float:
        """The megabytes it holds."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (OSError, IndexError):
            return 0.0

    def hang_up(self) -> None:
        """Ends its pipe: it closes its environments and exits."""
        if self._tell >= 0:
            os.close(self._tell)
            self._tell = -1

    def end(self, seconds: float = 0.0) -> None:
        """Waits so long for it to exit, then kills it; nothing of it is left."""
        self.hang_up()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for file in (self._hear, self._trace):
            if file >= 0:
                os.close(file)
        self._hear = self._trace = -1
