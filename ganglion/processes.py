"""Python processes of our own. They find modules where this process does, and what the user asked for: a `json.py` that
happens to lie in the working folder is nobody's json. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SAFE = "PYTHONSAFEPATH"
ROOT = Path(__file__).resolve().parents[1]
INSTALLED = ROOT.name in ("site-packages", "dist-packages")
BESIDE = [] if INSTALLED else [str(ROOT)]  # where another Python might not find this package by itself


def python(module: str, *words: str) -> list[str]:
    """The command that runs a module by the same Python; `-P`: without the working folder, which `-m` would search
    first."""
    return [sys.executable, "-P", "-m", module, *words]


def findable(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which a Python finds this package."""
    given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]  # none is the working folder
    paths = [*given, *(path for path in BESIDE if path not in given)]
    return {**environ, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


@contextmanager
def others_safe() -> Iterator[None]:
    """The same for Pythons that a library starts meanwhile. No longer: a simulator's own may count on its folder."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE]
        os.environ.update({} if before is None else {SAFE: before})


def importable() -> list[str]:
    """Where this process finds modules; its own folder by its full name."""
    return [str(Path(path or ".").resolve()) for path in sys.path]


def search(paths: Iterable[str]) -> None:
    """Finds modules there, too, after all that are found already."""
    sys.path += [path for path in paths if path not in sys.path]


END_WITH_PARENT = 1  # prctl
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def with_parent(number: int = signal.SIGTERM) -> None:
    """This process is sent a signal when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(END_WITH_PARENT, number)


@contextmanager
def caught(call: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Has `call` take them for a while. A SIGHUP that is ignored (nohup) stays so."""
    unheard = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    before = {number: signal.signal(number, call) for number in STOPS if number != signal.SIGHUP or not unheard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
