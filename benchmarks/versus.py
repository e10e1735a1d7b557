"""Two programs measured against each other on a machine that is not quiet: the frame that every comparison shares.

Each side is a process of its own (often of another virtual environment) that waits on its input while the other runs.
It prints a line `ready` once it is warm, reads lines `run <n>`, does n units of work and answers one line of JSON:

    {"seconds": 1.73, "cpu": 1.70, "counts": {"env_steps": 2048, "updates": 32, "samples": 8192}}

`cpu` is the processor time of the worker's own process, all its threads, or, where the worker has processes of its own
and says so, of all of them: where others use the machine as well it says more than the clock on the wall.

They take turns A B B A, so that a load that comes and goes meets both alike. Each neighbouring A and B is a pair; what
is reported is the geometric mean of the pairs' ratios with a bootstrap 95 % interval. Counts are compared, not trusted.

Only the standard library: peers import this file in environments that know nothing of Ganglion.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

Counts = Mapping[str, float]


class Answer(NamedTuple):
    """What a side did when asked, and how long it took."""

    seconds: float
    counts: Counts
    cpu: float = 0.0  # processor seconds of the process itself


class Ratio(NamedTuple):
    """How many times A's rate is B's: the geometric mean over pairs and its 95 % interval."""

    mean: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Outcome(NamedTuple):
    """A comparison: rates per second in the unit asked for (medians), the ratio A / B, and that by processor time."""

    a: float
    b: float
    ratio: Ratio
    ratios: tuple[float, ...]
    cpu: Ratio


# ------------------------------------------------------------ the side that is asked


class Desk:
    """A worker's end of the pipe, for a program that pauses in the middle of its own loop; most call `serve`.

    Answers have the real stdout alone: whatever else is printed goes to stderr from now on.
    """

    def __init__(self, spent: Callable[[], float] = time.process_time) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        self._spent, self._used = spent, 0.0
        os.dup2(2, 1)

    def ready(self) -> None:
        self._answers.write("ready\n")

    def request(self) -> int | None:
        """The next n to do; None: nobody asks any more."""
        line = sys.stdin.readline()
        verb, _, count = line.strip().partition(" ")
        if line and verb != "run":
            raise ValueError(f"a request is `run <n>`, not {line!r}")
        self._used = self._spent()
        return int(count) if line else None

    def answer(self, seconds: float, counts: Counts) -> None:
        told = {"seconds": seconds, "cpu": self._spent() - self._used, "counts": dict(counts)}
        self._answers.write(json.dumps(told) + "\n")


def spent_by_all() -> float:
    """Processor seconds of this process and of all that came from it and live, by /proc."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def serve(work: Callable[[int], Counts]) -> None:
    """A worker's whole main: says it is ready, then answers; `work(n)` does n units and returns what it counted."""
    desk = Desk()
    desk.ready()
    while (n := desk.request()) is not None:
        began = time.perf_counter()
        counts = work(n)
        desk.answer(time.perf_counter() - began, counts)


# ------------------------------------------------------------ the side that asks


class Worker:
    """A side of a comparison: a child process that follows the protocol."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, patience: float = 600):
        self.name, self.patience = name, patience
        self._said: list[str] = []  # the last lines of its stderr, for when it fails
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            list(command), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **(env or {})}
        )
        threading.Thread(target=self._listen, daemon=True).start()
        if (line := self._line()) != "ready":
            raise RuntimeError(f"{name} said {line!r} instead of 'ready'")

    def run(self, n: int) -> Answer:
        assert self._child.stdin is not None
        self._child.stdin.write(f"run {n}\n")
        self._child.stdin.flush()
        told = json.loads(self._line())
        return Answer(float(told["seconds"]), told["counts"], float(told.get("cpu", 0.0)))

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._said = [*self._said[-30:], line]

    def _line(self) -> str:
        assert self._child.stdout is not None
        timer = threading.Timer(self.patience, self._child.kill)
        timer.start()
        line = self._child.stdout.readline()
        timer.cancel()
        if not line:
            self._child.wait()
            raise RuntimeError(f"{self.name} ended (code {self._child.returncode}):\n{''.join(self._said)}")
        return line.strip()


def compare(
    a: Worker, b: Worker, n: int | tuple[int, int], pairs: int = 6, unit: str = "env_steps", within: float = 0.02
) -> Outcome:
    """Runs both in turns, A B B A. `n` is the work of one turn (of A and of B where it is a pair).

    Raises unless both counted as much of everything per unit, up to the fraction `within`.
    """
    of_a, of_b = n if isinstance(n, tuple) else (n, n)
    ones, twos = [], []
    for pair in range(pairs):
        for first in (pair % 2 == 0, pair % 2 == 1):
            (ones if first else twos).append(a.run(of_a) if first else b.run(of_b))
    rates_a, rates_b = ([x.counts[unit] / x.seconds for x in answers] for answers in (ones, twos))
    cpu_a, cpu_b = ([x.counts[unit] / (x.cpu or x.seconds) for x in answers] for answers in (ones, twos))
    ratios, by_cpu = ([x / y for x, y in zip(*both)] for both in ((rates_a, rates_b), (cpu_a, cpu_b)))
    same_work(total(ones), total(twos), unit, within)
    return Outcome(median(rates_a), median(rates_b), ratio(ratios), tuple(ratios), ratio(by_cpu))


def same_work(a: Counts, b: Counts, unit: str, within: float = 0.02) -> None:
    """Raises unless both did as much of everything per unit."""
    if a.keys() != b.keys():
        raise AssertionError(f"the sides count different things: {sorted(a)} and {sorted(b)}")
    for name in a:
        one, two = a[name] / a[unit], b[name] / b[unit]
        if abs(one - two) > within * max(abs(one), abs(two)):
            raise AssertionError(f"{name} per {unit}: {one:.5g} on one side, {two:.5g} on the other")


def total(answers: Iterable[Answer]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for answer in answers:
        for name, count in answer.counts.items():
            sums[name] = sums.get(name, 0.0) + count
    return sums


# ------------------------------------------------------------ statistics


def ratio(ratios: Sequence[float], draws: int = 10_000) -> Ratio:
    """Geometric mean with a bootstrap 95 % interval over pairs (percentiles; the same draws every time)."""
    logs, rng = [math.log(x) for x in ratios], random.Random(0)
    means = sorted(math.fsum(rng.choices(logs, k=len(logs))) / len(logs) for _ in range(draws))
    low, high = means[int(0.025 * draws)], means[int(0.975 * draws)]
    return Ratio(math.exp(math.fsum(logs) / len(logs)), math.exp(low), math.exp(high), len(logs))


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


# ------------------------------------------------------------ what is written down


def machine(*packages: str) -> str:
    """The machine in one line: processor, cores, load now, versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = [f"{name} {version(name)}" for name in packages]
    load = f"load {os.getloadavg()[0]:.1f} before"
    return ", ".join([f"{model}, {cores} cores", load, f"Python {platform.python_version()}", *versions])


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def number(x: float) -> str:
    """Three digits that count: 0.0123, 1.23, 123, 12,300."""
    if x == 0 or not math.isfinite(x):
        return str(x)
    places = max(0, 2 - math.floor(math.log10(abs(x))))
    return f"{round(x, 2 - math.floor(math.log10(abs(x)))):,.{places}f}"
