"""Memory shared between processes: items in slots, weights in two halves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from ganglion.core import Weights
from ganglion.fleet import temporary_folders
from ganglion.fleet.shared_memory import ItemMemory, Reader, SharedBoard
from ganglion.fleet.temporary_folders import PREFIX, make_folder


def weights(version: int, size: int = 1000) -> Weights:
    return Weights(version, {"epsilon": version / 7}, {"w": torch.full((size,), float(version))})


def test_slots_are_used_again_and_grow(tmp_path: Path) -> None:
    slots, reader = ItemMemory(tmp_path, "0-0", 2), Reader(tmp_path)
    slips = []
    for k, size in enumerate((100, 100, 100, 20_000)):
        slots.room(size)[:] = k
        slips.append(slots.slip)
    assert slips[0] == slips[2] and slips[1].start > 0 and slips[3].file != slips[0].file
    assert (reader.read(slips[2]) == 2).all() and (reader.read(slips[1]) == 1).all()
    assert len(reader.read(slips[3])) == 20_000 and (reader.read(slips[3]) == 3).all()
    reader.forget("0-0")
    assert list(tmp_path.iterdir()) == []


def test_the_newest_weights_are_read(tmp_path: Path) -> None:
    writer, reader = SharedBoard(tmp_path / "weights"), SharedBoard(tmp_path / "weights")
    assert reader.latest("main", -1) is None
    for version in (0, 3, 8):
        writer.publish(weights(version))
    got = reader.latest("main", 3)
    assert got is not None and got.version == 8 and got.knobs == {"epsilon": 8 / 7}
    assert (got.tensors["w"] == 8).all() and reader.latest("main", 8) is None


def test_weights_are_never_half_of_two_versions(tmp_path: Path) -> None:
    writer, reader = SharedBoard(tmp_path / "weights"), SharedBoard(tmp_path / "weights")

    def write() -> None:
        for version in range(300):
            writer.publish(weights(version, 50_000))

    writer.publish(weights(0, 50_000))
    thread = Thread(target=write)
    thread.start()
    seen = 0
    while thread.is_alive():
        got = reader.latest("main", -1)
        assert got is not None and (got.tensors["w"] == got.version).all()
        seen += 1
    assert seen > 0


def test_a_folder_is_private_and_does_not_outlive_its_process_for_long() -> None:
    code = "from ganglion.fleet.temporary_folders import make_folder; print(make_folder())"
    left = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    assert left.is_dir()
    folder = make_folder()
    assert not left.exists() and folder.name.startswith(f"{PREFIX}{os.getpid()}-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    room = ItemMemory(folder, "0-0", 1).room(10)
    room[:] = np.uint8(1)
    assert stat.S_IMODE((folder / "0-0-1").stat().st_mode) == 0o600
    (folder / "0-0-1").unlink()
    folder.rmdir()


def test_the_folder_of_another_container_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its process has a number that means nothing here."""
    monkeypatch.setattr(temporary_folders, "place", lambda: tmp_path)
    with monkeypatch.context() as there:
        there.setattr(temporary_folders, "table", lambda: "7")
        there.setattr(os, "getpid", lambda: 2**22 + 1)  # that no process has
        theirs = make_folder()
    dead = tmp_path / theirs.name.replace("-7-", f"-{temporary_folders.table()}-")
    dead.mkdir()
    make_folder()
    assert theirs.is_dir() and not dead.exists()
