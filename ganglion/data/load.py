"""Opens a dataset, whatever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ganglion.data import files
from ganglion.data.dataset import Dataset, fitted, joined
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
