"""metrics.csv: a line per record and evaluation, for spreadsheets and `pandas.read_csv`."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
from ganglion.record.atomic_write import write_file
from ganglion.record.writers import RunInfo

FILE = "metrics.csv"
FIRST = ("kind", "env_steps", "opt_steps", "episodes", "seconds")

logger = logging.getLogger(__name__)


@register("writer", "csv")
class CsvConfig(WriterConfig):
    """metrics.csv in the run's folder, one column per number."""

    def build(self, run: RunInfo) -> Csv:
        return Csv(run.folder / FILE, run.at.env_steps if run.offset is not None else None)


class Csv:
    """Lines of a table whose columns are the names seen so far. A new name makes a new column, and so the file is
    written anew; a resumed run first leaves out what its checkpoint had not seen."""

    def __init__(self, path: Path, resumed: int | None) -> None:
        self.path, self.columns, self.lines = path, list(FIRST), list[dict[str, str]]()
        path.parent.mkdir(parents=True, exist_ok=True)
        if resumed and path.is_file() and not path.is_symlink():
            with path.open(newline="", encoding="utf-8") as file:
                kept = [line for line in csv.DictReader(file) if int(line["env_steps"]) <= resumed]
            self.columns = list(dict.fromkeys([*FIRST, *(name for line in kept for name in line)]))
            self.lines = kept
        self.anew()

    def write(self, log: LogData) -> None:
        if log.kind == "save":
            return
        own = {"kind": log.kind, **{name: str(value) for name, value in log.at._asdict().items() if name in FIRST}}
        line = {**own, **{name: str(value) for name, value in log.metrics.items()}}
        new = [name for name in line if name not in self.columns]
        self.columns += new
        self.lines.append(line)
        try:
            self.anew() if new else self.append(line)
        except OSError as error:
            logger.warning("%s: %s. Training goes on; the table misses lines.", self.path, error.strerror or error)

    def text(self, lines: list[dict[str, str]], head: bool) -> bytes:
        out = io.StringIO()
        table = csv.DictWriter(out, self.columns, restval="", lineterminator="\n")
        if head:
            table.writeheader()
        table.writerows(lines)
        return out.getvalue().encode()

    def anew(self) -> None:
        write_file(self.path, [self.text(self.lines, head=True)])

    def append(self, line: dict[str, str]) -> None:
        with self.path.open("ab") as file:
            file.write(self.text([line], head=False))

    def close(self) -> None:
        """Every line is written already."""
