"""Code in C and C++, compiled when first needed and kept; what cannot be compiled is done without.

What is kept has a name made of the source and its header, the compiler, its flags and the kind of machine, so that
machines and environments may share a folder. It is run: so it is kept where nobody else can put anything.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)
COMPILERS = {".c": ("CC", "cc"), ".cpp": ("CXX", "c++")}  # the variable that names another, and the usual one


def folder() -> Path:
    """Where what was compiled is kept, for this user alone; for this process alone where others have a hand in it."""
    try:
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ganglion"
        make_private(kept)
        return kept
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return temporary(str(error))


def make_private(kept: Path) -> None:
    """Makes a folder that only its user can enter; OSError where it, or what it lies in, is in the hands of others."""
    for missing in [path for path in (*reversed(kept.parents), kept) if not path.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)  # whatever the umask allows
    real, owner = kept.resolve(), os.geteuid()
    about = os.lstat(kept)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != owner or about.st_mode & 0o022:
        raise PermissionError(f"{kept} is not a folder that its user alone can write to")
    if real.parent.stat().st_uid not in (0, owner):
        raise PermissionError(f"{real.parent} belongs to somebody else")
    for above in real.parents:
        if (mode := above.stat().st_mode) & 0o002 and not mode & stat.S_ISVTX:
            raise PermissionError(f"everybody can write to {above}")
    kept.chmod(0o700)


@functools.cache
def temporary(why: str) -> Path:
    """A folder for as long as this process lives."""
    made = Path(tempfile.mkdtemp(prefix="ganglion-cache-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    log.warning("compiled code is kept for this process alone, in %s: %s", made, why)
    return made


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
