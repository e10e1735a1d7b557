"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

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
