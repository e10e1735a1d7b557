"""Where the command line writes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def say(*lines: str) -> None:
    """Lines of an answer, on stdout."""
    with losing(sys.stdout) as out:
        out.write("\n".join(lines) + "\n")
        out.flush()


def complain(message: str) -> None:
    """A problem, on stderr."""
    with losing(sys.stderr) as out:
        out.write(f"ganglion: {message}\n")


@contextmanager
def losing(stream: TextIO) -> Iterator[TextIO]:
    """A terminal that was closed meanwhile changes nothing: it is not written to again, also when Python ends."""
    try:
        yield stream
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
