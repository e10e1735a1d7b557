"""Code in C and C++, compiled when first needed and kept; what cannot be compiled is done without.

What is kept has a name made of the source and its header, the compiler, its flags and the kind of machine, so that
machines and environments may share a folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

COMPILERS = {".c": ("CC", "cc"), ".cpp": ("CXX", "c++")}  # the variable that names another, and the usual one


def folder() -> Path:
    """Where what was compiled is kept, for this user alone."""
    kept = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(kept) / "ganglion"


def built(source: Path, flags: Sequence[str], into: Path) -> Path:
    """The library, compiled unless it is there; put in place as a whole, so that others may do the same at once."""
    variable, usual = COMPILERS[source.suffix]
    compiler = shlex.split(os.environ.get(variable) or usual)
    known = " ".join((*compiler, *flags, platform.machine())).encode()
    code = b"".join(part.read_bytes() for part in (source, source.with_suffix(".h")) if part.exists())
    name = f"{source.stem}-{hashlib.sha256(code + known).hexdigest()[:16]}.so"
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
