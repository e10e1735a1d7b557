"""metrics.jsonl: one JSON object per event.

    {"kind": "record", "env_steps": 1000, "opt_steps": 90, "episodes": 41, "seconds": 0.61, "episode/return": 23.5, ...}

nan, inf and -inf, which JSON lacks, are the strings "nan", "inf" and "-inf"; `read` gives floats back.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
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
    Lines for which the disk has no room wait until it has."""

    def __init__(self, path: Path, offset: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
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
        """Writes what waits, whole lines or nothing."""
        end, data = self.file.seek(0, os.SEEK_END), b"".join(self.waiting)
        try:
            while data:
                data = data[self.file.write(data) or 0 :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.file.truncate(end)
            if len(self.waiting) == 1:
                log.warning("%s: the disk is full. Training goes on; metrics wait for room.", self.file.name)
            return
        self.waiting = []

    def offset(self) -> int:
        """Bytes written so far, all of them on the disk: what a checkpoint remembers."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        if self.waiting:
            self.put()  # the last chance
        if self.waiting:
            log.warning("%s: %d lines found no room and are lost", self.file.name, len(self.waiting))
        self.file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a metrics file, without a last line that was cut off."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield {name: _number(name, value) for name, value in json.loads(line).items()}


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
