"""Tuning measured: a preset whose learning rate is a thousand times too low, by trials and in populations.

python -m benchmarks.tune OUT [--budget 24k] [--workers 2]

OUT/results.csv: `tuned` is the preset as it is, on the seeds on which winners are confirmed; `tpe` 30 trials, the
winner on fresh seeds; `pbt`, `pb2` and `random` have eight members or trials, and so equal env steps: the best of their
last evaluations. What is there is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path

from ganglion.analysis.runs import EVAL, read_run
from ganglion.tuning.population import Population
from ganglion.tuning.study import QUESTION, Study

PRESET, WRONG = "cartpole/ppo-quick", "algo.lr.start=6e-6"
FIRST = 100  # seeds from here on: winners are confirmed on the same as the tuned preset


def study(folder: Path, *words: str) -> Study:
    """Runs it, or goes on with it."""
    begun = (folder / QUESTION).exists()
    command = [str(folder)] if begun else [PRESET, *words, "--study", str(folder)]
    subprocess.run([sys.executable, "-m", "ganglion", "tune", *command, *LOAD], check=True)
    return Study.open(folder, {})


LOAD: list[str] = []


def fresh(found: Study, name: str) -> list[float]:
    """The last scores of runs on fresh seeds."""
    return [read_run(str(path)).curve(EVAL)[1][-1] for path in sorted((found.folder / "runs").glob(f"{name}*/seed=*"))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", default="24k")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    LOAD[:] = ["--workers", args.workers]
    usual = ["--budget", args.budget, "train.target=null", "eval={every: 4k steps, episodes: 10}"]
    rows: list[tuple[str, int, int, float]] = []
    tuned = study(args.out / "tuned", *usual, "--method", "random", "--trials", "1", "--seed", "0")
    rows += [("tuned", 0, 1, score) for score in fresh(tuned, "winner")]
    found = study(args.out / "tpe", *usual, WRONG, "--trials", "30", "--seed", "0")
    for name in ("winner", "before"):
        rows += [(f"tpe {name}", 0, len(found.trials), score) for score in fresh(found, name)]
    write(args.out, rows)
    for k in range(args.repeats):
        seed = ["--seed", str(FIRST * k)]
        for method in ("pbt", "random", "pb2"):
            words = [*usual, WRONG, "--method", method, "--trials", "8", "--confirm", "0", *seed]
            found = study(args.out / f"{method}-{k}", *words)
            if method == "random":
                scores = [trial.score for trial in found.trials if trial.score is not None]
            else:
                best = Population.open(found).best()
                scores = [best.score] if best is not None and best.score is not None else []
            rows.append((method, k, 8, max(scores)))
            write(args.out, rows)


def write(out: Path, rows: list[tuple[str, int, int, float]]) -> None:
    with (out / "results.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("what", "repeat", "runs", "score"), *rows])


if __name__ == "__main__":
    main()
