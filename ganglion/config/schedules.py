"""Schedules: what a knob is worth at each fraction of the budget, or at each number of steps."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import pairwise
from math import cos, pi
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ganglion.config.model import Schedule
from ganglion.config.values import At, Every, Rate, within
from ganglion.registry import register

Single = Annotated[float, AfterValidator(partial(within, -1e30, 1e30))]  # fits float32


def _read_until(value: object) -> object:
    """A fraction of the budget as it is, all else as an amount."""
    found: object = None
    match value:
        case Every() | bool():
            found = value
        case int() | float() if 0 < value <= 1:
            return value
        case _:
            with suppress(ValueError):
                found = Every.parse(str(value))
    if type(found) is not Every or found.unit == "never":
        raise ValueError("should be a fraction of the budget, above 0 and up to 1, or an amount such as '10k steps'")
    return found


Until = Annotated[float | Every, BeforeValidator(_read_until)]


@register("schedule", "constant")
class Constant(Schedule):
    """The same value throughout."""

    value: Single

    def __call__(self, fraction: float) -> float:
        return self.value


class Ramp(Schedule):
    """From `start` to `end`, reached at `until` and kept: a fraction of the budget, or an amount such as 10k steps."""

    start: Single
    end: Single
    until: Until = 1.0

    def at(self, now: At) -> float:
        match self.until:
            case Every() as span:
                return self.reached(span.measure(now) / span.count)
        return super().at(now)

    def __call__(self, fraction: float) -> float:
        """Where `until` is an amount, the fraction is of that."""
        match self.until:
            case Every():
                return self.reached(fraction)
            case share:
                return self.reached(fraction / share)

    def reached(self, way: float) -> float:
        way = min(max(way, 0.0), 1.0)
        if way in (0.0, 1.0):
            return self.end if way else self.start  # exactly
        return self.between(way)

    def between(self, way: float) -> float:
        raise NotImplementedError


@register("schedule", "linear")
class Linear(Ramp):
    """A straight line."""

    def between(self, way: float) -> float:
        return self.start + (self.end - self.start) * way


@register("schedule", "exponential")
class Exponential(Ramp):
    """An equal factor per equal stretch of the budget."""

    start: Rate
    end: Rate

    def between(self, way: float) -> float:
        return float(self.start * (self.end / self.start) ** way)


@register("schedule", "cosine")
class Cosine(Ramp):
    """Half a cosine wave: slow, fast, slow."""

    def between(self, way: float) -> float:
        return self.end + (self.start - self.end) * (1.0 + cos(pi * way)) / 2.0


@register("schedule", "piecewise")
class Piecewise(Schedule):
    """Straight lines between points (fraction, value); flat before the first and after the last."""

    points: tuple[tuple[float, Single], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rising(self) -> Self:
        at = [fraction for fraction, _ in self.points]
        if at[0] < 0.0 or at[-1] > 1.0 or any(a >= b for a, b in pairwise(at)):
            raise ValueError("points should have rising fractions between 0 and 1")
        return self

    def __call__(self, fraction: float) -> float:
        for before, after in pairwise(self.points):
            if before[0] < fraction <= after[0]:
                return before[1] + (after[1] - before[1]) * (fraction - before[0]) / (after[0] - before[0])
        return self.points[0 if fraction <= self.points[0][0] else -1][1]


def stays(low: float, high: float, schedule: Schedule) -> Schedule:
    """Refuses a schedule that leaves [low, high] anywhere."""
    if not all(low <= schedule(k / 100) <= high for k in range(101)):
        raise ValueError(f"should stay from {low:g} to {high:g} over the whole budget")
    return schedule


Share = Annotated[Schedule, AfterValidator(partial(stays, 0.0, 1.0))]  # a probability, an exponent of a correction
Amount = Annotated[Schedule, AfterValidator(partial(stays, 0.0, 1e15))]  # the weight of a loss
RateSchedule = Annotated[Schedule, AfterValidator(partial(stays, 0.0, 1e30))]  # a learning rate


def constant(value: float) -> Constant:
    """The same value throughout."""
    return Constant(value=value)


def linear(start: float, end: float, until: float = 1.0) -> Linear:
    """A straight line from `start` to `end`, reached at the fraction `until` of the budget."""
    return Linear(start=start, end=end, until=until)


def exponential(start: float, end: float, until: float = 1.0) -> Exponential:
    """An equal factor per equal stretch, from `start` to `end` at the fraction `until`."""
    return Exponential(start=start, end=end, until=until)


def cosine(start: float, end: float, until: float = 1.0) -> Cosine:
    """Half a cosine wave from `start` to `end` at the fraction `until`."""
    return Cosine(start=start, end=end, until=until)


def piecewise(*points: tuple[float, float]) -> Piecewise:
    """Straight lines between points (fraction, value)."""
    return Piecewise(points=points)
