"""Pictures of runs, by matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ganglion.analysis import statistics
from ganglion.analysis.runs import EVAL, RunGroup
from ganglion.errors import UserError

KINDS = (".png", ".svg", ".pdf")
COLOURS = ("#4269d0", "#e07b39", "#3b9e6b", "#9467bd", "#c43d5c", "#7a5c3e", "#2a9db5", "#8a8a8a")


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError('a picture needs a package. Try pip install "ganglion[plot]"') from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def curves(groups: Sequence[RunGroup], metric: str = EVAL, out: str = "curves.png") -> None:
    """One panel per environment: the mean of each group over its runs, and its 95 % interval."""
    check_picture(out)
    plt = pyplot()
    tasks = sorted({task for group in groups for task in group.tasks})
    figure, panels = plt.subplots(1, len(tasks), figsize=(5.2 * len(tasks), 3.6), squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        for index, group in enumerate(groups):
            draw(axes, group, task, metric, COLOURS[index % len(COLOURS)])
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("env steps", fontsize=9)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    panels[0][0].set_ylabel(metric, fontsize=9)
    panels[0][-1].legend(fontsize=8, frameon=False)
    finish(figure, out)


def check_picture(out: str) -> None:
    """Refuses other kinds of files."""
    if Path(out).suffix not in KINDS:
        raise UserError(f"--plot: {out[:200]!r} should end in one of {', '.join(KINDS)}.")


def finish(figure: Any, out: str) -> None:
    """Writes a picture, and lets go of it."""
    check_picture(out)
    figure.tight_layout()
    try:
        figure.savefig(out, dpi=140)
    except OSError as error:
        raise UserError(f"--plot: {out[:200]} cannot be written: {error.strerror}.") from error
    finally:
        pyplot().close(figure)


def draw(axes: Any, group: RunGroup, task: str, metric: str, colour: str) -> None:
    found = [run.curve(metric) for run in group.runs if run.task == task]
    found = [curve for curve in found if curve[0]]
    if not found:
        return
    places, values = statistics.grid(found)
    middle, low, high = statistics.band(values)
    axes.plot(places, middle, color=colour, linewidth=1.6, label=f"{group.name} ({len(found)})")
    if len(found) > 1:
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
