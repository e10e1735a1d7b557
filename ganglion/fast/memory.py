"""Memory that stays with the process."""

from __future__ import annotations

import ctypes
import sys

TRIM, MMAP = -1, -3  # glibc's names for them are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT = 1 << 30  # bytes


def keep_pages() -> bool:
    """Asks the C library to keep memory that is freed, up to a gigabyte, instead of handing it back to the system.

    Tensors of a megabyte and more, made anew in each call, otherwise lie in fresh pages each time, and those cost more
    than the arithmetic in them. Says whether there is such a library here.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return all(mallopt(name, KEPT) == 1 for name in (TRIM, MMAP))
