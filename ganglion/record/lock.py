"""One process at a time may write into a run's folder."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import IO, Any

from ganglion.errors import FolderLostError, UserError
from ganglion.record.atomic_write import open_plain
from ganglion.record.stores import Remote, Where

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
FILE = ".lock"
BEAT = 5.0  # seconds between two signs of life of who holds a lock in a store
STALE = 20.0  # seconds without one after which it is taken over
SETTLE = 0.3  # seconds after which of two who came at once the later one is seen by both


@contextmanager
def held(folder: Where) -> Iterator[Callable[[], None]]:
    """Holds the folder's lock, and gives what checks that it still does. On a disk the system lets go of it however the
    process ends; in a store it is a file with signs of life, taken over from who gives none."""
    if isinstance(folder, Remote):
        lease = Lease(folder)
        lease.take()
        try:
            yield lease.check
        finally:
            lease.leave()
        return
    with open_lock(folder) as file:
        try:
            own = lock(file)
        except OSError as error:
            log.warning("%s: no lock can be had here (%s): start no second process", folder, error.strerror)
            own = True
        if not own:
            raise refusal(folder, "another process")
        yield lambda: check_there(folder, file)


def open_lock(folder: Path) -> IO[str]:
    return os.fdopen(open_plain(folder / FILE, os.O_RDWR), "r+")


def check_there(folder: Path, file: IO[str]) -> None:
    """Refuses to go on where the folder is not the one that was locked."""
    try:
        there = os.path.samestat(os.lstat(folder / FILE), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        there = False
    if not there:
        raise FolderLostError(f"{folder} was removed or moved away while the run was training.")


def lock(file: IO[str]) -> bool:
    """Whether an open file is this process's alone, until it is closed or the process ends. Some systems, and some
    network file systems, have no locks: an OSError."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def refusal(folder: Where, who: str) -> UserError:
    return UserError(f"{folder}: {who} is running this run. Wait for it, or stop it first.")


def named(told: dict[str, Any]) -> str:
    """Who holds a lock in a store, by what it says."""
    return f"process {told['pid']} of {told.get('host')}" if "pid" in told else "another process"


class Lease:
    """A lock where there is only a store: a file that says who holds it, written anew every few seconds."""

    def __init__(self, folder: Remote) -> None:
        self.folder, self.file = folder, folder / FILE
        self.own = {"owner": secrets.token_hex(8), "host": socket.gethostname(), "pid": os.getpid(), "where": here()}
        self.count = 0
        self.ended = Event()
        self.beating = Thread(target=self.live, daemon=True, name="lock")

    def take(self) -> None:
        told = self.read()
        if told is not None and not self.abandoned(told):
            raise refusal(self.folder, named(told))
        self.write()
        self.ended.wait(SETTLE)
        self.check()
        self.beating.start()

    def abandoned(self, told: dict[str, Any]) -> bool:
        """Whether who holds the lock is dead: known at once on the same machine, otherwise by its silence."""
        if told.get("where") == here() and isinstance(told.get("pid"), int) and not alive(told["pid"]):
            return True
        log.warning("%s: another process may be running this run; a sign of life may take %g s", self.folder, STALE)
        ends = monotonic() + STALE
        while monotonic() < ends:
            self.ended.wait(min(1.0, STALE / 4))
            if self.read() != told:
                return False
        return True

    def check(self) -> None:
        """Refuses to go on where another has taken the run over, even if that one has ended since."""
        told = self.read()
        if told is None and not self.ended.is_set():
            raise UserError(f"{self.folder}: its lock is gone; another process has taken over, and may have gone on.")
        if told and told.get("owner") != self.own["owner"]:
            raise refusal(self.folder, f"{named(told)} has taken over, and")

    def live(self) -> None:
        while not self.ended.wait(BEAT):
            with suppress(OSError, UserError):  # a store that is away; who must not write is told when it saves
                self.check()
                self.write()

    def leave(self) -> None:
        self.ended.set()
        if self.beating.is_alive():
            self.beating.join()
        with suppress(OSError, UserError):
            self.check()
            self.file.unlink()

    def write(self) -> None:
        self.count += 1
        self.file.put([json.dumps({**self.own, "count": self.count}).encode()])

    def read(self) -> dict[str, Any] | None:
        """Who holds it; nothing in it while it is half-written, None where there is no lock."""
        try:
            told = json.loads(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}


def here() -> str:
    """The machine since it was started, and its own table of processes: there a process's number says which it is."""
    with suppress(OSError):
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started} {os.readlink('/proc/self/ns/pid')}"
    return secrets.token_hex(8)  # nowhere that anybody else is


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
