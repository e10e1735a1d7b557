from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from ganglion.record import atomic_write


class Quick(atomic_write.Disk):
    """Does not wait for the disk, which only a loss of power would notice."""

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        path.write_bytes(b"".join(parts))

    def sync(self, folder: Path) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the disk but those that are about it."""
    if "real_disk" not in request.fixturenames:
        monkeypatch.setattr(atomic_write, "disk", Quick())


@pytest.fixture
def real_disk() -> atomic_write.Disk:
    return atomic_write.disk
