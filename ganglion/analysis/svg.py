"""Line charts as SVG text: curves with bands, axes, a legend; for pages that need no package and no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, isfinite, log10
from typing import NamedTuple

from ganglion.analysis import statistics
from ganglion.analysis.runs import RunGroup
from ganglion.analysis.terminal_plot import extent, number, padded

COLOURS = ("#2f6bd8", "#d9772b", "#2f9461", "#8a5cc7", "#c43d5c", "#7a5c3e", "#1f93a8", "#808080")
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 10, 34


class Line(NamedTuple):
    """One curve: its points, and the edges of its band where there is one."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def lines(groups: Sequence[RunGroup], task: str, metric: str, points: int = 160) -> list[Line]:
    """Each group's mean over its runs on a task with its 95 % interval; one run alone as it is."""
    found = []
    for group in groups:
        curves = [finite(run.curve(metric)) for run in group.runs if run.task == task]
        curves = [curve for curve in curves if curve[0]]
        colour = COLOURS[group.number % len(COLOURS)]
        if len(curves) == 1:
            found.append(Line(group.name, colour, *thinned(*curves[0], 4 * points)))
        elif curves:
            places, values = statistics.grid(curves, points)
            middle, low, high = (x.tolist() for x in statistics.band(values))
            found.append(Line(f"{group.name} ({len(curves)} runs)", colour, places.tolist(), middle, low, high))
    return found


def finite(curve: tuple[list[float], list[float]]) -> tuple[list[float], list[float]]:
    """Without what cannot be drawn, in the order of x."""
    pairs = sorted((a, b) for a, b in zip(*curve, strict=True) if isfinite(a) and isfinite(b))
    return [a for a, _ in pairs], [b for _, b in pairs]


def thinned(x: Sequence[float], y: Sequence[float], most: int) -> tuple[Sequence[float], Sequence[float]]:
    """At most so many points, the last one kept."""
    step = max(1, -(-len(x) // most))
    kept = [*range(0, len(x) - 1, step), len(x) - 1]
    return [x[k] for k in kept], [y[k] for k in kept]


def chart(curves: Sequence[Line], width: int = 560, height: int = 260, label: str = "", x: str = "env steps") -> str:
    """One SVG picture."""
    flat_x = [v for one in curves for v in one.x]
    flat_y = [v for one in curves for part in (one.y, one.low, one.high) for v in part]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    begin = f'<svg {size} role="img" aria-label="{escape(label)}">'
    if not flat_x:
        return f'{begin}<text x="{LEFT}" y="{height // 2}" class="axis">nothing recorded yet</text></svg>'
    (left, right), (low, high) = extent(flat_x), padded(*extent(flat_y))

    def at(a: float, b: float) -> str:
        across = LEFT + (a - left) / (right - left) * (width - LEFT - RIGHT)
        return f"{across:.1f},{TOP + (high - b) / (high - low) * (height - TOP - BOTTOM):.1f}"

    parts = [begin]
    for tick in ticks(low, high):
        y = at(left, tick).split(",")[1]
        parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end" class="axis">{number(tick)}</text>'
        )
    for tick in ticks(left, right, 5):
        place = at(tick, low).split(",")[0]
        parts.append(f'<text x="{place}" y="{height - 18}" text-anchor="middle" class="axis">{number(tick)}</text>')
    parts.append(f'<text x="{width - RIGHT}" y="{height - 4}" text-anchor="end" class="axis">{escape(x)}</text>')
    for one in curves:
        if len(one.low):
            edge = [at(a, b) for a, b in zip(one.x, one.low)] + [at(a, b) for a, b in zip(one.x, one.high)][::-1]
            parts.append(f'<polygon points="{" ".join(edge)}" fill="{one.colour}" fill-opacity="0.16"/>')
        points = " ".join(at(a, b) for a, b in zip(one.x, one.y))
        told = f"{escape(one.name)}: last {number(one.y[-1])}"
        shape = f'points="{points}" fill="none" stroke="{one.colour}" stroke-width="1.8" stroke-linejoin="round"'
        parts.append(f"<polyline {shape}><title>{told}</title></polyline>")
        if len(one.x) == 1:
            place, y = at(one.x[0], one.y[0]).split(",")
            parts.append(f'<circle cx="{place}" cy="{y}" r="3" fill="{one.colour}"/>')
    return "".join([*parts, "</svg>"])


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two."""
    rough = (high - low) / most
    scale = 10 ** floor(log10(rough))
    step = next(scale * k for k in (1, 2, 5, 10) if scale * k >= rough)
    first = -floor(-low / step)
    return [step * k for k in range(first, first + most + 2) if step * k <= high]


def legend(curves: Sequence[Line]) -> str:
    """Names and colours, as HTML."""
    keys = (f'<span><i style="background:{one.colour}"></i>{escape(one.name)}</span>' for one in curves)
    return f'<p class="legend">{"".join(keys)}</p>'
