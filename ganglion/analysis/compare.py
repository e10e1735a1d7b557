"""Groups of runs beside each other: scores with intervals, who is better and how sure that is, what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np

from ganglion.analysis import statistics
from ganglion.analysis.runs import EVAL, RunData, RunGroup, differences, grouped, scores
from ganglion.analysis.statistics import Array
from ganglion.errors import UserError

Interval = tuple[float, float]
FEW = 5  # runs below which an interval says little


class Scored(NamedTuple):
    """A group with its scores [runs, tasks], as they are and between 0 and 1."""

    name: str
    runs: int
    scores: Array
    scaled: Array
    figures: Mapping[str, tuple[float, float, float]]  # of `scores` for one task, of `scaled` for several
    speed: float  # env steps a second of training, median over runs
    steps: int  # fewest of its runs


class Pair(NamedTuple):
    """Two groups: how probable it is that a run of the first is better."""

    first: str
    second: str
    chance: float
    interval: Interval
    gap: float  # in IQM
    gap_interval: Interval

    @property
    def verdict(self) -> str:
        low, high = self.gap_interval
        if isnan(low):
            return f"{self.first} and {self.second}: one run each says nothing about the next; train more seeds"
        if low > 0 or high < 0:
            better, worse = (self.first, self.second) if low > 0 else (self.second, self.first)
            return f"{better} is better than {worse}: the 95 % interval of the difference excludes 0"
        return f"{self.first} and {self.second} cannot be told apart: the interval of the difference includes 0"


class Comparison(NamedTuple):
    metric: str
    which: str
    tasks: Sequence[str]
    groups: Sequence[Scored]
    pairs: Sequence[Pair]
    apart: Mapping[str, Sequence[Any]]  # settings that differ
    notes: Sequence[str]


def compare(runs: Sequence[RunData], metric: str = EVAL, which: str = "last") -> Comparison:
    """All groups against the first. On several tasks scores are scaled: 0 is the worst run of a task, 1 the best."""
    groups = grouped(runs)
    tasks = shared_tasks(groups)
    raw = [table(group, metric, which, tasks) for group in groups]
    low, high = np.concatenate(raw).min(0), np.concatenate(raw).max(0)
    span = np.where(high > low, high - low, 1.0)
    scored = [made(group, one, (one - low) / span, len(tasks)) for group, one in zip(groups, raw, strict=True)]
    pairs = [pair(scored[0], other, len(tasks)) for other in scored[1:]]
    return Comparison(metric, which, tasks, scored, pairs, differences(groups), notes(groups, scored, tasks))


def shared_tasks(groups: Sequence[RunGroup]) -> list[str]:
    """The environments on which all groups have runs."""
    if not groups:
        raise UserError("RUN: there are no runs in what was named.")
    shared = [task for task in groups[0].tasks if all(task in group.tasks for group in groups)]
    if not shared:
        told = "; ".join(f"{group.name}: {', '.join(group.tasks)}" for group in groups)
        raise UserError(f"RUN: no environment has runs of all groups. {told}.")
    return shared


def table(group: RunGroup, metric: str, which: str, tasks: Sequence[str]) -> Array:
    """Scores [runs, tasks]: as many runs of each task as of the one with the fewest."""
    each = scores(group, metric, which, tasks)
    count = min(len(one) for one in each)
    return np.array([one[:count] for one in each], np.float64).T


def made(group: RunGroup, raw: Array, scaled: Array, tasks: int) -> Scored:
    speeds = [run.steps / run.seconds for run in group.runs if run.seconds > 0]
    figures = statistics.summary(raw if tasks == 1 else scaled)
    steps = min(run.steps for run in group.runs)
    return Scored(group.name, len(raw), raw, scaled, figures, float(np.median(speeds)) if speeds else 0.0, steps)


def pair(first: Scored, second: Scored, tasks: int) -> Pair:
    a, b = (first.scores, second.scores) if tasks == 1 else (first.scaled, second.scaled)

    def gap(ours: Array, theirs: Array) -> float:
        return statistics.iqm(ours) - statistics.iqm(theirs)

    chance = statistics.probability_of_improvement
    return Pair(
        first.name, second.name, chance(a, b), statistics.interval(chance, a, b), gap(a, b),
        statistics.interval(gap, a, b),
    )  # fmt: skip


def profiles(found: Comparison, points: int = 41) -> tuple[Array, dict[str, tuple[Array, Array, Array]]]:
    """Scores from the least to the largest, and for each group the share of its runs above each, with its interval."""
    all_scores = [one.scores if len(found.tasks) == 1 else one.scaled for one in found.groups]
    flat = np.concatenate([scores.reshape(-1) for scores in all_scores])
    levels = np.linspace(flat.min(), flat.max(), points)
    shares = {
        one.name: (statistics.performance_profile(scores, levels), *statistics.profile_band(scores, levels))
        for one, scores in zip(found.groups, all_scores, strict=True)
    }
    return levels, shares


def notes(groups: Sequence[RunGroup], scored: Sequence[Scored], tasks: Sequence[str]) -> list[str]:
    """What makes a comparison weaker than it looks."""
    found = []
    few = [one.name for one in scored if one.runs < FEW]
    if few:
        found.append(f"fewer than {FEW} runs: {', '.join(few)}; such intervals are too narrow")
    counts = {group.name: sorted({run.steps for run in group.runs}) for group in groups}
    ends = [value[0] for value in counts.values()] + [value[-1] for value in counts.values()]
    if ends and max(ends) > 1.05 * min(ends):
        told = ", ".join(f"{name} {value[0]:,}" for name, value in counts.items())
        found.append(f"runs have not taken the same env steps: {told}")
    left = sorted({task for group in groups for task in group.tasks} - {*tasks})
    if left:
        found.append(f"left out, for not all groups were trained on it: {', '.join(left)}")
    broken = sum(run.broken for group in groups for run in group.runs)
    if broken:
        found.append(f"{broken} lines of metrics could not be read")
    return found
