"""metrics.jsonl: one JSON object per event.

    {"kind": "record", "env_steps": 1000, "opt_steps": 90, "episodes": 41, "seconds": 0.61, "episode/return": 23.5, ...}

nan, inf and -inf, which JSON lacks, are the strings "nan", "inf" and "-inf"; `read` gives floats back.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from math import isfinite
from pathlib import Path
from typing import Any

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
from ganglion.record.atomic_write import open_plain, write_file
from ganglion.record.writers import RunInfo

FILE = "metrics.jsonl"

log = logging.getLogger(__name__)


@register("writer", "jsonl")
class JsonlConfig(WriterConfig):
    """metrics.jsonl in the run's folder, one JSON object per line."""

    def build(self, run: RunInfo) -> Jsonl:
        return Jsonl(run.folder / FILE, run.offset)


class Jsonl:
    """Appends records and evaluations, each line flushed. A resumed run first cuts back what its checkpoint had not
    seen; checkpoints themselves are not written down, so that the file is the same however often a run was stopped.
    Lines that cannot be written, for want of room or otherwise, wait until they can."""

    def __init__(self, path: Path, offset: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_nlink > 1:  # a copy made of links: the other stays as it is
            write_file(path, [path.read_bytes()])
        self.path, self.file = path, opened(path)
        self.waiting: list[bytes] = []
        self.file.truncate(_whole_lines(path, offset or 0))
        self.file.seek(0, os.SEEK_END)

    def write(self, log: LogData) -> None:
        if log.kind == "save":
            return
        at = log.at._asdict()
        del at["fraction"]
        line = {"kind": log.kind, **at, **log.metrics}
        text = json.dumps({name: _plain(value) for name, value in line.items()}, allow_nan=False)
        self.waiting.append(text.encode() + b"\n")
        self.put()

    def put(self) -> None:
        """Writes what waits, whole lines or nothing; into a new file where the old one was taken away."""
        try:
            self.follow()
            end, data = self.file.seek(0, os.SEEK_END), b"".join(self.waiting)
            try:
                while data:
                    data = data[self.file.write(data) or 0 :]
            except OSError:
                self.file.truncate(end)
                raise
        except OSError as error:
            if len(self.waiting) == 1:
                why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or error
                log.warning("%s: %s. Training goes on; metrics wait.", self.path, why)
            return
        self.waiting = []

    def follow(self) -> None:
        """Goes on at the path where the run's folder was removed, or moved away, and made anew."""
        try:
            there = os.path.samestat(os.lstat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            there = False
        if not there:
            new = opened(self.path)
            self.file.close()
            self.file = new

    def offset(self) -> int:
        """Bytes written so far, all of them on the disk: what a checkpoint remembers."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        if self.waiting:
            self.put()  # the last chance
        if self.waiting:
            log.warning("%s: %d lines could not be written and are lost", self.path, len(self.waiting))
        self.file.close()


def opened(path: Path) -> FileIO:
    return FileIO(open_plain(path, os.O_RDWR | os.O_APPEND), "a+b")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a metrics file, without a last line that was cut off."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield numbers(json.loads(line))


def numbers(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event as it was written, its numbers as floats again."""
    return {name: _number(name, value) for name, value in event.items()}


def _plain(value: Any) -> Any:
    return value if not isinstance(value, float) or isfinite(value) else str(float(value))


def _number(name: str, value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") and name != "kind" else value


def _whole_lines(path: Path, offset: int) -> int:
    """Where to cut: `offset`, or the last whole line of a file that has lost what came after."""
    size = path.stat().st_size
    if size >= offset:
        return offset
    log.warning("%s has %d bytes where the checkpoint knows of %d: earlier metrics are lost", path, size, offset)
    return path.read_bytes().rfind(b"\n") + 1
