"""A run ends when an evaluation reaches the target, and only then."""

from __future__ import annotations

from math import nan

import pytest

from ganglion.core import LogData, Progress, Stop
from ganglion.record.stages import Stopped


@pytest.mark.parametrize(("mean", "target", "stops"), [(9.9, 10.0, False), (10.0, 10.0, True), (11.0, 10.0, True)])
def test_a_target_reached_ends_the_run(mean: float, target: float, stops: bool) -> None:
    wish = Stopped(target).seen(LogData("evaluate", Progress(), {"eval/return_mean": mean}))
    assert wish == (Stop("target", finished=True) if stops else None)


def test_nan_reaches_nothing() -> None:
    assert Stopped(10.0).seen(LogData("evaluate", Progress(), {"eval/return_mean": nan})) is None


def test_without_a_target_nothing_stops() -> None:
    assert Stopped(None).seen(LogData("evaluate", Progress(), {"eval/return_mean": 1e9})) is None
