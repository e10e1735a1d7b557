"""Memory shared by processes of one machine: items in slots that are used again, and the newest weights."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ganglion.core import Weights
from ganglion.errors import UserError
from ganglion.fleet.wire import Bytes, pack_weights, unpack_weights

PAGE = 4096
HEAD = 64  # bytes before the weights
SPARE = 1 << 16  # bytes that a header may grow by
GENERATION, STORED, SIZE, VERSION = 0, 1, 3, 5  # in the head: the newest; then of each half, two of each


def map_file(path: Path, size: int = 0) -> Bytes:
    """A file as bytes; made, of `size` bytes, where a size is given."""
    if size:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as made:
            try:
                os.posix_fallocate(made.fileno(), 0, size)  # now, for a page that is missing later ends the process
            except OSError as error:
                told = f"no room for {size:,} bytes in {path.parent.parent}: {error.strerror}"
                raise UserError(f"fleet.shared: {told}. Make more, or set fleet.shared=false.") from error
            return np.frombuffer(mmap.mmap(made.fileno(), size), np.uint8)
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


class SegmentName(NamedTuple):
    """Where an item lies."""

    file: str
    start: int
    size: int


class ItemMemory:
    """An explorer's own memory for items, `count` of them at a time: a slot is used again once its item was taken."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self.folder, self.name, self.count = folder, name, count
        self.memory: Bytes | None = None
        self.size = self.used = self.files = 0
        self.slip = SegmentName("", 0, 0)

    def room(self, size: int) -> Bytes:
        """Memory for the next item; larger slots, in another file, where it does not fit."""
        if self.memory is None or size > self.size:
            self.files += 1
            self.size = -(-size * 5 // 4 // PAGE) * PAGE
            self.memory = map_file(self.folder / f"{self.name}-{self.files}", self.size * self.count)
        start = self.used % self.count * self.size
        self.used += 1
        self.slip = SegmentName(f"{self.name}-{self.files}", start, size)
        return self.memory[start : start + size]


class Reader:
    """The learner's view of what explorers wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Bytes] = {}

    def read(self, slip: SegmentName) -> Bytes:
        if slip.file not in self.files:
            self.files[slip.file] = map_file(self.folder / slip.file)
        return self.files[slip.file][slip.start : slip.start + slip.size]

    def forget(self, name: str) -> None:
        """Removes the memory of an explorer that has ended."""
        for path in self.folder.glob(f"{name}-*"):
            self.files.pop(path.name, None)
            with suppress(OSError):
                path.unlink()


class SharedBoard:
    """The newest weights, for readers that never wait: two halves, written in turn, each with its generation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory: Bytes | None = None

    def head(self, memory: Bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return memory[:HEAD].view(np.int64)

    def half(self, memory: Bytes, which: int) -> Bytes:
        size = (len(memory) - HEAD) // 2
        return memory[HEAD + which * size : HEAD + (which + 1) * size]

    def publish(self, weights: Weights) -> None:
        parcel = pack_weights(weights)
        if self.memory is None:
            half = -(-(len(parcel) + SPARE) // PAGE) * PAGE
            made = self.path.with_suffix(".new")
            self.memory = map_file(made, HEAD + 2 * half)
            made.rename(self.path)  # readers find it whole
        head = self.head(self.memory)
        generation = int(head[GENERATION]) + 1
        which = generation % 2
        head[STORED + which] = -1
        self.half(self.memory, which)[: len(parcel)] = parcel
        head[SIZE + which], head[VERSION + which] = len(parcel), weights.version
        head[STORED + which] = generation
        head[GENERATION] = generation

    def latest(self, player: str, newer_than: int) -> Weights | None:
        if self.memory is None:
            if not self.path.exists():
                return None
            self.memory = map_file(self.path)
        head = self.head(self.memory)
        while generation := int(head[GENERATION]):
            which = generation % 2
            if head[VERSION + which] <= newer_than and head[STORED + which] == generation:
                return None
            copy = self.half(self.memory, which)[: int(head[SIZE + which])].copy()
            if head[STORED + which] == generation:  # not written over while it was copied
                return unpack_weights(copy)
        return None
