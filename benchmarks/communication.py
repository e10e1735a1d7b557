"""ATOC with communication and without, in a world that needs it: returns of evaluations, intervals of the last ones.

    python benchmarks/communication.py --seeds 5 --out docs/results/communication.csv

Each player is paid for naming the colour that only the next one sees: 10 / 3 per player and episode at best, 10 / 9 by
guessing.
"""

from __future__ import annotations

import argparse
import csv
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from ganglion.config.files import load
from ganglion.registry import presets
from ganglion.runtime.build import build

STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # by sample size, 95 %


def curve(seed: int, communicate: bool, budget: str) -> list[tuple[int, float]]:
    """Env steps and the mean return of a player, for each evaluation."""
    settings = [f"run.seed={seed}", f"algo.communicate={communicate}".lower(), f"train.budget={budget}"]
    trainer = build(load(presets()["colours/atoc"], [*settings, "run.device=cpu", "run.fast=eager"]))
    said = []
    for log in trainer():
        if log.kind == "collect" and log.at.env_steps // 6_000 > len(said):
            said.append((log.at.env_steps, trainer.run_evaluate()[1]["eval/return_mean"]))
    said.append((trainer.at.env_steps, trainer.run_evaluate()[1]["eval/return_mean"]))
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, choices=STUDENT)
    parser.add_argument("--budget", default="60k steps")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    last: dict[bool, list[float]] = {True: [], False: []}
    with asked.out.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["communicate", "seed", "env_steps", "return_mean"])
        for seed in range(100, 100 + asked.seeds):
            for communicate in (True, False):
                points = curve(seed, communicate, asked.budget)
                table.writerows([str(communicate).lower(), seed, steps, round(mean, 3)] for steps, mean in points)
                file.flush()
                last[communicate].append(points[-1][1])
    for communicate, values in last.items():
        half = STUDENT[len(values)] * stdev(values) / sqrt(len(values))
        print(f"communicate={str(communicate).lower()}: {fmean(values):.2f} ± {half:.2f} ({len(values)} seeds, 95 %)")


if __name__ == "__main__":
    main()
