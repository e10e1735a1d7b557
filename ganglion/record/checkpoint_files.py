"""How checkpoints come into being whole, and go: by renaming folders on a disk, by their manifests in a store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ganglion.errors import UserError
from ganglion.record import atomic_write, manifest
from ganglion.record.stores import Remote, Where, names
from ganglion.record.tensor_file import digest

MANIFEST, STATE, CHUNKS = "manifest.json", "state.safetensors", "chunks"
GENERATION = re.compile(r"manifest(?:\.(\d{1,9}))?\.json")
MARK = re.compile(r"whole\.(\d{1,9})")
CONTENT = re.compile(r"state-[0-9a-f]{32}\.safetensors")
COUNTED = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")  # without updates: of an earlier version
PIECES = 3  # files of a checkpoint: tensors, manifest, mark
Parts = Iterable[bytes | memoryview]
Counts = tuple[int, int]  # env steps, updates


def counted(name: str) -> Counts | None:
    """What a checkpoint was saved at, by its name; None where it is no such name."""
    found = COUNTED.fullmatch(name)
    return (int(found[1]), int(found[2] or 0)) if found else None


class CheckpointFiles(Protocol):
    """The operations that a save is made of; a process may die between any two of them, or in the middle of one."""

    def state_name(self, checksum: str) -> str:
        """The file of a checkpoint's tensors."""
        ...

    def recover(self, folder: Any) -> None:
        """Finishes or undoes what a crash left in the middle."""
        ...

    def forget(self) -> None:
        """A save is over: others may write, too."""
        ...

    def ready(self, folder: Any) -> None: ...

    def free(self, folder: Any) -> int | None:
        """Bytes left; None where nobody knows."""
        ...

    def write_chunk(self, path: Any, parts: Sequence[bytes | memoryview]) -> None: ...

    def settle(self, folder: Any) -> None:
        """What was written into a folder so far stays, whatever happens."""
        ...

    def place(self, target: Any, state: tuple[str, Parts], text: bytes) -> None:
        """Makes a checkpoint of a state's file and a manifest, in place of the one that had its name."""
        ...

    def found(self, folder: Any) -> Iterable[tuple[str, Any]]:
        """The names of what may be checkpoints, and where each is."""
        ...

    def manifest(self, target: Any) -> Any:
        """The manifest of a checkpoint; a file that is not there where there is no checkpoint."""
        ...

    def names(self, folder: Any) -> list[str]:
        """What lies in a folder, without what is being written."""
        ...

    def holds(self, path: Any) -> bool:
        """Whether a file is there."""
        ...

    def drop(self, path: Any) -> None:
        """Removes a file."""
        ...

    def retire(self, targets: Sequence[Any]) -> None:
        """These are no checkpoints any more."""
        ...


class OnDisk:
    """A folder that bears its name is whole: it was written under another one, synced and renamed."""

    def state_name(self, checksum: str) -> str:
        return STATE

    def recover(self, folder: Path) -> None:
        for each in (folder, folder / CHUNKS):
            atomic_write.recover(each)

    def forget(self) -> None:
        """Nothing was remembered."""

    def ready(self, folder: Path) -> None:
        new = not folder.exists()
        atomic_write.disk.make(folder / CHUNKS)
        atomic_write.disk.sync(folder)
        if new:
            atomic_write.disk.sync(folder.parent)  # else a loss of power may take all of it

    def free(self, folder: Path) -> int | None:
        return atomic_write.disk.free(folder)

    def write_chunk(self, path: Path, parts: Sequence[bytes | memoryview]) -> None:
        atomic_write.write_file(path, parts)

    def settle(self, folder: Path) -> None:
        atomic_write.disk.sync(folder)

    def place(self, target: Path, state: tuple[str, Parts], text: bytes) -> None:
        new = target.with_name(f".new-{target.name}")
        atomic_write.disk.make(new)
        atomic_write.disk.write(new / state[0], state[1])
        atomic_write.disk.write(new / MANIFEST, [text])
        atomic_write.place_folder(new, target)

    def found(self, folder: Path) -> Iterable[tuple[str, Path]]:
        found = [path.name.removeprefix(".old-") for path in folder.glob("*")] if folder.exists() else []
        return [(name, folder / name) for name in set(found) if name.strip(".")]

    def manifest(self, target: Path) -> Path:
        return atomic_write.find_folder(target) / MANIFEST

    def names(self, folder: Path) -> list[str]:
        return names(folder)

    def holds(self, path: Path) -> bool:
        return path.exists()

    def drop(self, path: Path) -> None:
        atomic_write.disk.drop(path)

    def retire(self, targets: Sequence[Path]) -> None:
        for target in targets:
            atomic_write.disk.move(target, target.with_name(f".gone-{target.name}"))
        if targets:
            atomic_write.disk.sync(targets[0].parent)  # before any chunk goes


class InStore:
    """A checkpoint is there when its mark is: an empty file, which is put last and cannot be half-written. All else is
    named so that nothing is ever written over: tensors by content, manifests by numbers. The highest mark counts."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] | None = None  # what is there, during a save: every look costs

    def state_name(self, checksum: str) -> str:
        return f"state-{checksum}.safetensors"

    def recover(self, folder: Remote) -> None:
        self.seen = folder.tree() if self.seen is None else self.seen
        for name, target in self.found(folder):
            if counted(name) or name == "best":
                self.tidy(target)

    def forget(self) -> None:
        self.seen = None

    def names(self, folder: Remote) -> list[str]:
        return folder.names() if self.seen is None else sorted(self.seen.get(folder.url, ()))

    def holds(self, path: Remote) -> bool:
        return path.exists() if self.seen is None else path.name in self.seen.get(path.parent.url, ())

    def put(self, path: Remote, parts: Parts) -> None:
        path.put(parts)
        if self.seen is not None:
            self.seen.setdefault(path.parent.url, set()).add(path.name)
            self.seen.setdefault(path.parent.parent.url, set()).add(path.parent.name)

    def drop(self, path: Remote) -> None:
        path.unlink()
        if self.seen is not None:
            self.seen.get(path.parent.url, set()).discard(path.name)

    def ready(self, folder: Remote) -> None:
        """Folders need not be made."""

    def free(self, folder: Remote) -> int | None:
        return None

    def write_chunk(self, path: Remote, parts: Sequence[bytes | memoryview]) -> None:
        own = path.name.removesuffix(".safetensors").removeprefix("state-")
        if self.holds(path) and digest(path.read_bytes()) == own:
            return  # others may depend on it
        self.put(path, parts)

    def settle(self, folder: Remote) -> None:
        """What was put stays."""

    def place(self, target: Remote, state: tuple[str, Parts], text: bytes) -> None:
        before = self.names(target)
        number = max([*numbers(before, MARK), *numbers(before, GENERATION)], default=-1) + 1
        self.write_chunk(target / state[0], list(state[1]))
        self.put(target / generation_name(number), [text])
        self.put(target / mark_name(number), [])
        if before:
            with suppress(OSError):  # `recover` tries again
                self.tidy(target)

    def found(self, folder: Remote) -> Iterable[tuple[str, Remote]]:
        return [(name, folder / name) for name in self.names(folder)]

    def manifest(self, target: Remote) -> Remote:
        marks = numbers(self.names(target), MARK)
        return target / (generation_name(max(marks)) if marks else mark_name(0))

    def retire(self, targets: Sequence[Remote]) -> None:
        for target in targets:
            for number in sorted(numbers(self.names(target), MARK)):  # the oldest first: none comes back to life
                self.drop(target / mark_name(number))
            self.tidy(target)

    def tidy(self, target: Remote) -> None:
        """Removes files of ours that the manifest in force does not speak of; none, where it cannot be read."""
        held = self.names(target)
        ours = {name for name in held if any(kind.fullmatch(name) for kind in (MARK, GENERATION, CONTENT))}
        marks = numbers(held, MARK)
        if marks and len(ours) == PIECES:
            return
        used = set()
        if marks:
            name = generation_name(max(marks))
            try:
                used = {name, mark_name(max(marks)), *manifest.read(target / name)["files"]}
            except UserError:
                return
        for name in sorted(ours - used):
            self.drop(target / name)


def numbers(held: Iterable[str], kind: re.Pattern[str]) -> list[int]:
    return [int(fit[1] or 0) for fit in filter(None, map(kind.fullmatch, held))]


def generation_name(number: int) -> str:
    return f"manifest.{number}.json" if number else MANIFEST


def mark_name(number: int) -> str:
    return f"whole.{number}"


def keeper(folder: Where) -> CheckpointFiles:
    return InStore() if isinstance(folder, Remote) else OnDisk()
