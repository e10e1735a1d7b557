"""Named timers for one's own code: a run records what they measure, as `timer/NAME_ms` and `timer/NAME_calls`.

from ganglion.timers import timer

with timer("render"):
    ...

@timer("reward model")
def reward(step): ...

Standard library only. Times nest by name: a timer inside another counts in both.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from threading import Lock
from time import perf_counter
from types import TracebackType


class Timers:
    """Seconds and calls by name, since they were last read."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, int]] = {}
        self.lock = Lock()

    def add(self, name: str, seconds: float) -> None:
        with self.lock:
            total, calls = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + seconds, calls + 1

    def lap(self) -> dict[str, float]:
        """Milliseconds per call, and calls; from here on counted anew."""
        with self.lock:
            sums, self.sums = self.sums, {}
        found: dict[str, float] = {}
        for name, (total, calls) in sums.items():
            found |= {f"timer/{name}_ms": 1e3 * total / calls, f"timer/{name}_calls": float(calls)}
        return found


TIMERS = Timers()  # of this process


class timer(ContextDecorator):  # noqa: N801, it reads as a function
    """Measures a block or, as a decorator, each call of a function."""

    def __init__(self, name: str, timers: Timers = TIMERS) -> None:
        self.name, self.timers, self.began = name, timers, list[float]()

    def __enter__(self) -> timer:
        self.began.append(perf_counter())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.timers.add(self.name, perf_counter() - self.began.pop())
