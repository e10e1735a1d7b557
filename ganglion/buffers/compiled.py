"""The inner loops of a replay in C (rows.c), compiled when first needed; where that fails numpy does the same.

Both give the same numbers to the last bit, so a run may be taken up on a machine without a compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("rows.c")
FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-shared")  # nothing that changes what a sum rounds to
KINDS = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "d": ctypes.c_double}
ARGUMENTS = {  # of each function: pointers, numbers, doubles
    "draw": "pnnnnp", "fetch": "pnnnpnnp", "frames": "pnnnpnnp", "use": "ppnpnn", "set": "pnppnn",
    "fill": "pnnnnpnd", "find": "pnnppnnppp", "over_least": "pn", "urgency": "pndpp",
}  # fmt: skip


@functools.cache
def code() -> Any:
    """The functions of rows.c, or None where they cannot be had."""
    try:
        return load(built(folder()))
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        log.info("a replay goes without compiled loops, at the same numbers: %s", error)
        return None


def folder() -> Path:
    """Where what was compiled is kept, for this user alone."""
    kept = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(kept) / "ganglion"


def built(into: Path) -> Path:
    """The library, compiled unless it is there; put in place as a whole, so that others may do the same at once."""
    source, compiler = SOURCE.read_bytes(), shlex.split(os.environ.get("CC") or "cc")
    name = hashlib.sha256(source + " ".join((*compiler, *FLAGS, platform.machine())).encode()).hexdigest()[:16]
    library = into / f"rows-{name}.so"
    if not library.exists():
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into) as room:
            made = Path(room) / library.name
            command = [*compiler, *FLAGS, str(SOURCE), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            made.replace(library)
    return library


def load(library: Path) -> Any:
    functions = ctypes.CDLL(str(library))
    for name, kinds in ARGUMENTS.items():
        function = getattr(functions, name)
        function.argtypes = [KINDS[kind] for kind in kinds]
        function.restype = ctypes.c_int64 if name == "use" else None
    return functions
