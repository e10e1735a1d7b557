"""Statistics over runs (Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021).

Scores of one algorithm are arrays [runs, tasks]. Aggregates take all of them as one sample; intervals are percentiles
of a stratified bootstrap: runs are drawn anew within each task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Aggregate = Callable[[Array], float]
REPEATS = 2_000


def mean(scores: Array) -> float:
    """The mean over runs of each task, then over tasks."""
    return float(np.mean(np.mean(scores, axis=0)))


def median(scores: Array) -> float:
    """The median over tasks of the mean over runs."""
    return float(np.median(np.mean(scores, axis=0)))


def iqm(scores: Array) -> float:
    """The interquartile mean: of the middle half of all runs on all tasks."""
    ordered = np.sort(scores, axis=None)
    cut = int(0.25 * len(ordered))
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def optimality_gap(scores: Array, target: float = 1.0) -> float:
    """By how much runs stay below a target on average; what is above it counts as the target."""
    return target - mean(np.minimum(scores, target))


def probability_of_improvement(ours: Array, theirs: Array) -> float:
    """The chance that a run of ours is better than one of theirs on the same task, equals counted as half, averaged
    over tasks: the Mann-Whitney statistic divided by the number of pairs."""
    over = [
        np.mean((a[:, None] > b[None]) + 0.5 * (a[:, None] == b[None])) for a, b in zip(ours.T, theirs.T, strict=True)
    ]
    return float(np.mean(over))


def performance_profile(scores: Array, levels: Sequence[float] | Array) -> Array:
    """The share of runs above each level."""
    return np.array([np.mean(scores > level, axis=0).mean() for level in levels])


def profile_band(
    scores: Array, levels: Sequence[float] | Array, level: float = 0.95, repeats: int = 500, seed: int = 0
) -> tuple[Array, Array]:
    """The bootstrap interval of a performance profile at each level; one run has none: NaN."""
    if len(scores) < 2:
        return np.full(len(levels), np.nan), np.full(len(levels), np.nan)
    dice = np.random.default_rng(seed)
    drawn = [performance_profile(resampled(scores, dice), levels) for _ in range(repeats)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def resampled(scores: Array, dice: np.random.Generator) -> Array:
    """As many runs again, drawn with replacement within each task."""
    runs, tasks = scores.shape
    drawn: Array = np.take_along_axis(scores, dice.integers(0, runs, (runs, tasks)), axis=0)
    return drawn


def interval(
    statistic: Callable[..., float], *samples: Array, level: float = 0.95, repeats: int = REPEATS, seed: int = 0
) -> tuple[float, float]:
    """The bootstrap interval of a statistic of one or several samples [runs, tasks]. One run has no interval: NaN."""
    if min(len(sample) for sample in samples) < 2:
        return float("nan"), float("nan")
    dice = np.random.default_rng(seed)
    values = [statistic(*(resampled(sample, dice) for sample in samples)) for _ in range(repeats)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def grid(curves: Sequence[tuple[Sequence[float], Sequence[float]]], points: int = 200) -> tuple[Array, Array]:
    """Curves (x, y) of several runs at the same places, up to where the shortest ends; before a run's first point its
    first value stands."""
    end = min(x[-1] for x, _ in curves)
    start = max(x[0] for x, _ in curves)
    places = np.linspace(min(start, end), end, points)
    return places, np.array([np.interp(places, x, y) for x, y in curves])


def band(values: Array, level: float = 0.95, repeats: int = 500, seed: int = 0) -> tuple[Array, Array, Array]:
    """Mean over runs [runs, points], and the bootstrap interval of it at each point."""
    middle = values.mean(0)
    if len(values) < 2:
        return middle, middle, middle
    dice = np.random.default_rng(seed)
    drawn = values[dice.integers(0, len(values), (repeats, len(values)))].mean(1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return middle, low, high


def summary(scores: Array) -> dict[str, Any]:
    """The figures of one group of runs."""
    return {
        name: (of(scores), *interval(of, scores)) for name, of in (("mean", mean), ("median", median), ("iqm", iqm))
    }
