"""Opens a dataset, whatever wrote it: as a whole, or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ganglion.core import EnvSpec, Row
from ganglion.data import files
from ganglion.data.dataset import Dataset, check_spaces, fitted, joined, typed
from ganglion.data.foreign import reader
from ganglion.errors import UserError

KNOWN = "a folder written by `ganglion record`, a Minari dataset, .hdf5, .npz or .parquet"


def load(path: str | Path, skip: bool = False) -> Dataset:
    """A dataset by its path; `skip` leaves out blocks that are damaged."""
    where = Path(path)
    if not where.exists():
        raise UserError(f"{where} is not there. Accepted: {KNOWN}.")
    if files.is_dataset(where):
        return files.read(where, skip)
    read = reader(where)
    if read is None:
        raise UserError(f"{where} is no dataset. Accepted: {KNOWN}.")
    return read(where)


def load_all(paths: Sequence[str], skip: bool = False) -> Dataset:
    """Several datasets of one environment as one."""
    first, *others = [load(path, skip) for path in paths]
    return joined([first, *(fitted(each, first.spec) for each in others)])


class Stored(NamedTuple):
    """A dataset that is read block by block: only one is in memory."""

    spec: EnvSpec
    rows: int  # fewer where blocks are left out
    blocks: Callable[[], Iterator[Row]]  # each of whole episodes, [N, 1, ...]
    lost: list[str]  # damaged blocks that were left out so far


def stored(path: str, spec: EnvSpec, skip: bool = False) -> Stored:
    """A dataset as rows of an environment. Other formats than our own are read as a whole."""
    where = Path(path)
    if not files.is_dataset(where):
        data = fitted(load(where, skip), spec)
        return Stored(data.spec, len(data.rows.reward), lambda: iter([data.rows]), [])
    contents, lost = files.read_manifest(where), list[str]()
    check_spaces(contents.spec, spec)

    def blocks() -> Iterator[Row]:
        lost.clear()
        for rows in files.read_blocks(where, contents, lost if skip else None):
            yield typed(rows, spec)

    return Stored(spec, sum(block["rows"] for block in contents.blocks), blocks, lost)
