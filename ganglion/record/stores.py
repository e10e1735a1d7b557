"""Folders by URL: a Path where there is a disk; where there is only a store (S3, memory, ...), what is used as one."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

from ganglion.errors import UserError, check_place, nearest

T = TypeVar("T")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
DISK = ("file", "local")
USUAL = ("file", "memory", "s3")  # named where a scheme is not known
QUICK, SLOW = 0.005, 0.1  # seconds between two looks at a disk or at memory, and at a store


class StoreError(OSError):
    """A store that is away, or that refuses."""


class Remote:
    """A name in a store that fsspec reaches, used as a Path is. A file is put whole; nothing is ever renamed, and
    folders are there when something is in them."""

    def __init__(self, fs: Any, url: str) -> None:
        self.fs, self.url = fs, url

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.fs, f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        return Remote(self.fs, self.url.rpartition("/")[0])

    @property
    def pace(self) -> float:
        return QUICK if self.url.startswith("memory://") else SLOW

    def resolve(self) -> Remote:
        return self

    def exists(self) -> bool:
        """Whether there is a file of this name. fsspec's own isfile says no, too, where a store does not answer."""
        try:
            return bool(self.ask("look at it", lambda: self.fs.info(self.url))["type"] == "file")
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read_bytes(self) -> bytes:
        return self.ask("read it", lambda: bytes(self.fs.cat_file(self.url)))

    def read_most(self, most: int) -> bytes:
        """The same of a file of no more bytes than `most`; ValueError where it has more."""
        size = int(self.ask("look at it", lambda: self.fs.info(self.url))["size"] or 0)
        check_size(size, most)
        return self.ask("read it", lambda: bytes(self.fs.cat_file(self.url, start=0, end=size))) if size else b""

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BytesIO:
        assert mode == "rb"
        return io.BytesIO(self.read_bytes())

    def put(self, parts: Iterable[bytes | memoryview]) -> None:
        whole = b"".join(parts)
        try:
            self.ask("write it", lambda: self.fs.pipe_file(self.url, whole))
        except FileNotFoundError as error:  # a bucket, not a folder
            raise StoreError(f"{self}: cannot write it: {brief(error)}") from error

    def unlink(self) -> None:
        with suppress(FileNotFoundError):
            self.ask("remove it", lambda: self.fs.rm_file(self.url))

    def names(self) -> list[str]:
        """What lies in it, files and folders."""
        try:
            found = self.ask("list it", lambda: self.fs.ls(self.url, detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        own = self.fs._strip_protocol(self.url).strip("/")
        return [each.strip("/").rpartition("/")[2] for each in found if each.strip("/") != own]

    def tree(self) -> dict[str, set[str]]:
        """What lies in it and in each folder below, by URL: one question instead of many, where a store can answer it.
        fsspec's own `find` asks for each folder, and leaves out those that it could not list."""
        own = self.fs._strip_protocol(self.url).strip("/")
        held: dict[str, set[str]] = {}
        for path in self.ask("list it", lambda: self.fs.find(self.url)) if finds(self.fs) else self.walk():
            above = self.url
            for part in path.strip("/").removeprefix(own).strip("/").split("/"):
                held.setdefault(above, set()).add(part)
                above = f"{above}/{part}"
        return held

    def walk(self) -> Iterator[str]:
        """The files below it, as the store calls them, folder by folder."""
        try:
            found = self.ask("list it", lambda: self.fs.ls(self.url, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return
        for each in found:
            path = each["name"].rstrip("/")
            if each["type"] == "directory":
                yield from (self / path.rpartition("/")[2]).walk()
            else:
                yield path

    def clear(self) -> None:
        """Removes all that lies in it."""
        with suppress(FileNotFoundError):
            self.ask("remove it", lambda: self.fs.rm(self.url, recursive=True))

    def ask(self, what: str, call: Callable[[], T]) -> T:
        """A call, whose errors are two: that a thing is not there, and that the store fails."""
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception as error:  # every kind of store has kinds of errors of its own
            raise StoreError(f"{self}: cannot {what}: {brief(error)}") from error


FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
UNLINKED = getattr(os, "O_NOFOLLOW", 0)
AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened, and seen to be no file


class Beneath:
    """A name beneath a folder of a disk that others may write to, used as a Path is. Nothing is reached through a link:
    each step is taken from a folder that is open, so that nobody can change the way meanwhile."""

    pace = QUICK

    def __init__(self, root: Path, *parts: str) -> None:
        self.root, self.parts = root, parts

    def __truediv__(self, name: str) -> Beneath:
        return Beneath(self.root, *self.parts, name)

    def __str__(self) -> str:
        return str(self.root.joinpath(*self.parts))

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def parent(self) -> Beneath:
        return Beneath(self.root, *self.parts[:-1])

    @contextmanager
    def opened(self, parts: Sequence[str], make: bool = False) -> Iterator[int]:
        """A folder beneath the root."""
        handle = os.open(self.root, FOLDER)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                inner = os.open(part, FOLDER | UNLINKED, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    def read_most(self, most: int) -> bytes:
        """The bytes of a file of no more than `most`; ValueError where it has more, or is a link, a pipe, a folder."""
        with self.opened(self.parts[:-1]) as folder:
            try:
                handle = os.open(self.name, os.O_RDONLY | UNLINKED | AT_ONCE, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    raise ValueError("it is no file") from None
                raise
        told = os.fstat(handle)
        if not S_ISREG(told.st_mode):
            os.close(handle)
            raise ValueError("it is no file")
        with open(handle, "rb") as file:
            check_size(told.st_size, most)
            return file.read(most)

    def put(self, parts: Iterable[bytes | memoryview]) -> None:
        new = f".new-{self.name}"
        with self.opened(self.parts[:-1], make=True) as folder:
            remove(new, folder)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            with open(handle, "wb") as file:
                file.writelines(parts)
            try:
                os.replace(new, self.name, src_dir_fd=folder, dst_dir_fd=folder)
            except IsADirectoryError:
                remove(self.name, folder)
                os.replace(new, self.name, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self) -> None:
        """Removes it, whatever it is; of a link the link."""
        with suppress(FileNotFoundError), self.opened(self.parts[:-1]) as folder:
            remove(self.name, folder)

    clear = unlink

    def names(self) -> list[str]:
        with suppress(FileNotFoundError), self.opened(self.parts) as folder:
            return os.listdir(folder)
        return []


def remove(name: str, folder: int) -> None:
    """Removes what has a name in an open folder, if it is there, and all that lies in it."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=folder)  # which follows no link, either


def check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and {most:,} are allowed")


Where = Path | Remote
Shared = Beneath | Remote


def shared(place: Where | Beneath) -> Shared:
    """A place that others write to as well."""
    return Beneath(place) if isinstance(place, Path) else place


def brief(error: Exception) -> str:
    """An error in a line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


# ------------------------------------------------------------ from text to a place


def located(text: str | Path | Remote, setting: str) -> Path | Remote:
    """The place that a path or URL names; only a URL needs fsspec."""
    if not isinstance(text, str):
        return text
    found = SCHEME.fullmatch(check_place(text, setting))
    if found is None:
        if "://" in text:
            raise UserError(f"{setting}: {text[:200]} should be a folder or one URL, such as s3://bucket/folder.")
        return Path(text)
    scheme, rest = found[1].lower(), found[2]
    if scheme in DISK:
        if not rest.startswith("/"):
            raise UserError(f"{setting}: {text[:200]} should be file:///folder, with three slashes.")
        return Path(rest)
    if not rest.strip("/"):
        raise UserError(f"{setting}: {text[:200]} needs a name, such as {scheme}://bucket/folder.")
    return Remote(file_system(scheme, text, setting), text.rstrip("/"))


def file_system(scheme: str, url: str, setting: str) -> Any:
    """fsspec's own object for a kind of store. It remembers no listings: others write there, too."""
    try:
        import fsspec
        from fsspec.dircache import DirCache
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise UserError(f"{setting}: {scheme}:// needs the package fsspec. Try: pip install fsspec") from error
    if scheme not in known_implementations:
        usual = ", ".join(f"{name}://" for name in USUAL)
        accepted = f"a folder, {usual}, and what else fsspec knows"
        raise UserError(
            f"{setting}: {scheme}:// is not known. Accepted: {accepted}.{nearest(scheme, known_implementations)}"
        )
    try:
        fs, _ = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        remedy = "Try: pip install 'ganglion[s3]'" if scheme in ("s3", "s3a") else brief(error)
        raise UserError(f"{setting}: {scheme}:// needs a package that is not installed. {remedy}") from error
    except Exception as error:
        raise UserError(f"{setting}: {url[:200]} cannot be opened: {brief(error)}") from error
    fs.dircache = DirCache(use_listings_cache=False)
    return fs


def finds(fs: Any) -> bool:
    """Whether a kind of store has a `find` of its own."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    usual = AbstractFileSystem.find, AsyncFileSystem._find, None
    return type(fs).find not in usual or getattr(type(fs), "_find", None) not in usual


def reached(place: Path | Remote, setting: str) -> Path | Remote:
    """The place, which answers."""
    try:
        names(place)
    except OSError as error:
        raise UserError(f"{setting}: {error.strerror or brief(error)} ({place}).") from error
    return place


# ------------------------------------------------------------ the same for all


def names(folder: Where | Beneath) -> list[str]:
    """What lies in a folder, without what is being written; nothing where there is no folder."""
    place = shared(folder)
    return [name for name in place.names() if isinstance(place, Remote) or not name.startswith(".")]


def put(path: Where | Beneath, data: bytes) -> None:
    """Writes a file that readers see whole or not at all; it need not outlive a loss of power."""
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path = Beneath(path.parent, path.name)
    path.put([data])


def drop(path: Where | Beneath) -> None:
    """Removes a file, if it is there."""
    if isinstance(path, Path):
        path.unlink(missing_ok=True)
    else:
        path.unlink()


def pace(folder: Where | Beneath) -> float:
    """Seconds between two looks, for whoever waits for something to appear."""
    return QUICK if isinstance(folder, Path) else folder.pace
