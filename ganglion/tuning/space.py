"""What may be searched: which settings, and from where to where; derived from the types and ranges of a config.

Each number is a coordinate between 0 and 1: of itself, of its logarithm, or of the logarithm of its distance from 1
(gamma, lam, tau of a slow average).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from math import exp, inf, log
from typing import Any, Literal, NamedTuple, get_origin

import annotated_types
from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from ganglion.config import text
from ganglion.config.files import load
from ganglion.config.model import Config, Schedule
from ganglion.config.run import RunConfig
from ganglion.config.schedules import Constant, Ramp
from ganglion.errors import UserError, nearest

RATES = (1e-5, 1e-1)  # learning rates, whatever stands in the config: it may be wrong
RATE_BOUND = 1e30  # of `config.Rate` and `config.RateSchedule`: they are known by it
WIDTH = 10.0  # other amounts: so many times less and more than what stands there
COUNTS = 4.0  # counts likewise
NOT_SEARCHED = ("max_lag",)  # bounds of distributed runs, which are no question of learning
RANGE = re.compile(r"([^.\s]*\.?[^.\s]*)\.\.(\S+)")

Scale = Literal["linear", "log", "from one"]


def changed(cfg: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The config with other values at some paths: {"algo.lr.start": 1e-3}."""
    return load(cfg.plain(), [f"{path}={json.dumps(value)}" for path, value in settings.items()])


class Range(NamedTuple):
    """Numbers from low to high."""

    low: float
    high: float
    scale: Scale = "linear"
    whole: bool = False

    def value(self, unit: float) -> float | int:
        """The number at a coordinate between 0 and 1, to three digits."""
        a, b = self.bent(self.low), self.bent(self.high)
        x = a + min(max(unit, 0.0), 1.0) * (b - a)
        number = x if self.scale == "linear" else exp(x) if self.scale == "log" else 1.0 - digits(exp(x))
        number = min(max(number if self.scale == "from one" else digits(number), self.low), self.high)
        return round(number) if self.whole else round(number, 12)

    def unit(self, value: float) -> float:
        """Where a number lies between low and high."""
        a, b = self.bent(self.low), self.bent(self.high)
        return (self.bent(min(max(value, self.low), self.high)) - a) / (b - a) if b != a else 0.0

    @property
    def options(self) -> int:
        """Of values that are no numbers."""
        return 0

    def coordinate(self, value: float) -> float:
        """As a search knows it: where a number lies, or which of several values it is."""
        return self.unit(value)

    def read(self, coordinate: float) -> float | int:
        return self.value(coordinate)

    def moved(self, value: float, factor: float) -> float | int:
        """A number multiplied; of one near 1 its distance from 1, and a whole one by one at least."""
        if self.scale == "from one":
            return self.value(self.unit(1.0 - (1.0 - value) * factor))
        moved = value * factor
        if self.whole and round(moved) == value:
            moved = value + (1 if factor > 1 else -1)
        return self.value(self.unit(moved))

    def bent(self, x: float) -> float:
        if self.scale == "linear":
            return x
        return log(x) if self.scale == "log" else log(1.0 - x)

    def __str__(self) -> str:
        how = {"linear": "", "log": ", logarithmic", "from one": ", logarithmic in the distance from 1"}[self.scale]
        return f"{self.low:g} to {self.high:g}{how}{', whole numbers' if self.whole else ''}"


class OneOf(NamedTuple):
    """One of several values."""

    values: tuple[Any, ...]
    scale: Scale = "linear"
    whole: bool = False

    @property
    def options(self) -> int:
        return len(self.values)

    def value(self, unit: float) -> Any:
        return self.values[min(int(unit * self.options), self.options - 1)]

    def unit(self, value: Any) -> float:
        return (self.coordinate(value) + 0.5) / self.options

    def coordinate(self, value: Any) -> int:
        """Which one it is; the first, where it is none."""
        return self.values.index(value) if value in self.values else 0

    def read(self, coordinate: int) -> Any:
        return self.values[coordinate]

    def moved(self, value: Any, factor: float) -> Any:
        """A neighbour."""
        return self.values[min(max(self.coordinate(value) + (1 if factor > 1 else -1), 0), self.options - 1)]

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


SearchSpace = Mapping[str, Range | OneOf]


def digits(x: float) -> float:
    return float(f"{x:.3g}")


def space_of(cfg: RunConfig) -> dict[str, Range | OneOf]:
    """The numbers of a config's algorithm, by their types: rates, amounts, shares, counts. What is off stays off."""
    found: dict[str, Range | OneOf] = {}
    fields = type(cfg.algo).model_fields
    for name, value in cfg.algo:
        if name not in NOT_SEARCHED:
            found |= searched(f"algo.{name}", value, fields[name])
    return found


def searched(path: str, value: Any, field: FieldInfo) -> dict[str, Range | OneOf]:
    """The range of one setting; none where its type or value has none."""
    low, high = bounds(field)
    if get_origin(field.annotation) is Literal:  # words, or numbers that are names
        return {}
    match value:
        case Constant():
            return named(path, around(value.value, low, high))
        case Ramp() if high == 1.0:  # a share, such as epsilon: how low and how soon
            return named(f"{path}.end", around(value.end, low, high)) | {f"{path}.until": Range(0.05, 1.0)}
        case Ramp():
            return named(f"{path}.start", around(value.start, low, high))
        case bool() | None | Schedule() | Config() | str():
            return {}
        case int():
            return named(path, counted(value, low, high))
        case float():
            return named(path, around(value, low, high))
    return {}


def named(path: str, found: Range | None) -> dict[str, Range | OneOf]:
    return {} if found is None else {path: found}


def bounds(field: FieldInfo) -> tuple[float, float]:
    """What a field accepts."""
    low, high = -inf, inf
    for about in field.metadata:
        match about:
            case AfterValidator(func=partial(args=(least, most))):  # config.values.within, config.schedules.stays
                low, high = max(low, least), min(high, most)
            case annotated_types.Ge(ge=bound) | annotated_types.Gt(gt=bound):
                low = max(low, float(bound))  # type: ignore[arg-type]
            case annotated_types.Le(le=bound) | annotated_types.Lt(lt=bound):
                high = min(high, float(bound))  # type: ignore[arg-type]
    return low, high


def around(value: float, low: float, high: float) -> Range | None:
    """Numbers about one, on the scale that fits what they are."""
    if value <= max(low, 0.0):
        return None  # off, or of either sign
    if high == RATE_BOUND:
        return Range(min(RATES[0], value), max(RATES[1], value), "log")
    if high != 1.0 or value < 0.1:
        return Range(max(value / WIDTH, low), min(value * WIDTH, high), "log")
    if value < 0.9:
        return Range(max(digits(value - 0.3), 0.01), min(digits(value + 0.2), 0.99))
    far = min(max(1.0 - value, 0.005), 0.05)
    return Range(digits(1.0 - far * WIDTH), 1.0 - digits(far / WIDTH), "from one")


def counted(value: int, low: float, high: float) -> Range | None:
    if value <= 0:
        return None
    return Range(max(value // COUNTS, low, 1), min(value * COUNTS, high), "log", whole=True)


# ------------------------------------------------------------ asked for


def asked(cfg: RunConfig, words: list[str]) -> dict[str, Range | OneOf]:
    """The space that words describe: `algo.lr=1e-5..1e-2`, `algo.epochs=[4, 10, 20]`, or a path alone, with the range
    that its type has; without words that of the config."""
    usual = space_of(cfg)
    if not words:
        return usual
    return dict(read(cfg, word, usual) for word in words)


def read(cfg: RunConfig, word: str, usual: SearchSpace) -> tuple[str, Range | OneOf]:
    path, equals, told = word.partition("=")
    if not equals:
        if path not in usual:
            raise UserError(f"--space: {path[:80]!r} has no range of its own. Accepted: PATH=LOW..HIGH, "
                            f"PATH=[A, B, ...], or one of {', '.join(usual)}.{nearest(path, usual)}")  # fmt: skip
        return path, usual[path]
    between = RANGE.fullmatch(told)
    if between:
        found: Range | OneOf = span(word, between[1], between[2])
    else:
        match text.read(told, f"--space {path}"):
            case [_, _, *_] as values:
                found = OneOf(tuple(values))
            case _:
                raise UserError(f"--space: {word[:80]!r} should be PATH=LOW..HIGH or PATH=[A, B, ...].")
    for end in (0.0, 1.0):
        changed(cfg, {path: found.value(end)})  # refused here, by name, before anything is trained
    return path, found


def span(word: str, low: str, high: str) -> Range:
    """On a logarithmic scale where it spans a factor of ten."""
    try:
        a, b = float(low), float(high)
    except ValueError:
        raise UserError(f"--space: {word[:80]!r} should be PATH=LOW..HIGH with two numbers.") from None
    if not a < b:
        raise UserError(f"--space: {word[:80]!r} should rise from LOW to HIGH.")
    whole = low.lstrip("-").isdecimal() and high.lstrip("-").isdecimal()
    return Range(a, b, "log" if a > 0 and b >= 10 * a else "linear", whole)


def value_at(cfg: RunConfig, path: str) -> Any:
    """What stands at a path of a config; a constant schedule is its number."""
    here: Any = cfg.plain()
    for key in path.split("."):
        match here:
            case {**inner}:
                here = inner.get(key)
            case _:
                return None
    match here:
        case {"kind": "constant", "value": value}:
            return value
    return here


def values_of(cfg: RunConfig, space: SearchSpace) -> dict[str, Any]:
    """The config's own values of what is searched."""
    return {path: value_at(cfg, path) for path in space}
