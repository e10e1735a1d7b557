"""The mirror of a run: where its files grow, line by line."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from time import time

from ganglion.errors import UserError
from ganglion.record.lock import FILE, lock, open_lock
from ganglion.record.stores import Remote, Where, names

PREFIX = "ganglion-desk-"
YOUNG = 60.0  # seconds that a mirror without a lock may still be in the making
APART = ("checkpoints", "videos", FILE)  # kept by others, or not needed to go on


class Mirror:
    """The run's folder itself, where it is on a disk. A store has no files that grow: there it is a private folder
    whose files are copied into the store when they have changed, before every checkpoint and at the end."""

    def __init__(self, folder: Where) -> None:
        self.folder = folder
        self.private: tempfile.TemporaryDirectory[str] | None = None
        if isinstance(folder, Path):
            self.path = folder
        else:
            sweep()
            self.private = tempfile.TemporaryDirectory(prefix=PREFIX)
            self.path = Path(self.private.name)
            self.claim = open_lock(self.path)  # closed by close()
            with suppress(OSError):
                lock(self.claim)
        self.copied: dict[Path, tuple[int, int]] = {}  # size and time of what the store has

    def fetch(self) -> None:
        """What an earlier process left in the store."""
        if isinstance(self.folder, Remote):
            self._fetch(self.folder, self.path)

    def _fetch(self, source: Remote, target: Path) -> None:
        for name in set(names(source)) - {*APART, ".", ".."}:  # a store may call a thing so, and a disk means others
            if (source / name).exists():
                target.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes((source / name).read_bytes())
                self.copied[target / name] = changed(target / name)
            else:
                self._fetch(source / name, target / name)

    def send(self) -> None:
        """Copies what has changed."""
        if not isinstance(self.folder, Remote):
            return
        found = (Path(root) / name for root, _, files in os.walk(self.path) for name in files)
        for path in sorted(path for path in found if path != self.path / FILE):
            with suppress(FileNotFoundError):  # of a writer's, which removed it meanwhile
                now = changed(path)
                if self.copied.get(path) != now:
                    target = self.folder
                    for part in path.relative_to(self.path).parts:
                        target = target / part
                    target.put([path.read_bytes()])
                    self.copied[path] = now

    def close(self) -> None:
        if self.private is not None:
            self.private.cleanup()
            self.claim.close()


def sweep() -> None:
    """Removes the desks of runs that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, UserError):
            about = left.lstat()  # anybody may write here: what is another's is not touched, and no link followed
            if S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and time() - about.st_mtime > YOUNG:
                with open_lock(left) as claim:
                    if lock(claim):
                        shutil.rmtree(left)


def changed(path: Path) -> tuple[int, int]:
    """Two of these differ when a file was written between."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
