"""The frame of comparisons: turns, counts that must agree, intervals."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from benchmarks.versus import Worker, compare, number, ratio, same_work, table

ROOT = Path(__file__).resolve().parents[2]
SIDE = """
import sys, time
sys.path.insert(0, {root!r})
from benchmarks.versus import serve
def work(n):
    print("noise on stdout")
    began = time.perf_counter()
    while time.perf_counter() - began < n * {cost}:
        pass
    return {{"env_steps": n, "updates": n / {every}}}
serve(work)
"""


def side(name: str, cost: float, every: int = 10) -> Worker:
    code = SIDE.format(root=str(ROOT), cost=cost, every=every)
    return Worker(name, [sys.executable, "-c", code], patience=60)


def test_the_cheaper_side_is_so_many_times_faster() -> None:
    with side("a", 0.001) as a, side("b", 0.003) as b:
        outcome = compare(a, b, 10, pairs=5)
    assert outcome.ratio.mean == pytest.approx(3.0, rel=0.3)
    assert outcome.ratio.low <= outcome.ratio.mean <= outcome.ratio.high and outcome.ratio.pairs == 5
    assert outcome.a > outcome.b and len(outcome.ratios) == 5


def test_turns_are_taken_a_b_b_a() -> None:
    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, n: int):
            from benchmarks.versus import Answer

            turns.append(self.name)
            return Answer(1.0, {"env_steps": n})

    turns: list[str] = []
    compare(Fake("a"), Fake("b"), 1, pairs=4)  # type: ignore[arg-type]
    assert "".join(turns) == "abbaabba"


def test_unequal_work_is_refused() -> None:
    with (
        side("a", 0.0) as a,
        side("b", 0.0, every=5) as b,
        pytest.raises(AssertionError, match="updates per env_steps"),
    ):
        compare(a, b, 10, pairs=2)
    same_work({"env_steps": 100, "updates": 10}, {"env_steps": 1_010, "updates": 100}, "env_steps")
    with pytest.raises(AssertionError, match="different things"):
        same_work({"env_steps": 1}, {"env_steps": 1, "updates": 1}, "env_steps")


def test_a_side_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"broken ended \(code 1\)[\s\S]*no such peer"):
        Worker("broken", [sys.executable, "-c", "raise SystemExit('no such peer')"])


def test_ratios_are_averaged_by_their_logarithms() -> None:
    found = ratio([2.0, 0.5, 2.0, 0.5])
    assert found.mean == pytest.approx(1.0) and found.low < 1 < found.high
    assert math.isclose(ratio([3.0] * 5).low, 3.0) and ratio([1.0, 2.0, 3.0]) == ratio([1.0, 2.0, 3.0])


def test_what_is_written() -> None:
    assert [number(x) for x in (12_345, 1.2345, 0.012345, 0.0)] == ["12,300", "1.23", "0.0123", "0.0"]
    assert table(["a", "b"], [[1, 2]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
