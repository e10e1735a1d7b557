"""What tests of files that somebody else made share: a time within which they end, and a look at all around them."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 30


class TooLongError(BaseException):
    """Caught by nobody."""


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Ends what waits, for a pipe that nobody writes to."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"{seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def listing(folder: Path) -> dict[str, str]:
    """Everything in a folder, by name: what it is, and a checksum of what it holds. No link is followed."""
    found: dict[str, str] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(root) / name
            if path.is_symlink():
                what = f"link to {os.readlink(path)}"
            elif path.is_file():
                what = hashlib.blake2b(path.read_bytes()).hexdigest()
            else:
                what = "folder" if path.is_dir() else "other"
            found[str(path.relative_to(folder))] = f"{what} {path.lstat().st_nlink if path.is_file() else ''}"
    return found
