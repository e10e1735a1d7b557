"""Folders by URL: a Path where there is a disk; where there is only a store (S3, memory, ...), what is used as one."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
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


Where = Path | Remote


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


# ------------------------------------------------------------ the same for both


def names(folder: Path | Remote) -> list[str]:
    """What lies in a folder, without what is being written; nothing where there is no folder."""
    if isinstance(folder, Remote):
        return folder.names()
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []


def put(path: Path | Remote, data: bytes) -> None:
    """Writes a file that readers see whole or not at all; it need not outlive a loss of power."""
    if isinstance(path, Remote):
        path.put([data])
        return
    new = path.with_name(f".new-{path.name}")
    try:
        new.write_bytes(data)
    except FileNotFoundError:
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(data)
    os.replace(new, path)


def drop(path: Path | Remote) -> None:
    """Removes a file, if it is there."""
    if isinstance(path, Remote):
        path.unlink()
    else:
        path.unlink(missing_ok=True)


def pace(folder: Path | Remote) -> float:
    """Seconds between two looks, for whoever waits for something to appear."""
    return folder.pace if isinstance(folder, Remote) else QUICK
