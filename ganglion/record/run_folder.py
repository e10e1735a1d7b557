"""The folder of a run: made for one run alone, and looked over before it is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from os.path import isfile  # unlike Path.is_file, never raises
from pathlib import Path

from ganglion.errors import UserError
from ganglion.record.atomic_write import not_plain
from ganglion.record.lock import FILE
from ganglion.record.stores import Remote, Where, located, names, reached

CONFIG = "config.yaml"  # with it a folder is a run
LEFT = re.compile(rf"{re.escape(FILE)}|\.new-.*", re.DOTALL)  # of a process that died before it had begun a run
THEIRS = ("wandb",)  # folders that another package keeps, with links of its own


def made(title: str) -> Path:
    """A new folder named by now, numbered where another run of the same second has it: making it tells them apart."""
    for folder in candidates(title):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("numbers do not end")


def candidates(title: str) -> Iterator[Path]:
    folder = Path(f"runs/{title}-{datetime.now():%Y%m%d-%H%M%S}")
    yield folder
    yield from (folder.with_name(f"{folder.name}-{number}") for number in count(2))


def check_unused(folder: Where) -> None:
    """Refuses a folder in which something is. What a process left that died before its config was there is nothing:
    it could neither be resumed nor trained anew."""
    if isinstance(folder, Remote):
        held = names(reached(folder, "run.dir"))
    elif folder.is_dir():
        held = os.listdir(folder)
    else:
        held = [folder.name] if os.path.lexists(folder) else []
    if all(LEFT.fullmatch(name) for name in held):
        return
    more = f", or continue it: ganglion resume {folder}" if CONFIG in held else ": it is not the folder of a run"
    raise UserError(f"run.dir: {folder} is there already. Choose another{more}.")


# ------------------------------------------------------------ opening


def open_folder(place: Where | str, setting: str) -> Where:
    """The folder of a run that is there: on a disk, or in a store by URL. A folder on a disk may come from anywhere,
    so this is where links, pipes and devices in it are refused: nothing outside is read or written through them."""
    folder = located(place, setting)
    if isinstance(folder, Remote):
        there = (reached(folder, setting) / CONFIG).exists()
    else:
        there = isfile(folder / CONFIG)
    if not there:
        near = sorted(path.parent.name for path in siblings(folder))[-3:]
        hint = f" There are: {', '.join(str(folder.parent / name) for name in near)}." if near else ""
        raise UserError(f"{folder} is not the folder of a run: it has no {CONFIG}.{hint}")
    if isinstance(folder, Path):
        check_plain(folder)
    return folder


def siblings(folder: Where) -> list[Path]:
    """Configs of runs beside a folder; those of a store are not looked for."""
    return list(folder.parent.glob(f"*/{CONFIG}")) if isinstance(folder, Path) and folder.parent.is_dir() else []


def check_plain(folder: Path) -> None:
    """Refuses a folder in which anything, however deep, is neither a file nor a folder."""
    below = [str(folder)]
    while below:
        try:
            entries = list(os.scandir(here := below.pop()))
        except FileNotFoundError:  # removed meanwhile, by the run that goes on here
            continue
        except OSError as error:
            raise UserError(f"{here[:200]} cannot be read: {error.strerror}.") from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below += [entry.path] if entry.name not in THEIRS else []
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                raise not_plain(Path(entry.path))
