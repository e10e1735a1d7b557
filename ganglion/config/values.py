"""Values with a unit or a magnitude: "5k steps", "10 min", "1M"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Unit = Literal["steps", "updates", "seconds", "never"]

_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COUNT = re.compile(rf"({_NUMBER})([kM]?)")
_EVERY = re.compile(rf"({_NUMBER})([kM]?) ?([a-z]+)")
_MAGNITUDE = {"": 1, "k": 1_000, "M": 1_000_000}
_UNITS: dict[str, tuple[Unit, int]] = {
    "step": ("steps", 1),
    "steps": ("steps", 1),
    "update": ("updates", 1),
    "updates": ("updates", 1),
    "opts": ("updates", 1),  # as configs of earlier versions say
    "s": ("seconds", 1),
    "m": ("seconds", 60),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
}
_MOST = 10**15  # beyond it a float no longer counts by ones, and soon its square does not fit float32
_LEAST = 1e-30  # below it float32 soon has nothing but 0


class At(Protocol):
    """The counters an interval is measured in: core.Progress."""

    @property
    def env_steps(self) -> int: ...
    @property
    def opt_steps(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def fraction(self) -> float: ...


@dataclass(frozen=True)
class Every:
    """An interval or an amount with its unit; `count` is in steps, updates or seconds, infinite for "never"."""

    count: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> Every:
        """Reads "5k steps", "200 updates", "30 s", "10 min", "2 h" or "never"; a bare number counts steps."""
        if text == "never":
            return cls(inf, "never")
        found = _EVERY.fullmatch(f"{text} steps" if _COUNT.fullmatch(text) else text)
        if not found or found[3] not in _UNITS:
            raise ValueError("should be a number and a unit, such as '5k steps', '200 updates', '10 min', or 'never'")
        unit, scale = _UNITS[found[3]]
        count = _magnify(found[1], found[2]) * scale
        if not 0 < count <= _MOST:
            raise ValueError("should be more than 0 and at most 1e15; write 'never' to switch it off")
        if unit != "seconds" and count != int(count):
            raise ValueError(f"should be a whole number of {unit}")
        return cls(count, unit)

    def measure(self, at: At) -> float:
        """The counter of this unit."""
        if self.unit == "steps":  # asked several times per event: no table
            return at.env_steps
        if self.unit == "updates":
            return at.opt_steps
        return at.seconds if self.unit == "seconds" else 0.0

    def in_updates(self) -> Every:
        """The same number of updates, where it is given in steps."""
        return Every(self.count, "updates") if self.unit == "steps" else self

    def __str__(self) -> str:
        if self.unit == "never":
            return "never"
        if self.unit != "seconds":
            return f"{_shorten(self.count)} {self.unit}"
        for word, scale in (("h", 3600), ("min", 60)):
            if self.count % scale == 0:
                return f"{_plain(self.count / scale)} {word}"
        return f"{_plain(self.count)} s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, inner: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._read, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def _read(cls, value: object) -> Every:
        if isinstance(value, cls):
            return value
        return cls.parse(value if isinstance(value, str) else f"{value}")


def every(text: str) -> Every:
    """`Every.parse`, short enough for a default."""
    return Every.parse(text)


def read_count(value: object) -> object:
    """A whole number written 10_000, "10k", "1M" or 1e6; anything else is left for the field to refuse."""
    if isinstance(value, str) and (found := _COUNT.fullmatch(value)):
        value = _magnify(found[1], found[2])
    if isinstance(value, float) and isfinite(value) and value == int(value) and abs(value) <= _MOST:
        return int(value)
    return value


def within(low: float, high: float, number: float) -> float:
    """Refuses numbers outside of [low, high]."""
    if not low <= number <= high:
        raise ValueError(f"should be from {low:g} to {high:g}")
    return number


# What fields accept (`tuning.space` reads it, too): numbers that torch's float32 and int64 hold, and with them what is
# computed from them.
# A field may narrow them: count: Count = Field(1, ge=1, le=100).
Count = Annotated[int, BeforeValidator(read_count), AfterValidator(partial(within, 0, _MOST))]
Real = Annotated[float, AfterValidator(partial(within, -_MOST, _MOST))]
NonNegative = Annotated[float, AfterValidator(partial(within, 0.0, _MOST))]
Positive = Annotated[float, AfterValidator(partial(within, _LEAST, _MOST))]
Rate = Annotated[float, AfterValidator(partial(within, _LEAST, 1e30))]  # of learning: too high, it ends a run


def _magnify(number: str, suffix: str) -> float:
    return round(float(number.replace("_", "")) * _MAGNITUDE[suffix], 6)  # 1.1k is 1100, not 1100.0000000000002


def _shorten(count: float) -> str:
    for suffix in ("M", "k"):
        scaled = count * 10 / _MAGNITUDE[suffix]
        if scaled >= 10 and scaled == int(scaled):
            return _plain(scaled / 10) + suffix
    return _plain(count)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)
