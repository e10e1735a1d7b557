"""Arrays in a file that has no name: the system keeps in memory what is read most, and the disk all of it."""

from __future__ import annotations

import os
import tempfile
from math import prod

import numpy as np
import torch
from torch import Tensor

from ganglion.errors import UserError


class Mapped:
    """Makes them, in the place for temporary files (TMPDIR) or another; `setting` is what asked for it."""

    def __init__(self, setting: str, folder: str | None = None) -> None:
        self.setting, self.folder = setting, folder

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        size = max(prod(shape) * dtype.itemsize, 1)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.truncate(size)
                raw = np.memmap(file, np.uint8, "r+", shape=(size,))
        except OSError as error:
            where = self.folder or tempfile.gettempdir()
            raise UserError(
                f"{self.setting}: no room for {size / 1e9:,.1f} GB in {where}: {error.strerror}."
            ) from error
        return torch.from_numpy(raw).view(dtype).view(shape)


def on_disk(setting: str, device: torch.device) -> Mapped:
    """For a setting that asks for a disk; refused where arrays belong elsewhere."""
    if device.type != "cpu":
        raise UserError(f"{setting}: disk is for run.device cpu, not {device.type}.")
    return Mapped(setting)


def too_large(size: int) -> bool:
    """Whether so many bytes would take more than half of the machine's memory."""
    return size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
