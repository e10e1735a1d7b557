"""Runs and their ejected files beside each other, in turns: are their curves the same in distribution?

    python -m benchmarks.ejected --jobs ppo td3 --seeds 5       docs/results/ejected.md

Each seed is trained by Ganglion and by the file that `ganglion eject` writes of the same run; both are evaluated at the
same steps. Compared is the mean of a curve: its difference, with the 95 % bootstrap interval over seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import ganglion
from ganglion.analysis import statistics
from ganglion.analysis.runs import read_run
from ganglion.eject.write import one_file

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
JOBS = {
    "ppo": ("cartpole/ppo-quick", ["train={budget: 30720 steps, target: null}", "env.vector=false", "env.workers=0"]),
    "dqn": ("cartpole/dqn", ["train.budget=12k steps"]),
    "td3": ("pendulum/td3", ["train.budget=5k steps"]),
    "sac": ("pendulum/sac", ["train.budget=5k steps"]),
}
EVERY = {"ppo": "eval={every: 5120 steps, episodes: 10}"}
OTHERS = "eval={every: 1k steps, episodes: 5}"


def ours(words: list[str], preset: str, folder: Path) -> list[float]:
    run = ganglion.Run.create(ganglion.load_config(preset, [*words, f"run.dir={folder}", "log.writers=[jsonl]"]))
    for _ in run.stream():
        pass
    run.close()
    return read_run(str(folder)).curve()[1]


def theirs(words: list[str], preset: str, folder: Path) -> list[float]:
    file = folder / "one.py"
    file.write_text(one_file(ganglion.load_config(preset, words)))
    out = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True).stdout
    return [float(line.split(",")[1]) for line in out.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    file = RESULTS / "ejected.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    for job in args.jobs:
        preset, words = JOBS[job]
        kept[job] = {"preset": preset, "settings": words, "run": [], "file": []}
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                given = [*words, EVERY.get(job, OTHERS), f"run.seed={seed}", "save.every=never"]
                kept[job]["run"].append(ours(given, preset, Path(folder) / "run"))
                kept[job]["file"].append(theirs(given, preset, Path(folder)))
            print(job, seed, kept[job]["run"][-1], kept[job]["file"][-1], flush=True)
        file.write_text(json.dumps(kept, indent=1) + "\n")
        (RESULTS / "ejected.md").write_text(table(kept))


def table(kept: dict[str, dict[str, list[list[float]]]]) -> str:
    lines = ["# Ejected files beside their runs", "", "`python -m benchmarks.ejected`; curves in `ejected.json`.", ""]
    lines += [
        "| run | seeds | mean of the curve: run | file | difference | 95 % | last: run | file |",
        "|" + "---|" * 8,
    ]
    for one in kept.values():
        means = [np.array([[np.mean(curve)] for curve in one[who]]) for who in ("run", "file")]
        low, high = statistics.interval(lambda a, b: float(b.mean() - a.mean()), *means)
        ends = [np.mean([curve[-1] for curve in one[who]]) for who in ("run", "file")]
        a, b = (float(x.mean()) for x in means)
        numbers = f"{a:.1f} | {b:.1f} | {b - a:+.1f} | {low:+.1f} to {high:+.1f} | {ends[0]:.1f} | {ends[1]:.1f}"
        lines.append(f"| {one['preset']}, {one['settings'][0]} | {len(one['run'])} | {numbers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
