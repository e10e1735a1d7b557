"""Checkpoints where nothing can be renamed: whole by their manifests, in memory and in a real S3 server's bucket."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from fsspec import AbstractFileSystem

from ganglion.core import State
from ganglion.errors import DiskError, UserError
from ganglion.record import checkpoint, lock, mirror
from ganglion.record.checkpoint import Checkpoints, load, read_meta
from ganglion.record.checkpoint_files import CHUNKS, MANIFEST
from ganglion.record.lock import held
from ganglion.record.stores import Remote, StoreError, located, names
from tests.record.states import example, same
from tests.record.test_crash import BEST_NEW, BEST_OLD, CASES, NEW, OLD, SAME_ROWS, Crash, before, save_later, which


def memory() -> Remote:
    place = located(f"memory://test-{secrets.token_hex(8)}/checkpoints", "test")
    assert isinstance(place, Remote)
    return place


def files(folder: Remote) -> set[str]:
    root = folder.fs._strip_protocol(folder.url)
    return {path.removeprefix(root + "/") for path in folder.fs.find(folder.url)}


# ------------------------------------------------------------ as on a disk


def test_what_goes_in_comes_out_and_blocks_are_shared() -> None:
    folder = memory()
    store = Checkpoints(folder, keep=2)
    for step in range(1, 6):
        path = store.save(example(step, pushed=step * 9), step, {"n": step})
        assert same(load(path)[0], example(step, pushed=step * 9)) and read_meta(path) == {"n": step}
    assert {name.partition("/")[0] for name in files(folder)} == {"4-0", "5-0", CHUNKS}
    fresh = Checkpoints(folder, keep=2)
    newest = fresh.newest()
    assert newest == folder / "5-0" and fresh.best() is None
    fresh.load(newest)
    puts: list[str] = []
    original = Remote.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remote, "put", lambda self, parts: (puts.append(self.url), original(self, parts))[1])
        fresh.save(example(9, pushed=46), 9, {})
    assert sum(f"/{CHUNKS}/" in url for url in puts) == 1  # of three blocks
    assert puts[-1].endswith("/9-0/whole.0")  # the last thing that is written


@pytest.mark.parametrize(("name", "told"), [(MANIFEST, r"manifest\.json"), ("whole.0", r"whole\.0")])
def test_a_checkpoint_without_its_manifest_does_not_exist(name: str, told: str) -> None:
    folder = memory()
    store = Checkpoints(folder, keep=3)
    store.save(OLD, 100, {})
    store.save(NEW, 200, {})
    (folder / "200-0" / name).unlink()
    assert Checkpoints(folder, keep=3).newest() == folder / "100-0"
    with pytest.raises(UserError, match=rf"200-0 is not a checkpoint: it has no {told}"):
        load(folder / "200-0")


def test_damaged_files_are_refused_by_name() -> None:
    folder = memory()
    Checkpoints(folder, keep=1).save(OLD, 100, {})
    for name in files(folder) - {"100-0/whole.0"}:
        file = folder / name
        whole = file.read_bytes()
        for content in (whole[:-1], b"", whole[:9] + bytes([whole[9] ^ 1]) + whole[10:], whole + b"\0"):
            file.put([content])
            with pytest.raises(UserError) as caught:
                load(folder / "100-0")
            assert name.rpartition("/")[2] in str(caught.value)
        file.unlink()
        with pytest.raises(UserError, match=r"no manifest\.json|is missing"):
            load(folder / "100-0")
        file.put([whole])
    assert same(load(folder / "100-0")[0], OLD)


@pytest.mark.parametrize("disk", [False, True])
def test_a_checkpoint_that_is_replaced_while_it_is_read(
    disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run that writes it: a reader in another process is given the new one, and not told of damage."""
    store = Checkpoints(tmp_path if disk else memory(), keep=2)
    store.save_best(OLD, 100, {})
    real, turns = checkpoint.read_into, [lambda: store.save_best(NEW, 200, {"new": True})]

    def read_into(*args: Any) -> None:
        if turns:
            turns.pop()()
        real(*args)

    monkeypatch.setattr(checkpoint, "read_into", read_into)
    state, meta = load(store.folder / "best")
    assert same(state, BEST_NEW) and meta == {"new": True}


def test_foreign_files_are_left_alone() -> None:
    folder = memory()
    store = Checkpoints(folder, keep=1)
    store.save(OLD, 1, {})
    foreign = [
        folder / "notes.txt",
        folder / CHUNKS / "mine.safetensors",
        folder / "99-0" / "x",
        folder / "1-0" / "mine",
    ]
    for path in foreign:
        path.put([b"mine"])
    store.save(NEW, 2, {})
    assert store.newest() == folder / "2-0" and all(path.read_bytes() == b"mine" for path in foreign)


# ------------------------------------------------------------ cut off between any two operations, or in the middle


class Failing:
    """A store that dies at the n-th change, half-way into it where that is a write; after that every change dies."""

    def __init__(self, at: int, torn: bool) -> None:
        self.at, self.torn, self.count = at, torn, 0
        self.real_put, self.real_unlink = Remote.put, Remote.unlink

    def turn(self) -> bool:
        self.count += 1
        if self.count > self.at or (self.count == self.at and not self.torn):
            raise Crash
        return self.count == self.at

    def put(self, path: Remote, parts: Iterable[Any]) -> None:
        data, torn = b"".join(parts), self.turn()
        self.real_put(path, [data[: len(data) // 2] if torn else data])
        if torn:
            raise Crash

    def unlink(self, path: Remote) -> None:
        self.turn()
        self.real_unlink(path)


def newest_state(folder: Remote) -> State | None:
    newest = Checkpoints(folder, keep=2).newest()
    return None if newest is None else load(newest)[0]


def best_state(folder: Remote) -> State | None:
    return load(folder / "best")[0]


READ: dict[str, tuple[Callable[[Remote], State | None], list[State | None]]] = {
    "first": (newest_state, [None, NEW]),
    "next": (newest_state, [OLD, NEW]),
    "same step": (newest_state, [OLD, NEW]),
    "same rows": (newest_state, [OLD, SAME_ROWS]),
    "best": (best_state, [BEST_OLD, BEST_NEW]),
}


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_crash_leaves_the_old_or_the_new_state(case: str, torn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[int] = []
    for at in range(1, 100):
        folder = memory()
        if case != "first":
            before(folder)  # type: ignore[arg-type]
        lived = crash(CASES[case][0], folder, Failing(at, torn), monkeypatch)
        if lived:
            break
        outcomes.append(check_after(folder, *READ[case]))
    else:
        raise AssertionError("the save never ends")
    assert outcomes == sorted(outcomes) and outcomes[0] == 0 and len(outcomes) >= 2


def crash(save: Callable[[Any], None], folder: Remote, store: Failing, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(Remote, "put", lambda self, parts: store.put(self, parts))
        patch.setattr(Remote, "unlink", lambda self: store.unlink(self))
        try:
            save(folder)
        except Crash:
            return False
    return True


def check_after(folder: Remote, read: Callable[[Remote], State | None], allowed: list[State | None]) -> int:
    """Old or new loads, nothing in between; a later save works and leaves nothing behind. Which one loaded."""
    outcome, store = which(read(folder), allowed), save_later(folder)
    held_now = files(folder)
    assert {name.partition("/")[0] for name in held_now} <= {"900-0", "best", CHUNKS}
    assert {name for name in held_now if name.startswith(CHUNKS)} == {
        f"{CHUNKS}/{chunk.file}" for chunk in store.kept.values()
    }
    assert all(len(names(folder / each)) in (0, 3) for each in ("900-0", "best"))
    return outcome


def test_a_store_that_refuses_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = memory()
    Checkpoints(folder, keep=2).save(OLD, 100, {})
    monkeypatch.setattr(folder.fs, "pipe_file", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("Access Denied")))
    with pytest.raises(DiskError, match=r"cannot write it: Access Denied\. The checkpoint was not written"):
        Checkpoints(folder, keep=2).save(NEW, 200, {})
    assert same(newest_state(folder) or State(), OLD)


def test_a_store_that_does_not_answer_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that took it for one would begin anew, and remove what is there."""
    folder = memory()
    store = Checkpoints(folder, keep=2)
    store.save(OLD, 100, {})
    assert store.newest() == folder / "100-0" and not (folder / "100-0").exists() and not (folder / "none").exists()
    # fsspec's isfile, as most stores have it, and a look that fails.
    monkeypatch.setattr(folder.fs, "isfile", lambda path: AbstractFileSystem.isfile(folder.fs, path))
    monkeypatch.setattr(folder.fs, "info", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("Slow Down")))
    with pytest.raises(StoreError, match="cannot look at it: Slow Down"):
        store.newest()


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that its checkpoint refers to would be taken for left over."""
    folder = memory()
    store = Checkpoints(folder, keep=3)
    store.save(OLD, 100, {})
    store.save(NEW, 200, {})
    real = folder.fs.ls

    def ls(path: str, **options: Any) -> Any:
        if path.endswith("/100-0"):
            raise OSError("Slow Down")
        return real(path, **options)

    monkeypatch.setattr(type(folder.fs), "find", AbstractFileSystem.find)  # as many kinds have it
    monkeypatch.setattr(folder.fs, "ls", ls)
    with pytest.raises(DiskError, match=r"cannot list it: Slow Down\. The checkpoint was not written"):
        store.save(example(4, pushed=60), 300, {})
    monkeypatch.undo()
    assert same(load(folder / "100-0")[0], OLD) and store.newest() == folder / "200-0"
    store.save(example(4, pushed=60), 300, {})
    assert same(load(folder / "100-0")[0], OLD) and store.newest() == folder / "300-0"


# ------------------------------------------------------------ files that grow


def test_a_mirror_is_sent_without_what_is_gone_or_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = memory()
    made = mirror.Mirror(folder)
    for name in ("a", "b", "c"):
        (made.path / name).write_text(name)
    real = mirror.changed
    monkeypatch.setattr(mirror, "changed", lambda path: (path.name == "b" and path.unlink(), real(path))[1])
    made.send()
    made.close()
    assert files(folder) == {"a", "c"} and not made.path.exists()


def test_desks_of_the_dead_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lives = mirror.Mirror(memory())
    dead, young = tmp_path / f"{mirror.PREFIX}dead", tmp_path / f"{mirror.PREFIX}young"
    for left in (dead, young):
        left.mkdir()
        (left / "metrics.jsonl").touch()
    for old in (dead, lives.path):
        os.utime(old, (0, 0))
    other = mirror.Mirror(memory())
    assert set(tmp_path.iterdir()) == {lives.path, other.path, young}
    for each in (lives, other):
        each.close()
    assert list(tmp_path.iterdir()) == [young]


# ------------------------------------------------------------ one process at a time


def test_a_run_in_a_store_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLE", 0.0)
    monkeypatch.setattr(lock, "BEAT", 0.02)
    monkeypatch.setattr(lock, "STALE", 0.4)
    folder = memory()
    with held(folder) as check:
        check()
        told = r"process \d+ of .* is running this run\. Wait for it, or stop it first"
        with pytest.raises(UserError, match=told), held(folder):
            pass
        check()
    assert not (folder / ".lock").exists()
    check()  # a run whose stream was left may be saved


def test_the_lock_of_a_dead_process_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLE", 0.0)
    monkeypatch.setattr(lock, "STALE", 0.05)
    folder = memory()
    dead = lock.Lease(folder)
    dead.own["pid"] = 2**22 + 1  # no process has such a number
    dead.write()
    with held(folder) as check:
        check()
    far = lock.Lease(folder)
    far.own["where"] = "another machine"
    far.write()
    with held(folder) as check:  # it gave no sign of life
        check()
        far.write()  # and wakes up
        with pytest.raises(UserError, match="has taken over"):
            check()
    assert (folder / ".lock").exists()  # the other's
    with pytest.raises(UserError, match="has taken over"):
        dead.check()
    (folder / ".lock").unlink()
    with pytest.raises(UserError, match="its lock is gone; another process has taken over"):
        dead.check()  # who took over has ended


def test_a_lock_that_is_being_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLE", 0.0)
    monkeypatch.setattr(lock, "STALE", 0.4)
    folder = memory()
    lives = lock.Lease(folder)
    (folder / ".lock").put([b'{"owner": "x'])
    lives.check()  # its own, perhaps: not yet another's
    later = Timer(0.05, lives.write)
    later.start()
    with pytest.raises(UserError, match="is running this run"), held(folder):
        pass
    later.join()
    (folder / ".lock").put([b""])  # and stays so: whoever wrote it is dead
    with held(folder) as check:
        check()


def test_a_file_system_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with held(tmp_path), pytest.raises(UserError, match="another process is running this run"), held(tmp_path):
        pass
    monkeypatch.setattr("fcntl.flock", refuse)
    with held(tmp_path):
        assert "No locks available" in caplog.text
