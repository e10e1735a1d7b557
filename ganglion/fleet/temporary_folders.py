"""Private folders in memory that do not outlive their process for long."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from ganglion.record.lock import alive

PREFIX = "ganglion-"


def make_folder(where: Path | None = None) -> Path:
    """A folder, in memory if not elsewhere, that nobody else can read; those that dead processes left are removed."""
    sweep()
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{table()}-", dir=where or place()))


def sweep() -> None:
    """Removes the folders of processes that are dead, as far as that is known here."""
    pattern = f"{PREFIX}[0-9]*-{table()}-*"
    for left in [path for where in {place(), *disks()} for path in where.glob(pattern)]:
        with suppress(OSError, ValueError):
            if left.stat().st_uid == os.getuid() and not alive(int(left.name.split("-")[1])):
                shutil.rmtree(left)


def table() -> str:
    """Which table of processes numbers ours: containers may share memory, and each counts its own."""
    with suppress(OSError):
        return str(os.stat("/proc/self/ns/pid").st_ino)
    return "0"


def disks() -> list[Path]:
    """Where temporary files are; the second for what needs a short name."""
    return [Path(tempfile.gettempdir()), Path("/tmp")]


def place() -> Path:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
