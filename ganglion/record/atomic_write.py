"""The few file operations a checkpoint is made of, in one place, so that tests can fail each of them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from ganglion.errors import UserError

# A link is not followed, and nothing waits for the other end of a pipe.
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Disk:
    """File operations that have reached the disk when they return (`sync` for the names in a folder)."""

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:  # always a new file: what had the name may be a link to somebody else's
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())

    def move(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def drop(self, path: Path) -> None:
        """Removes a file or an empty folder."""
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def sync(self, folder: Path) -> None:
        if os.name == "nt":  # folders cannot be opened there
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free(self, folder: Path) -> int:
        """Bytes left where `folder` is or will be."""
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free


disk = Disk()


def open_plain(path: Path, flags: int) -> int:
    """A handle of a file, made where there is none, with nothing of it cut. A link, a pipe or a device is refused."""
    try:
        handle = os.open(path, flags | os.O_CREAT | PLAIN, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise not_plain(path) from None
        raise
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise not_plain(path)
    return handle


def not_plain(path: Path) -> UserError:
    remedy = "A run's folder holds files and folders alone. Put what it stands for in its place, or remove it."
    return UserError(f"{path} is a link, or no file. {remedy}")


def drop_tree(path: Path) -> None:
    """Removes a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            drop_tree(child)
    disk.drop(path)


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes a file that is whole or absent; the caller syncs the folder."""
    new = path.with_name(f".new-{path.name}")
    disk.write(new, parts)
    disk.move(new, path)


def place_folder(new: Path, target: Path) -> None:
    """Gives a finished folder its name, in place of what had it. A crash leaves `target` or `.old-target` whole."""
    old = target.with_name(f".old-{target.name}")
    disk.sync(new)
    if target.exists():
        if old.exists():
            drop_tree(old)
        disk.move(target, old)
    disk.move(new, target)
    disk.sync(target.parent)
    if old.exists():
        with suppress(OSError):  # the folder is in its place; `recover` tries again
            drop_tree(old)


def find_folder(target: Path) -> Path:
    """Where a folder written by `place_folder` is, also after a crash in the middle of it."""
    old = target.with_name(f".old-{target.name}")
    return old if old.exists() and not target.exists() else target


def recover(folder: Path) -> None:
    """Finishes or undoes what a crash left in the middle. Only our own leading marks are touched."""
    for path in sorted(folder.glob(".old-*")):
        name = path.name.removeprefix(".old-")
        if not name.strip(".") or (folder / name).exists():  # names of dots alone are not ours
            drop_tree(path)
        else:
            disk.move(path, folder / name)
            disk.sync(folder)
    for path in [*sorted(folder.glob(".new-*")), *sorted(folder.glob(".gone-*"))]:
        with suppress(OSError):  # what cannot be removed is in nobody's way
            drop_tree(path)
