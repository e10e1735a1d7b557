"""The console: a live progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import atexit
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from time import monotonic
from typing import Any

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ganglion.config import WriterConfig, register
from ganglion.core import LogData, Progress
from ganglion.record.writers import RunInfo

BARS = "▁▂▃▄▅▆▇█"


def count_text(count: float) -> str:
    """31200 as 31.2k, 50000 as 50k, 1250000 as 1.25M."""
    for suffix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * scale:
            return f"{count / scale:.3g}{suffix}"
    return f"{count:.0f}"


def value_text(value: float) -> str:
    """Three or four digits, whatever the size: 182.4, 0.0231, 1.2e-05."""
    if not isfinite(value):
        return str(float(value))
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{value:.2g}"


def time_text(seconds: float) -> str:
    """0:09, 12:31, 3:04:10."""
    whole = int(seconds + 0.5)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def sparkline(values: Sequence[float]) -> str:
    """Values as bars between their least and greatest; what is not finite is left out."""
    values = [value for value in values if isfinite(value)]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def trend(values: Sequence[float]) -> int:
    """1 where the last third of the values lies above the first by a tenth of their range, -1 below, else 0."""
    values = [value for value in values if isfinite(value)]
    if len(values) < 3:
        return 0
    third = len(values) // 3
    change = sum(values[-third:]) / third - sum(values[:third]) / third
    margin = (max(values) - min(values)) / 10
    return 0 if abs(change) <= margin else (1 if change > 0 else -1)


REFRESHES = 4  # per second; drawing costs a millisecond or two
SHOWN = 24  # returns in the sparkline
ARROWS = {1: ("↗", "green"), 0: ("→", "default"), -1: ("↘", "yellow")}
LINES = 20  # printed over a whole run where there is no terminal ...
SILENCE = 60.0  # ... and one more after so many seconds without any


@register("writer", "console")
class ConsoleConfig(WriterConfig):
    """Progress, returns, evaluations, losses and speed on the terminal."""

    def build(self, run: RunInfo) -> Console:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an arrow that cannot be shown must not end a run
        return Console(run, Screen())


class Screen(Terminal):
    """A terminal whose loss does not end a run, as rich would have it."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Newest:
    """The newest of everything, as the display needs it. Values are replaced whole: another thread reads them."""

    def __init__(self, run: RunInfo, clock: Callable[[], float]) -> None:
        self.run, self.clock = run, clock
        self.at = run.at
        self.started = self.updated = clock()
        self.ended: float | None = None
        self.metrics: Mapping[str, Any] = {}
        self.returns: tuple[float, ...] = ()
        self.best: tuple[float, Progress] | None = None

    def take(self, log: LogData) -> None:
        self.at, self.updated = log.at, self.clock()
        self.metrics = {**self.metrics, **log.metrics}
        if log.kind == "record" and "episode/return" in log.metrics:
            self.returns = (*self.returns, log.metrics["episode/return"])[-SHOWN:]
        if log.metrics.get("eval/best"):
            self.best = log.metrics["eval/return_mean"], log.at

    def elapsed(self) -> float:
        return (self.ended if self.ended is not None else self.clock()) - self.started

    def remaining(self) -> float | None:
        """Seconds left by the speed since this process began; None before there is one."""
        gained = self.at.fraction - self.run.at.fraction
        if gained <= 0:
            return None
        rest = (self.updated - self.started) * (1 - self.at.fraction) / gained
        return max(0.0, rest - (self.clock() - self.updated))

    def amount(self) -> str:
        """How much of the budget is spent: 31.2k / 50k steps."""
        budget = self.run.budget
        if budget.unit == "seconds":
            return f"{time_text(self.at.seconds)} / {time_text(budget.count)}, {count_text(self.at.env_steps)} steps"
        return f"{count_text(budget.measure(self.at))} / {count_text(budget.count)} {budget.unit}"

    def learning(self) -> list[tuple[str, float]]:
        """What `learn` reports, losses first, then the knobs."""
        learn = named(self.metrics, "learn/")
        losses = {name: value for name, value in learn.items() if "loss" in name}
        return [*{**losses, **learn, **named(self.metrics, "knob/")}.items()]


def named(metrics: Mapping[str, Any], family: str) -> dict[str, float]:
    return {name.removeprefix(family): value for name, value in metrics.items() if name.startswith(family)}


class Console:
    """Shows a run: a live display that never makes training wait, or plain lines where there is no terminal."""

    def __init__(self, run: RunInfo, terminal: Terminal, clock: Callable[[], float] = monotonic) -> None:
        self.terminal = terminal
        self.seen = Newest(run, clock)
        self.live: Live | None = None
        self.said = -1, clock()
        if terminal.is_terminal and not terminal.is_dumb_terminal:
            # Drawn by a thread of rich's, so that `write` only keeps numbers.
            self.live = Live(get_renderable=self.draw, console=terminal, refresh_per_second=REFRESHES)
            self.live.start()
            atexit.register(self.close)  # an exception that nobody caught must not leave the cursor hidden

    def write(self, log: LogData) -> None:
        if log.kind not in ("record", "evaluate"):
            return
        self.seen.take(log)
        if log.kind == "evaluate":
            self.say(evaluation(log))
        elif self.live is None and self.due():
            self.say(plain(self.seen))

    def due(self) -> bool:
        """Whether a line of text is due: the first record, one in a while, and the last."""
        part, now = int(self.seen.at.fraction * LINES + 1e-9), self.seen.clock()
        if part == self.said[0] and now - self.said[1] < SILENCE:
            return False
        self.said = part, now
        return True

    def say(self, line: Text) -> None:
        wrap: dict[str, Any] = {"soft_wrap": True} if self.live is None else {"no_wrap": True, "overflow": "ellipsis"}
        with suppress(OSError):  # a terminal that went away must not end a run
            self.terminal.print(line, highlight=False, **wrap)

    def close(self) -> None:
        if self.live is None:
            return
        self.seen.ended = self.seen.clock()
        with suppress(OSError):
            self.live.stop()
        self.live = None
        atexit.unregister(self.close)

    def draw(self) -> RenderableType:
        seen = self.seen
        return Group(bar(seen), score(seen), detail(seen))


def bar(seen: Newest) -> RenderableType:
    left = seen.remaining()
    if seen.ended is not None:
        clock = f"took {time_text(seen.elapsed())}"
    else:
        clock = "eta -:--" if left is None else f"eta {time_text(left)}"
    speed = seen.metrics.get("speed/env_steps_per_s")
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None, None, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    grid.add_row(
        Text(seen.run.name, style="bold"),
        ProgressBar(total=1.0, completed=seen.at.fraction),
        Text(f"{seen.at.fraction:4.0%}"),
        Text(seen.amount()),
        Text("" if speed is None else f"{count_text(speed)}/s", style="cyan"),
        Text(clock, style="cyan"),
    )
    return grid


def score(seen: Newest) -> Text:
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    if not seen.returns:
        line.append("return -", style="dim")
    else:
        arrow, style = ARROWS[trend(seen.returns)]
        line.append("return ").append(value_text(seen.returns[-1]), style="bold").append(f" {arrow} ", style=style)
        line.append(sparkline(seen.returns), style=style)
    if "eval/return_mean" in seen.metrics:
        line.append("   eval ").append(value_text(seen.metrics["eval/return_mean"]), style="bold")
    if seen.best is not None:
        line.append("   best ").append(value_text(seen.best[0]), style="bold green")
        line.append(f" at {count_text(seen.best[1].env_steps)}", style="dim")
    return line


def detail(seen: Newest) -> Text:
    line = Text("  ", no_wrap=True, overflow="ellipsis", style="dim")
    for name, value in seen.learning():
        line.append(f"{name} ").append(value_text(value), style="" if isfinite(value) else "bold red").append("   ")
    return line if seen.learning() else Text("  collecting before the first update", style="dim")


def evaluation(log: LogData) -> Text:
    """One lasting line per evaluation."""
    line = Text(f"{log.at.env_steps:>11,} steps   eval ")
    line.append(f"{value_text(log.metrics['eval/return_mean']):>7}", style="bold")
    if "eval/return_std" in log.metrics:
        line.append(f" ± {value_text(log.metrics['eval/return_std']):<6}", style="dim")
    if "eval/episodes" in log.metrics:
        line.append(f"   {log.metrics['eval/episodes']:.0f} episodes", style="dim")
    return line.append("   best so far", style="green") if log.metrics.get("eval/best") else line


def plain(seen: Newest) -> Text:
    """One record as a line of text."""
    left = seen.remaining()
    parts = [f"{seen.at.env_steps:>11,} steps {seen.at.fraction:4.0%}"]
    if seen.returns:
        parts.append(f"return {value_text(seen.returns[-1]):>7}")
    parts += [f"{name} {value_text(value)}" for name, value in seen.learning()[:3]]
    if "speed/env_steps_per_s" in seen.metrics:
        parts.append(f"{count_text(seen.metrics['speed/env_steps_per_s'])} steps/s")
    if left is not None and seen.at.fraction < 1:
        parts.append(f"eta {time_text(left)}")
    return Text("   ".join(parts))
