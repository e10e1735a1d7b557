"""What an environment costs: time per step, and memory that does not come back."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from ctypes import CDLL
from os import sysconf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

from ganglion.envs.check.findings import Finding, failed, passed, warned

SEGMENTS = 7  # of a walk; the first ones fill caches
COUNTED = 4  # of them, the last
SLOPE = 64.0  # kB per 1,000 steps that are worth a word: 64 MB per million
LEAST = 200 * 1024  # bytes in all: pages come and go
STEEP = 1024.0  # that end a long run
SLOW = 0.02  # seconds per step that make a million steps take hours
HERE = str(Path(__file__).parent)


class Pace(NamedTuple):
    """Seconds of a step and of a reset (medians), of a step on average, and of the resets that fall to a step."""

    step: float
    reset: float
    mean: float
    resets: float = 0.0


def trimmed(ordered: Sequence[float]) -> float:
    """The mean without the slowest twentieth, which is the machine's affair."""
    kept = ordered[: max(len(ordered) * 19 // 20, 1)]
    return sum(kept) / max(len(kept), 1)


def speed(pace: Pace, slots: int = 1) -> Finding:
    """What an environment's times mean for a run."""
    whole = max(pace.mean + pace.resets, 1e-9)
    rate = f"{1 / whole:,.0f} steps/s {'in one process' if slots == 1 else f'with {slots} slots'}"
    seen = f"{span(pace.step)} a step, {span(pace.reset)} a reset: {rate}, a million in {span(1e6 * whole)}."
    if pace.resets > pace.mean and whole > 1e-3:
        return warned("time", f"mostly resets: {seen}", "make reset() cheaper: load and build in __init__().")
    if whole > SLOW:
        return warned("time", seen, "profile step(); env.workers steps the slots in several processes.")
    return passed("time", seen)


def span(seconds: float) -> str:
    """A time as people read it."""
    units = (("us", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 120.0), ("min", 60.0, 7200.0))
    name, unit = next(((name, unit) for name, unit, below in units if seconds < below), ("h", 3600.0))
    return f"{seconds / unit:.3g} {name}"


def resident() -> int:
    """Bytes of memory this process holds; 0 where that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def live() -> int:
    """The same without what is free already, which the next steps would fill unseen."""
    gc.collect()
    trim = getattr(CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
    return resident()


def memory(advance: Callable[[int], None], steps: int, seconds: float) -> Finding:
    """Whether memory grows with every step: `advance(n)` walks n steps."""
    if not resident():
        return passed("memory", "not measured on this system.")
    size = max(steps // SEGMENTS, 1)
    gc.collect()
    gc.freeze()  # what is there already need not be gone through at every measurement
    try:
        held = measured(advance, size, seconds)
        grown = slope(held, size)
        if grown:  # a second look: caches and allocators grow too, for a while
            grown = min(grown, slope(measured(advance, size, seconds), size))
    finally:
        gc.unfreeze()
    taken = size * len(held)
    if len(held) <= COUNTED:
        return passed("memory", f"not measured: {taken:,} steps took {seconds:.0f} s.")
    if not grown:
        return passed("memory", f"no growth over {taken:,} steps.")
    place = culprit(advance, size)
    seen = f"grows by {grown:,.0f} kB every 1,000 steps: {grown / 1024:,.1f} GB in a million."
    fix = (
        f"{place} keeps what it allocates; clear it in reset()."
        if place
        else "native code keeps it; close what it opens."
    )
    return (failed if grown > STEEP else warned)("memory", seen, fix)


def slope(held: list[int], size: int) -> float:
    """kB by which 1,000 steps grow; 0 where it is not worth a word, or not steady."""
    last = held[-COUNTED - 1 :]
    gains = [(b - a) / 1024 * 1000 / size for a, b in zip(last, last[1:])]
    if len(gains) < COUNTED or last[-1] - last[0] < LEAST or sum(gain > SLOPE / 2 for gain in gains) < COUNTED - 1:
        return 0.0
    return median(gains) if median(gains) > SLOPE else 0.0


def measured(advance: Callable[[int], None], size: int, seconds: float) -> list[int]:
    """Bytes held after each segment of a walk, as many as the time allows."""
    ends, held = perf_counter() + seconds, []
    for _ in range(SEGMENTS):
        advance(size)
        held.append(live())
        if perf_counter() > ends:
            break
    return held


def culprit(advance: Callable[[int], None], size: int) -> str:
    """The line whose allocations grow most; empty where it is not Python's."""
    tracemalloc.start(12)
    try:
        advance(size)
        gc.collect()
        before = tracemalloc.take_snapshot()
        advance(size)
        gc.collect()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    least = SLOPE / 4 * 1024 * size / 1000
    for line in after.compare_to(before, "traceback"):
        frames = [f for f in reversed(line.traceback) if not f.filename.startswith((HERE, tracemalloc.__file__, "<"))]
        if line.size_diff > least and frames and frames[0].filename != tracemalloc.__file__:
            own = [f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename]
            frame = (own or frames)[0]
            return f"{frame.filename}, line {frame.lineno}"
    return ""
