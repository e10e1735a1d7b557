"""Draws the learning curves of docs/results/curves as one figure: docs/results/learning.png.

    python benchmarks/curves.py [PRESET ...]

Each line is the mean over seeds of the deterministic evaluations during training, its band the 95 % interval.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from learning import AIMS, RESULTS, STUDENT

ALGOS = dict.fromkeys(preset.split("/")[1] for preset in AIMS)
COLOURS = dict(zip(ALGOS, [*plt.get_cmap("tab20").colors, "black", "gold"], strict=False))  # type: ignore[attr-defined]
TITLES = {
    "cartpole": "CartPole-v1",
    "cartpole-novelocity": "CartPole-v1 without velocities",
    "pendulum-novelocity": "Pendulum-v1 without velocity",
    "acrobot": "Acrobot-v1",
    "pendulum": "Pendulum-v1",
    "mountaincar": "MountainCar-v0",
    "lunarlander": "LunarLander-v3",
    "minigrid-doorkey": "MiniGrid DoorKey-5x5",
    "minatar-breakout": "MinAtar Breakout",
    "bipedalwalker": "BipedalWalker-v3",
    "halfcheetah": "HalfCheetah-v5",
    "pong": "Pong",
}


def read(preset: str) -> dict[int, tuple[list[float], list[float]]]:
    """seed -> (env steps, returns) of the evaluations."""
    path = RESULTS / "curves" / f"{preset.replace('/', '-')}.csv"
    found: dict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    if path.exists():
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                if line["curve"] == "eval":
                    steps, returns = found[int(line["seed"])]
                    steps.append(float(line["env_steps"]))
                    returns.append(float(line["return"]))
    return dict(found)


def draw(axes: plt.Axes, preset: str) -> None:
    """One preset's mean and band, every seed brought to the same env steps."""
    curves = read(preset)
    if not curves:
        return
    count = min(len(steps) for steps, _ in curves.values())
    grid = np.mean([steps[:count] for steps, _ in curves.values()], axis=0)
    values = np.array([np.interp(grid, *curve) for curve in curves.values()])  # [seeds, points]
    mean, seeds, algo = values.mean(0), len(values), preset.split("/")[1]
    axes.plot(grid / 1000, mean, color=COLOURS[algo], linewidth=1.6, label=f"{algo}, {seeds} seeds")
    if seeds > 1:
        half = STUDENT.get(seeds, 2.0) * values.std(0, ddof=1) / seeds**0.5
        low, high = np.maximum(mean - half, values.min(0)), np.minimum(mean + half, values.max(0))
        axes.fill_between(grid / 1000, low, high, color=COLOURS[algo], alpha=0.2, linewidth=0)
    axes.axhline(AIMS[preset].reach, color=COLOURS[algo], linewidth=0.8, linestyle=":")


def main() -> int:
    chosen = sys.argv[1:] or list(AIMS)
    panels = [env for env in TITLES if any(preset.split("/")[0] == env and read(preset) for preset in chosen)]
    rows = -(-len(panels) // 3)
    figure, grid = plt.subplots(rows, 3, figsize=(10.5, 2.9 * rows), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, env in zip(grid.flat, panels):
        here = [preset for preset in chosen if preset.split("/")[0] == env]
        for preset in here:
            draw(axes, preset)
        if len(here) > 4:  # of budgets far apart
            axes.set_xscale("log")
        axes.set_title(TITLES[env], fontsize=10)
        axes.tick_params(labelsize=8)
        axes.set_xlabel("thousand env steps", fontsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    for left in grid[:, 0]:
        left.set_ylabel("mean return", fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS / "learning.png", dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
