"""Code in C and C++, compiled when first needed and kept; what cannot be compiled is done without.

A file is compiled for the instructions this processor has, and kept under a name that tells them, so that machines may
share a folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


def folder() -> Path:
    """Where what was compiled is kept, for this user alone."""
    kept = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(kept) / "ganglion"


def built(source: Path, compiler: Sequence[str], flags: Sequence[str], into: Path) -> Path:
    """The library, compiled unless it is there; put in place as a whole, so that others may do the same at once."""
    known = " ".join((*compiler, *flags, platform.machine())).encode()
    name = f"{source.stem}-{hashlib.sha256(source.read_bytes() + known).hexdigest()[:16]}.so"
    library = into / name
    if not library.exists():
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into) as room:
            made = Path(room) / name
            subprocess.run(
                [*compiler, str(source), *flags, "-o", str(made)], check=True, capture_output=True, timeout=60
            )
            made.replace(library)
    return library
