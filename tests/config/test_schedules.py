"""Schedules: values over the budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ganglion.config import Config, Schedule, constant, cosine, exponential, linear, piecewise
from ganglion.config.schedules import Ramp
from ganglion.core import Progress


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (constant(0.3), [0.3, 0.3, 0.3, 0.3, 0.3]),
        (linear(1.0, 0.0, until=0.5), [1.0, 0.5, 0.0, 0.0, 0.0]),
        (exponential(1.0, 0.0625), [1.0, 0.5, 0.25, 0.125, 0.0625]),
        (cosine(1.0, 0.0, until=0.5), [1.0, 0.5, 0.0, 0.0, 0.0]),
        (piecewise((0.25, 1.0), (0.5, 3.0), (1.0, 2.0)), [1.0, 1.0, 3.0, 2.5, 2.0]),
    ],
)
def test_values_at_quarters(schedule: Schedule, values: list[float]) -> None:
    assert [schedule(quarter / 4) for quarter in range(5)] == pytest.approx(values)


@given(st.floats(0, 1), st.floats(0.01, 1), st.floats(0.01, 10), st.floats(0.01, 10))
def test_ramps_stay_between_their_ends(fraction: float, until: float, start: float, end: float) -> None:
    low, high = min(start, end) * (1 - 1e-9), max(start, end) * (1 + 1e-9)
    for make in (linear, exponential, cosine):
        ramp = make(start, end, until)
        assert low <= ramp(fraction) <= high
        assert (ramp(0.0), ramp(1.0)) == (start, end)


@pytest.mark.parametrize(
    ("until", "at", "way"),
    [
        ("10k steps", Progress(env_steps=2_500, fraction=0.9), 0.25),
        ("200 updates", Progress(env_steps=9_999, opt_steps=150), 0.75),
        ("10 min", Progress(seconds=300.0), 0.5),
        (400, Progress(env_steps=100, fraction=1.0), 0.25),  # a bare number above 1 counts steps
        ("10k steps", Progress(env_steps=20_000), 1.0),
        (0.5, Progress(env_steps=20_000, fraction=0.25), 0.5),
    ],
)
@pytest.mark.parametrize("make", [linear, cosine, exponential])
def test_a_ramp_may_end_after_so_many_steps(make: Callable[..., Ramp], until: object, at: Progress, way: float) -> None:
    ramp = Knob.model_validate({"rate": {"kind": make.__name__, "start": 2.0, "end": 0.5, "until": until}}).rate
    assert ramp.at(at) == pytest.approx(make(2.0, 0.5)(way))
    assert Knob.model_validate({"rate": ramp.plain()}).rate == ramp


def test_other_schedules_follow_the_budget() -> None:
    assert piecewise((0.0, 1.0), (1.0, 0.0)).at(Progress(env_steps=7, fraction=0.75)) == pytest.approx(0.25)


class Knob(Config):
    rate: Schedule = linear(1.0, 0.1, until=0.5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.2, constant(0.2)),
        (1, constant(1.0)),
        ({"until": 0.9}, linear(1.0, 0.1, until=0.9)),
        ("linear", linear(1.0, 0.1, until=0.5)),
        ({"kind": "cosine", "start": 1.0, "end": 0.0}, cosine(1.0, 0.0)),
        ({"kind": "piecewise", "points": [[0, 1], [1, 0]]}, piecewise((0.0, 1.0), (1.0, 0.0))),
    ],
)
def test_ways_to_write_a_schedule(value: object, expected: Schedule) -> None:
    assert Knob.model_validate({"rate": value}).rate == expected


@pytest.mark.parametrize(
    "value",
    [
        True,
        float("nan"),
        "steep",
        {"until": 0.0},
        {"until": 1.5},
        {"until": "never"},
        {"until": "soon"},
        {"until": True},
        {"kind": "exponential", "start": 0.0, "end": 1.0},
        {"kind": "piecewise", "points": []},
        {"kind": "piecewise", "points": [[0.5, 1.0], [0.5, 2.0]]},
        {"kind": "piecewise", "points": [[0.0, 1.0], [2.0, 2.0]]},
    ],
)
def test_bad_schedules(value: object) -> None:
    with pytest.raises(ValidationError):
        Knob.model_validate({"rate": value})
