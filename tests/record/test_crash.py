"""Saves that are cut off between any two file operations, in the middle of a write, or by a loss of power."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ganglion.core import State
from ganglion.errors import UserError
from ganglion.record import atomic_write
from ganglion.record.checkpoint import CHUNKS, Checkpoints, load
from tests.record.states import chunks, example, same


class Crash(BaseException):
    """The process is gone: nothing that would clean up may run."""


class Failing(atomic_write.Disk):
    """Dies at the n-th operation, half-way into it where it is a write; after that every operation dies."""

    def __init__(self, at: int, torn: bool) -> None:
        self.at, self.torn, self.count = at, torn, 0

    def turn(self) -> bool:
        """Whether this operation is the one to fail."""
        self.count += 1
        if self.count > self.at or (self.count == self.at and not self.torn):
            raise Crash
        return self.count == self.at

    def write(self, path, parts) -> None:
        data = b"".join(parts)
        torn = self.turn()
        path.write_bytes(data[: len(data) // 2] if torn else data)
        if torn:
            raise Crash

    def move(self, old, new) -> None:
        self.turn()
        super().move(old, new)

    def make(self, folder) -> None:
        self.turn()
        super().make(folder)

    def drop(self, path) -> None:
        self.turn()
        super().drop(path)

    def sync(self, folder) -> None:
        self.turn()


class PowerLoss(Failing):
    """Also forgets, in some folders, every change of names since their last sync."""

    def __init__(self, at: int, forgets: Callable[[Path], bool], grave: Path) -> None:
        super().__init__(at, torn=False)
        self.forgets, self.grave = forgets, grave
        self.changes: list[tuple[str, Path, Path]] = []  # what happened, to what, and where the old one lies
        grave.mkdir()

    def bury(self, path: Path) -> Path:
        kept = self.grave / str(len(list(self.grave.iterdir())))
        os.replace(path, kept)
        return kept

    def write(self, path, parts) -> None:
        new = not path.exists()
        super().write(path, parts)
        if new:
            self.changes.append(("new", path, path))

    def make(self, folder) -> None:
        new = not folder.exists()
        super().make(folder)
        if new:
            self.changes.append(("new", folder, folder))

    def drop(self, path) -> None:
        self.turn()
        self.changes.append(("gone", path, self.bury(path)))

    def move(self, old, new) -> None:
        self.turn()
        if new.exists():
            kept = self.bury(new)
            self.changes = [change for change in self.changes if change[1] != old] + [("gone", new, kept)]
        else:
            self.changes = [*self.renamed(old, new), ("moved", new, old)]
        os.replace(old, new)

    def renamed(self, old: Path, new: Path) -> list[tuple[str, Path, Path]]:
        """The changes so far, as they are called once a folder has another name."""
        return [
            (what, new / path.relative_to(old) if path.is_relative_to(old) else path, kept)
            for what, path, kept in self.changes
        ]

    def sync(self, folder) -> None:
        self.turn()
        self.changes = [change for change in self.changes if change[1].parent != folder]

    def lose(self) -> None:
        while self.changes:
            what, path, kept = self.changes.pop()
            if not self.forgets(path.parent):
                continue
            if what == "new":
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            elif what == "gone":
                os.replace(kept, path)
            else:
                os.replace(path, kept)
                self.changes = self.renamed(path, kept)


# ------------------------------------------------------------ what is saved when the crash comes

OLD, NEW = example(2, pushed=25), example(3, pushed=37)
SAME_ROWS = example(4, pushed=25)
BEST_OLD, BEST_NEW = OLD._replace(rings={}), NEW._replace(rings={})


def before(folder: Path) -> None:
    store = Checkpoints(folder, keep=2)
    store.save(example(1, pushed=12), 100, {})
    store.save(OLD, 200, {})
    store.save_best(OLD, 200, {})


def first(folder: Path) -> None:
    Checkpoints(folder, keep=2).save(NEW, 300, {})


def next_one(folder: Path) -> None:
    store = Checkpoints(folder, keep=2)
    newest = store.newest()
    assert newest is not None
    store.load(newest)
    store.save(NEW, 300, {})


def same_step(folder: Path) -> None:
    store = Checkpoints(folder, keep=2)
    store.load(folder / "200-0")
    store.save(NEW, 200, {})


def same_rows(folder: Path) -> None:
    """By a process that did not load: it writes chunks that are already there and in use."""
    Checkpoints(folder, keep=2).save(SAME_ROWS, 300, {})


def best(folder: Path) -> None:
    Checkpoints(folder, keep=2).save_best(NEW, 300, {})


def newest_state(folder: Path) -> State | None:
    newest = Checkpoints(folder, keep=2).newest()
    return None if newest is None else load(newest)[0]


def best_state(folder: Path) -> State | None:
    return load(folder / "best")[0]


Case = tuple[Callable[[Path], None], Callable[[Path], State | None], list[State | None]]
CASES: dict[str, Case] = {
    "first": (first, newest_state, [None, NEW]),
    "next": (next_one, newest_state, [OLD, NEW]),
    "same step": (same_step, newest_state, [OLD, NEW]),
    "same rows": (same_rows, newest_state, [OLD, SAME_ROWS]),
    "best": (best, best_state, [BEST_OLD, BEST_NEW]),
}


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    save, read, allowed = CASES[request.param]
    if request.param != "first":
        before(tmp_path / "before")
    return save, read, allowed, tmp_path


def crash_at(case, at: int, disk: Failing, monkeypatch) -> tuple[Path, bool]:
    """A copy of the folder in which the save died at its n-th operation, and whether it lived."""
    save, _, _, root = case
    folder = root / str(at) / "checkpoints"
    shutil.copytree(root / "before", folder) if (root / "before").exists() else folder.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, "disk", disk)
        try:
            save(folder)
        except Crash:
            return folder, False
    return folder, True


def which(state: State | None, allowed: list[State | None]) -> int:
    """The one of the allowed states that this is."""
    found = [i for i, each in enumerate(allowed) if (each is state is None) or (each and state and same(each, state))]
    assert found, "neither the old nor the new state"
    return found[0]


def save_later(folder: Any) -> Checkpoints:
    """What the next process does: goes on from what is there, and saves."""
    store = Checkpoints(folder, keep=1)
    newest = store.newest()
    if newest is not None:
        store.load(newest)
    last = example(9, pushed=44)
    assert same(load(store.save(last, 900, {}))[0], last)
    return store


def check_after(case, folder: Path) -> int:
    """Old or new loads, nothing in between; a later save works and leaves nothing behind. Which one loaded."""
    _, read, allowed, _ = case
    outcome = which(read(folder), allowed)
    for path in folder.glob("[0-9]*"):
        load(path)
    store = save_later(folder)
    assert {path.name for path in folder.iterdir()} <= {"900-0", "best", CHUNKS}
    assert chunks(folder) == {chunk.file for chunk in store.kept.values()}
    return outcome


def every_point(case, monkeypatch, make: Callable[[int], Failing]) -> list[int]:
    outcomes = []
    for at in range(1, 200):
        disk = make(at)
        folder, lived = crash_at(case, at, disk, monkeypatch)
        if lived:
            return outcomes
        if isinstance(disk, PowerLoss):
            disk.lose()
        outcomes.append(check_after(case, folder))
        shutil.rmtree(folder.parent)
    raise AssertionError("the save never ends")


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_leaves_the_old_or_the_new_state(case, torn, monkeypatch):
    outcomes = every_point(case, monkeypatch, lambda at: Failing(at, torn))
    assert outcomes == sorted(outcomes) and len(outcomes) >= 7
    assert outcomes[0] == 0 and (outcomes[-1] == 1 or CASES["first"][0] is case[0])


@pytest.mark.parametrize("what", ["all", "checkpoints", "chunks"])
def test_a_loss_of_power_leaves_the_old_or_the_new_state(case, what, monkeypatch):
    def make(at: int) -> PowerLoss:
        grave = case[3] / f"grave-{at}"
        return PowerLoss(at, lambda folder: what in ("all", folder.name), grave)

    assert every_point(case, monkeypatch, make)[0] == 0


def test_the_first_save_leaves_every_name_on_the_disk(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(atomic_write.disk, "sync", synced.append)
    folder = tmp_path / "run" / "checkpoints"
    first(folder)
    assert set(synced) >= {folder.parent, folder, folder / CHUNKS}


class Full(atomic_write.Disk):
    """Has no room left at the n-th operation."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def check(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, path, parts) -> None:
        data = b"".join(parts)
        path.write_bytes(data[: len(data) // 2])
        self.check()
        path.write_bytes(data)

    def move(self, old, new) -> None:
        self.check()
        super().move(old, new)

    def make(self, folder) -> None:
        self.check()
        super().make(folder)

    def sync(self, folder) -> None:
        self.check()


def test_a_full_disk_leaves_what_was_there_and_no_temporaries(case, monkeypatch):
    save, read, allowed, root = case
    refused = 0
    for at in range(1, 40):
        folder = root / str(at) / "checkpoints"
        shutil.copytree(root / "before", folder) if (root / "before").exists() else folder.parent.mkdir()
        was = {path.relative_to(folder) for path in folder.rglob("*")}
        disk = Full(at)
        with monkeypatch.context() as patch:
            patch.setattr(atomic_write, "disk", disk)
            try:
                save(folder)
            except UserError as error:
                refused += 1
                assert "disk is full" in str(error)
        now = {path.relative_to(folder) for path in folder.rglob("*")}
        assert not [path for path in now if path.name.startswith((".new", ".old"))], f"temporaries at {at}"
        state = read(folder)
        if which(state, allowed) == 0 and state is not None:
            assert now == was
        if disk.count < at:
            break
    assert refused >= 5
