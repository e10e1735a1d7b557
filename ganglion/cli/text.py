"""Where the command line writes."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception
from typing import TextIO
from unicodedata import category

MOST = 4_000  # characters of a message
SEEN = ("L", "M", "N", "P", "S", "Zs")  # categories of characters that do nothing but show


def say(*lines: str) -> None:
    """Lines of an answer, on stdout."""
    with losing(sys.stdout) as out:
        out.write(harmless("\n".join(lines)) + "\n")
        out.flush()


def complain(message: str) -> None:
    """A problem, on stderr."""
    with losing(sys.stderr) as out:
        out.write(f"ganglion: {clipped(harmless(message))}\n")


def show(error: BaseException | None) -> None:
    """Where an error of somebody's code came from, on stderr."""
    with losing(sys.stderr) as out:
        out.write(harmless("".join(format_exception(error))))


@contextmanager
def losing(stream: TextIO) -> Iterator[TextIO]:
    """A terminal that was closed meanwhile changes nothing: it is not written to again, also when Python ends."""
    try:
        yield stream
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def harmless(text: str) -> str:
    """Control characters as text: whoever wrote a config, a run or an environment does not command the terminal."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if c in "\n\t" or category(c).startswith(SEEN) else escaped(c) for c in text)


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def clipped(text: str, most: int = MOST) -> str:
    """A message that can be read: of a longer one its beginning, and its end, which says what to do."""
    return text if len(text) <= most else f"{text[: most * 3 // 4]} [...] {text[-most // 5 :]}"


class Lines(logging.Formatter):
    """Warnings as messages."""

    def format(self, record: logging.LogRecord) -> str:
        return f"ganglion: {clipped(harmless(super().format(record)))}"


def hear_warnings() -> None:
    """Shows what the package warns of, on stderr."""
    shown = logging.StreamHandler()
    shown.setFormatter(Lines())
    logging.basicConfig(handlers=[shown])


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
