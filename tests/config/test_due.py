"""Due: once per interval passed."""

from __future__ import annotations

from ganglion.config import every
from ganglion.core import Progress
from ganglion.record.stages import Due


def steps(count: int) -> Progress:
    return Progress(env_steps=count)


def test_due_once_per_interval_even_when_counts_jump() -> None:
    due = Due(every("100 steps"))
    at = [0, 99, 101, 108, 199, 200, 200, 208, 523, 530, 600]
    assert [count for count in at if due.due(steps(count))] == [101, 200, 523, 600]


def test_units() -> None:
    at = Progress(env_steps=5, opt_steps=20, seconds=61.0)
    assert not Due(every("10 steps")).due(at)
    assert Due(every("10 updates")).due(at)
    assert Due(every("1 min")).due(at)
    assert not Due(every("never")).due(at)


def test_restored_it_does_not_repeat_itself() -> None:
    first = Due(every("10 steps"))
    assert first.due(steps(25))
    second = Due(every("10 steps"))
    second.restore(first.state(), steps(25))
    assert [second.due(steps(n)) for n in (25, 29, 30)] == [False, False, True]


def test_another_interval_counts_from_where_the_run_goes_on() -> None:
    """Not so many of the new ones as had passed of the old: `resume RUN save.every=...`."""
    first = Due(every("10 steps"))
    assert first.due(steps(95))
    for interval, found in (("50 steps", [100, 150]), ("1 s", [101]), ("5 steps", [95, 100, 105, 150])):
        second = Due(every(interval))
        second.restore(first.state(), steps(95))
        walk = [Progress(env_steps=n, seconds=n / 101) for n in (95, 99, 100, 101, 105, 150)]
        assert [at.env_steps for at in walk if second.due(at)] == found
