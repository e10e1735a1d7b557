from __future__ import annotations

import io
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console as Terminal

from ganglion.config import every
from ganglion.core import LogData, Progress
from ganglion.record.writers import RunInfo
from ganglion.record.writers.console import Console, count_text, sparkline, time_text, trend, value_text

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Clock:
    """Time that passes when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def console(
    tmp_path: Path, live: bool, budget: str = "50k steps", start: int = 0
) -> tuple[Console, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    terminal = Terminal(file=out, force_terminal=live, width=100, color_system=None, _environ={"TERM": "xterm"})
    run = RunInfo("cartpole-dqn", tmp_path, {}, every(budget), Progress(start, fraction=start / 50_000))
    return Console(run, terminal, clock), out, clock


def record(steps: int, **metrics: float) -> LogData:
    at = Progress(steps, steps // 10, 5, steps / 5_000, steps / 50_000)
    usual = {"episode/return": steps / 100, "learn/loss": 0.5, "knob/epsilon": 0.1, "speed/env_steps_per_s": 5_000.0}
    return LogData("record", at, {**usual, **metrics})


def evaluation(steps: int, mean: float, best: bool) -> LogData:
    numbers = {"eval/return_mean": mean, "eval/return_std": 2.0, "eval/episodes": 20.0, "eval/best": float(best)}
    return LogData("evaluate", Progress(steps, fraction=steps / 50_000), numbers)


def shown(writer: Console) -> str:
    """What the live display would draw now."""
    page = Terminal(width=100, file=io.StringIO(), color_system=None)
    page.print(writer.draw())
    return page.file.getvalue()


# ------------------------------------------------------------ numbers


def test_numbers_read_well():
    assert [count_text(n) for n in (0, 999, 1_000, 31_234, 999_900, 1_250_000)] == [
        "0", "999", "1k", "31.2k", "1M", "1.25M"]  # fmt: skip
    assert [value_text(x) for x in (182.44, 9.871, 0.02314, 1.2e-5, 0, -1234.5, 3e7, math.nan, math.inf)] == [
        "182.4", "9.87", "0.0231", "1.2e-05", "0", "-1234.5", "3e+07", "nan", "inf"]  # fmt: skip
    assert [time_text(s) for s in (0.2, 9, 751, 11_050)] == ["0:00", "0:09", "12:31", "3:04:10"]


def test_trends():
    rising = [float(n) for n in range(9)]
    assert (trend(rising), trend(rising[::-1]), trend([1.0] * 9), trend([1.0, math.nan])) == (1, -1, 0, 0)
    assert sparkline(rising[:8]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0]) == "▁▁" and sparkline([math.nan, 2.0]) == ""


# ------------------------------------------------------------ without a terminal


def test_plain_lines_are_few_and_whole(tmp_path):
    writer, out, clock = console(tmp_path, live=False)
    for n in range(1, 1001):
        clock.now += 0.01
        writer.write(record(50 * n))
        if n % 100 == 0:
            writer.write(evaluation(50 * n, n / 2, best=True))
    writer.close()
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert len([line for line in lines if "eval" in line]) == 10
    assert 20 <= len(lines) - 10 <= 22  # the first, one per twentieth
    assert "   return   500.0   loss 0.5   epsilon 0.1   5k steps/s" in lines[-2] and "50,000 steps 100%" in lines[-2]
    assert "eval   500.0 ± 2" in lines[-1] and "20 episodes   best so far" in lines[-1]


def test_a_slow_run_still_speaks(tmp_path):
    writer, out, clock = console(tmp_path, live=False)
    for n in range(1, 11):
        clock.now += 61
        writer.write(record(n))
    assert len(out.getvalue().splitlines()) == 10


def test_time_left_follows_the_speed_of_this_process(tmp_path):
    writer, _, clock = console(tmp_path, live=False, start=25_000)
    assert writer.seen.remaining() is None
    clock.now += 10
    writer.write(record(30_000))
    assert writer.seen.remaining() == pytest.approx(40)
    clock.now += 5
    assert writer.seen.remaining() == pytest.approx(35)


def test_a_terminal_that_went_away_does_not_end_a_run(tmp_path):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    run = RunInfo("x", tmp_path, {}, every("50k steps"))
    writer = Console(run, Terminal(file=Gone()))
    writer.write(record(1000))
    writer.close()


# ------------------------------------------------------------ on a terminal


def test_the_live_display_says_what_matters(tmp_path):
    writer, out, clock = console(tmp_path, live=True)
    try:
        assert "collecting before the first update" in shown(writer)
        clock.now += 2
        for n in (1000, 5000, 10_000):
            writer.write(record(n))
        writer.write(evaluation(10_000, 77.0, best=True))
        page = shown(writer)
    finally:
        writer.close()
    for part in ("cartpole-dqn", " 20%", "10k / 50k steps", "5k/s", "eta 0:08"):
        assert part in page.splitlines()[0]
    for part in ("return 100.0 ↗ ▁▄█", "eval 77.0", "best 77.0 at 10k"):
        assert part in page.splitlines()[1]
    assert "loss 0.5   epsilon 0.1" in page.splitlines()[2]
    assert "10,000 steps   eval    77.0 ± 2" in out.getvalue()
    assert "took 0:02" in out.getvalue()


def test_other_budgets(tmp_path):
    for budget, text in (("400 updates", "100 / 400 updates"), ("10 min", "0:00 / 10:00, 1k steps")):
        writer, _, _ = console(tmp_path, live=False, budget=budget)
        writer.write(record(1000))
        assert text in shown(writer)


def test_a_loss_that_is_not_finite_is_seen(tmp_path):
    writer, _, _ = console(tmp_path, live=False)
    writer.write(record(1000, **{"learn/loss": math.nan}))
    assert "loss nan" in shown(writer)


def test_the_terminal_is_restored(tmp_path):
    writer, out, _ = console(tmp_path, live=True)
    with pytest.raises(RuntimeError):
        try:
            raise RuntimeError
        finally:
            writer.close()
    writer.close()  # twice does no harm
    assert out.getvalue().rindex(SHOW_CURSOR) > out.getvalue().rindex(HIDE_CURSOR)


def test_writing_does_not_draw(tmp_path):
    writer, _, _ = console(tmp_path, live=True)
    begin = time.perf_counter()
    for n in range(2_000):
        writer.write(record(n))
    spent = time.perf_counter() - begin
    writer.close()
    assert spent / 2_000 < 5e-4  # drawing takes several times as long


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_an_exception_nobody_caught_restores_the_terminal(tmp_path):
    import pty

    code = (
        "from pathlib import Path; from ganglion.config import every\n"
        "from ganglion.record.writers import RunInfo; from ganglion.record.writers.console import ConsoleConfig\n"
        "ConsoleConfig().build(RunInfo('x', Path('.'), {}, every('1k steps'))); raise RuntimeError('boom')"
    )
    outer, inner = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm"}
    )
    os.close(inner)
    text = b""
    try:
        while piece := os.read(outer, 65536):
            text += piece
    except OSError:  # how a pseudo-terminal says that nobody is left
        pass
    os.close(outer)
    assert child.wait() == 1 and b"boom" in text
    assert text.rindex(SHOW_CURSOR.encode()) > text.rindex(HIDE_CURSOR.encode())
