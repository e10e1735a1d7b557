"""The signals that ask a run to save and stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
