"""Curves as text: a plot for the terminal, in Braille dots or plain characters."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a cell: rows of two
PLAIN = "ox+*#@%&"
Curve = tuple[Sequence[float], Sequence[float]]


def plot(
    curves: Sequence[Curve],
    names: Sequence[str] = (),
    width: int = 80,
    height: int = 14,
    dots: bool = True,
    x: str = "",
) -> list[str]:
    """Lines of text, at most `width` wide: a plot of one or several curves with its axes and a legend."""
    points = [[(a, b) for a, b in zip(*curve, strict=True) if isfinite(a) and isfinite(b)] for curve in curves]
    flat = [point for curve in points for point in curve]
    if not flat:
        return ["(nothing to plot yet)"]
    (left, right), (low, high) = extent([a for a, _ in flat]), padded(*extent([b for _, b in flat]))
    labels = [number(high - (high - low) * row / (height - 1)) for row in range(height)]
    margin = max(len(label) for label in labels)
    columns = max(10, width - margin - 3)
    canvas = Canvas(columns, height, dots and len(curves) == 1)
    for index, curve in enumerate(points):
        canvas.line([((a - left) / (right - left), (b - low) / (high - low)) for a, b in curve], index)
    rows = [
        f"{label if row % 3 == 0 or row == height - 1 else '':>{margin}} │{line}".rstrip()
        for row, (label, line) in enumerate(zip(labels, canvas.lines(), strict=True))
    ]
    begin, end = number(left), f"{number(right)}{f' {x}' if x else ''}"
    axis = [f"{'':>{margin}} └{'─' * columns}", f"{'':>{margin}}  {begin}{end:>{columns - len(begin)}}"]
    legend = [f"{'':>{margin}}  {PLAIN[i % len(PLAIN)]} {name}"[:width] for i, name in enumerate(names)]
    return [*rows, *axis, *(legend if len(curves) > 1 else [])]


class Canvas:
    """Cells of text: each of 2 x 4 dots, or of one character per curve."""

    def __init__(self, width: int, height: int, dots: bool) -> None:
        self.dots = dots
        self.width, self.height = (width * 2, height * 4) if dots else (width, height)
        self.cells = [[" " for _ in range(width)] for _ in range(height)]
        self.masks = [[0] * width for _ in range(height)]

    def line(self, points: Sequence[tuple[float, float]], index: int) -> None:
        """A curve through points in [0, 1]."""
        places = [(a * (self.width - 1), (1 - b) * (self.height - 1)) for a, b in points]
        for (x0, y0), (x1, y1) in zip(places, places[1:] or places, strict=False):
            steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
            for k in range(steps + 1):
                self.dot(round(x0 + (x1 - x0) * k / steps), round(y0 + (y1 - y0) * k / steps), index)

    def dot(self, x: int, y: int, index: int) -> None:
        if self.dots:
            self.masks[y // 4][x // 2] |= DOTS[y % 4][x % 2]
        else:
            self.cells[y][x] = PLAIN[index % len(PLAIN)]

    def lines(self) -> list[str]:
        if self.dots:
            return ["".join(chr(0x2800 + mask) if mask else " " for mask in row) for row in self.masks]
        return ["".join(row) for row in self.cells]


def extent(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def padded(low: float, high: float) -> tuple[float, float]:
    return low - 0.02 * (high - low), high + 0.02 * (high - low)


def number(value: float) -> str:
    """A short number: 12.5k, 0.031, -170."""
    size = abs(value)
    for suffix, scale in (("M", 1e6), ("k", 1e4)):
        if size >= scale:
            return f"{value / (1e3 if suffix == 'k' else scale):.3g}{suffix}"
    if size == 0 or size < 1e-12:
        return "0"
    digits = max(0, 2 - floor(log10(size)))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
