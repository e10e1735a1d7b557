"""Intervals with units, and counts with magnitudes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ganglion.config import Config, Count, Every, every


@pytest.mark.parametrize(
    "text",
    [
        "5k steps",
        "1.5k steps",
        "1234 steps",
        "1M steps",
        "200 updates",
        "30 s",
        "0.5 s",
        "10 min",
        "90 min",
        "2 h",
        "never",
    ],
)
def test_an_interval_is_written_as_it_was_read(text: str) -> None:
    assert str(every(text)) == text


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("5k steps", 5_000, "steps"),
        ("5_000 steps", 5_000, "steps"),
        ("5ksteps", 5_000, "steps"),
        ("1e5 steps", 100_000, "steps"),
        ("1.1k steps", 1_100, "steps"),
        ("1 step", 1, "steps"),
        ("5000", 5_000, "steps"),
        ("5k", 5_000, "steps"),
        ("200 updates", 200, "updates"),
        ("200 opts", 200, "updates"),
        ("10 min", 600, "seconds"),
        ("2 h", 7_200, "seconds"),
        ("never", float("inf"), "never"),
    ],
)
def test_what_an_interval_says(text: str, count: float, unit: str) -> None:
    assert (every(text).count, every(text).unit) == (count, unit)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("k steps", "unit"),
        ("5 parsecs", "unit"),
        ("", "unit"),
        ("1e999 steps", "more than 0"),
        ("0 steps", "more than 0"),
        ("-3 steps", "more than 0"),
        ("0.5 steps", "whole number"),
        ("nan steps", "unit"),
    ],
)
def test_bad_intervals(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        every(text)


@given(st.integers(1, 10**11), st.sampled_from(["steps", "updates", "s", "min", "h"]))
def test_intervals_round_trip(count: int, unit: str) -> None:
    first = every(f"{count} {unit}")
    assert every(str(first)) == first


class Sizes(Config):
    capacity: Count = 1
    budget: Every = every("1 h")


@pytest.mark.parametrize(
    ("value", "count"), [("10k", 10_000), ("1M", 10**6), ("1e6", 10**6), (1e6, 10**6), (7, 7), ("1.5k", 1_500)]
)
def test_counts(value: object, count: int) -> None:
    assert Sizes.model_validate({"capacity": value}).capacity == count


@pytest.mark.parametrize("value", ["ten", 1.5, "1.5", True, None, float("nan"), float("inf"), "1e999", 1e300, [1]])
def test_bad_counts(value: object) -> None:
    with pytest.raises(ValidationError):
        Sizes.model_validate({"capacity": value})


@pytest.mark.parametrize("value", [None, True, ["5k steps"], {"count": 1, "unit": "steps"}])
def test_an_interval_is_text(value: object) -> None:
    with pytest.raises(ValidationError, match="unit"):
        Sizes.model_validate({"budget": value})
