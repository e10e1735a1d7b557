"""A process with everything imported, of which explorers are forked: in milliseconds instead of seconds, and with
memory that they share until they write to it.

Whoever connects to its socket finds an explorer process (`fleet.explorer_process`) at the other end. All of them end
with the one that started the fork server, for it holds the other end of its standard input. Standard library only,
until it runs; and one thread, so that forking is safe.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from ganglion.fleet.temporary_folders import make_folder
from ganglion.processes import findable, python

QUEUE = 128  # who waits until everything is imported

_coming: list[ForkServer] = []


def begin_fork_server() -> None:
    """Starts one, to be joined later: it imports while this process does."""
    if not _coming:
        _coming.append(ForkServer())
        atexit.register(close_left)


def close_left() -> None:
    """Ends what was begun and never joined."""
    while _coming:
        _coming.pop().close()


def join_fork_server() -> ForkServer:
    begin_fork_server()
    return _coming.pop()


def leave_fork_server(fork_server: ForkServer) -> None:
    """Keeps it for the next run of this process, if there is none yet."""
    if _coming or fork_server.process.poll() is not None:
        fork_server.close()
    else:
        _coming.append(fork_server)


class ForkServer:
    """The process, seen by who started it. Whoever connects waits until it is ready."""

    def __init__(self) -> None:
        self.path = make_folder() / "fork_server"  # in a folder that nobody else can read
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.path))
            server.listen(QUEUE)
            command = python("ganglion.fleet.fork_server", str(server.fileno()))
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[server.fileno()], start_new_session=True, env=findable(),
            )  # fmt: skip

    def close(self) -> None:
        """Ends it, and all that came from it, whatever they are doing."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.path.parent, ignore_errors=True)


def connect(path: Path) -> Connection:
    """A line to a new explorer process; OSError where there is no fork server."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        return Connection(line.detach())


def main(server: socket.socket) -> None:
    from ganglion.fleet import explorer_process

    explorer_process.preload()
    gc.collect()
    gc.freeze()  # a collection in a child would write to what it shares, and so copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        ready, _, _ = select.select([server, sys.stdin], [], [])
        if sys.stdin in ready:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        line, _ = server.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # environments may have children of their own
            server.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            with suppress(OSError, EOFError, KeyboardInterrupt):  # nobody is at the other end any more
                explorer_process.serve(Connection(line.detach()))
            os._exit(0)
        line.close()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
