"""The inner loops of a replay in C (rows.c), compiled when first needed; where that fails numpy does the same.

Both give the same numbers to the last bit, so a run may be taken up on a machine without a compiler.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import subprocess
from pathlib import Path
from typing import Any

from ganglion import cpp_extension

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("rows.c")
FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-shared")  # nothing that changes what a sum rounds to
KINDS = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "d": ctypes.c_double}
ARGUMENTS = {  # of each function: pointers, numbers, doubles
    "store": "pnnppnpd", "draw": "pnnnnp", "fetch": "pnnnpnnp", "fold": "pnnnpppp", "frames": "pnnnpnnp",
    "use": "ppnpnn", "set": "pnppnn", "fill": "pnnnnpnd", "find": "pnnppnnppp", "over_least": "pn", "urgency": "pndpp",
}  # fmt: skip


@functools.cache
def code() -> Any:
    """The functions of rows.c, or None where they cannot be had."""
    try:
        return load(built(cpp_extension.folder()))
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        log.info("a replay goes without compiled loops, at the same numbers: %s", error)
        return None


def built(into: Path) -> Path:
    return cpp_extension.built(SOURCE, FLAGS, into)


def load(library: Path) -> Any:
    functions = ctypes.CDLL(str(library))
    for name, kinds in ARGUMENTS.items():
        function = getattr(functions, name)
        function.argtypes = [KINDS[kind] for kind in kinds]
        function.restype = ctypes.c_int64 if name == "use" else None
    return functions
