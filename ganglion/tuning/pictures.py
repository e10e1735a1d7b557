"""Pictures of a study: trials beside what they chose, and the lineage of a population."""

from __future__ import annotations

from typing import Any

from ganglion.analysis.pictures import COLOURS, finish, pyplot
from ganglion.tuning.population import Member, Population
from ganglion.tuning.study import Study

GREY = "#b8bcc4"


def draw_trials(study: Study, out: str) -> None:
    """One panel per setting: what was tried, and the score of it."""
    plt = pyplot()
    paths = list(study.space)
    columns = min(4, len(paths))
    rows = -(-len(paths) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.6 * rows), squeeze=False)
    best = study.best()
    for axes, path in zip(panels.flat, paths):
        for trial in study.trials:
            if trial.score is not None:
                colour = COLOURS[0] if trial.state == "finished" else GREY
                axes.plot(str_or_number(trial.settings[path]), trial.score, "o", color=colour, markersize=4)
        if best is not None and best.score is not None:
            axes.plot(str_or_number(best.settings[path]), best.score, "*", color=COLOURS[1], markersize=12)
        one = study.space[path]
        if one.scale == "log":
            axes.set_xscale("log")
        plain(axes, path)
    for axes in panels.flat[len(paths) :]:
        axes.set_visible(False)
    panels[0][0].set_ylabel(f"{study.cfg.score} return", fontsize=9)
    finish(figure, out)


def str_or_number(value: Any) -> Any:
    match value:
        case bool():
            return str(value)
        case int() | float():
            return value
    return str(value)


def draw_lineage(found: Population, out: str) -> None:
    """Above the scores, below the first setting; a line goes on from the member whose agent was taken over."""
    plt = pyplot()
    path = next(iter(found.study.space))
    figure, (scores, settings) = plt.subplots(2, 1, figsize=(7.0, 6.0), sharex=True)
    best = found.best()
    line = {(one.generation, one.member) for one in found.lineage(best)} if best is not None else set()
    for one in sorted(found.lived, key=lambda one: (one.generation, one.member) in line):
        mine = (one.generation, one.member) in line
        colour, width = (COLOURS[1], 2.2) if mine else (GREY, 1.0)
        before = origin(found, one)
        x = [0 if before is None else before.steps, one.steps]
        if one.score is not None and before is not None and before.score is not None:
            style = "--" if one.parent != one.member else "-"
            scores.plot(x, [before.score, one.score], style, color=colour, linewidth=width)
        if one.score is not None:
            scores.plot([one.steps], [one.score], "o", color=colour, markersize=4 if mine else 3)
        value = str_or_number(one.settings[path])
        settings.plot(x, [value, value], "-", color=colour, linewidth=width)
    kind = found.study.space[path]
    if kind.scale == "log":
        settings.set_yscale("log")
    plain(scores, "members, and the lineage of the best (dashed: an agent taken over)")
    plain(settings, path)
    scores.set_ylabel("return", fontsize=9)
    settings.set_xlabel("env steps of each member", fontsize=9)
    finish(figure, out)


def origin(found: Population, one: Member) -> Member | None:
    return next((other for other in found.of(one.generation - 1) if other.member == one.parent), None)


def plain(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
