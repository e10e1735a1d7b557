"""Places for tests: a folder on the disk, and one in memory that nobody else has."""

from __future__ import annotations

import secrets
from pathlib import Path

from ganglion.record.stores import Remote, Where, located

KINDS = ("disk", "memory")


def memory() -> Remote:
    place = located(f"memory://test-{secrets.token_hex(8)}", "test")
    assert isinstance(place, Remote)
    return place


def place(kind: str, folder: Path) -> Where:
    return folder if kind == "disk" else memory()
