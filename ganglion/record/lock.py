"""One process at a time may write into a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ganglion.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows, where runs are not guarded
    fcntl = None  # type: ignore[assignment]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; the system lets go of it however the process ends."""
    with (folder / ".lock").open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(
                    f"{folder}: another process is running this run. Wait for it, or stop it first."
                ) from None
        yield
