"""Pictures of runs, by matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


def check_picture(out: str, option: str = "--plot") -> None:
    """Refuses other kinds of files."""
    if Path(out).suffix not in KINDS:
        raise UserError(f"{option}: {out[:200]!r} should end in one of {', '.join(KINDS)}.")


def finish(figure: Any, out: str, option: str = "--plot") -> None:
    """Writes a picture, and lets go of it."""
    check_picture(out, option)
    figure.tight_layout()
    try:
        figure.savefig(out, dpi=140)
    except OSError as error:
        raise UserError(f"{option}: {out[:200]} cannot be written: {error.strerror}.") from error
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


class TreeNode(NamedTuple):
    """A node of a search tree; the parent comes before it."""

    parent: int  # -1: of the root
    action: int
    visits: int
    value: float  # for whoever moves there, from -1 to 1


def search_tree(nodes: Sequence[TreeNode], position: str, out: str) -> None:
    """A tree from left to right: lines as thick as visits, nodes coloured by what they are worth to whoever moves."""
    check_picture(out, "--tree")
    plt = pyplot()
    places, height = layout(nodes)
    depth = max(x for x, _ in places)
    figure, axes = plt.subplots(figsize=(2.6 + 1.9 * (depth + 1), max(2.6, 0.34 * height + 0.8)))
    for node, (x, y) in zip(nodes, places, strict=True):
        if node.parent >= 0:
            px, py = places[node.parent]
            width = 0.6 + 5 * node.visits / max(nodes[0].visits, 1)
            axes.plot([px, x], [py, y], color="#b9c2d8", linewidth=width, zorder=1, solid_capstyle="round")
        text = f"{node.action}  n {node.visits}  v {node.value:+.2f}" if node.parent >= 0 else position
        box = {"boxstyle": "round,pad=0.3", "edgecolor": "#666", "linewidth": 0.6,
               "facecolor": plt.get_cmap("RdYlBu")(0.5 + 0.4 * max(-1.0, min(1.0, node.value)))}  # fmt: skip
        axes.text(x, y, text, ha="center", va="center", fontsize=7, family="monospace", bbox=box, zorder=2)
    axes.set_xlim(-0.6, depth + 0.6)
    axes.set_ylim(height - 0.4, -0.6)
    axes.axis("off")
    figure.text(0.01, 0.01, "action, n visits, v value for whoever moves there (red -1, blue 1)", fontsize=7)
    finish(figure, out, "--tree")


def layout(nodes: Sequence[TreeNode]) -> tuple[list[tuple[float, float]], int]:
    """Where nodes are: depth to the right, leaves below each other, parents in the middle of their children."""
    children: list[list[int]] = [[] for _ in nodes]
    depth = [0] * len(nodes)
    for i, node in enumerate(nodes):
        if node.parent >= 0:
            children[node.parent].append(i)
            depth[i] = depth[node.parent] + 1
    height, rows = 0, [0.0] * len(nodes)
    order, todo = [], [0]
    while todo:
        order.append(todo.pop())
        todo += sorted(children[order[-1]], key=lambda i: nodes[i].visits)
    for i in order:
        if not children[i]:
            rows[i] = float(height)
            height += 1
    for i in reversed(order):
        if children[i]:
            rows[i] = sum(rows[c] for c in children[i]) / len(children[i])
    return [(float(d), y) for d, y in zip(depth, rows, strict=True)], max(height, 1)
