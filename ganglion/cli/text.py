"""Where the command line writes."""

from __future__ import annotations

import sys


def say(*lines: str) -> None:
    """Lines of an answer, on stdout."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """A problem, on stderr."""
    sys.stderr.write(f"ganglion: {message}\n")


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
