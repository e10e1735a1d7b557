"""The learner is killed again and again: does a disturbed run end where an undisturbed one does?

    python benchmarks/killed.py                                      5 seeds of each, a kill every 30 s for 5 minutes
    python benchmarks/killed.py --jobs 4                             four runs side by side
    python benchmarks/killed.py --seeds 1 --every 8 --settings train.budget=60k\\ steps     a look at whether it works

`ganglion launch local --restarts` resumes a run from its newest checkpoint. Both runs of a seed are scored by the agent
at their end over 100 fresh episodes. Told are the scores, and the 95 % interval of the mean difference (Student's t).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
AROUND = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 9: 2.26}  # two-sided 95 %, by degrees of freedom


def run(folder: str, seed: int, every: float | None, args: argparse.Namespace) -> tuple[float, int]:
    """Its score, and how often its learner was killed."""
    words = ["launch", "local", args.preset, "--mode", "ray", "--explorers", "2", "--restarts", "1000"]
    given = [f"run.dir={folder}/run", f"run.seed={seed}", f"save.every={args.save}", "log=[jsonl]", *args.settings]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "ganglion", *words, *given]
    launcher = subprocess.Popen(command, env=AROUND, **quiet)  # type: ignore[call-overload]
    kills, due = 0, time.monotonic() + (every or 0)
    while launcher.poll() is None:
        time.sleep(0.1)
        if every and time.monotonic() >= due:
            for pid in learners(launcher.pid):
                os.kill(pid, signal.SIGKILL)
                kills += 1
            due += every
    if launcher.returncode:
        raise RuntimeError(f"the run ended with code {launcher.returncode}")
    ask = [
        sys.executable,
        "-m",
        "ganglion",
        "eval",
        f"{folder}/run",
        "--last",
        "--episodes",
        "100",
        "--seed",
        "5000000",
        "--json",
    ]
    told = subprocess.run(ask, env=AROUND, capture_output=True, text=True, check=True).stdout
    return float(json.loads(told)["mean"]), kills


def learners(launcher: int) -> list[int]:
    """Children of the launcher that train."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if parent == launcher and ("ganglion train" in line or "ganglion resume" in line):
            found.append(int(path.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument("--preset", default="cartpole/impala")
    parser.add_argument("--save", default="10k steps")
    parser.add_argument("--settings", nargs="*", default=["train.budget=300 s"], metavar="PATH=VALUE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (1)")
    args = parser.parse_args()
    differences, scores = [], []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        ways = {"calm": None, "killed": args.every}
        runs = [
            [pool.submit(run, f"{folder}/{seed}-{name}", seed, every, args) for name, every in ways.items()]
            for seed in range(args.first, args.first + args.seeds)
        ]
        for seed, (one, two) in enumerate(runs, args.first):
            (calm, _), (killed, kills) = one.result(), two.result()
            differences.append(killed - calm)
            scores.append(calm)
            print(f"seed {seed}: undisturbed {calm:.1f}; killed {kills} times {killed:.1f}", flush=True)
    mean, n = fmean(differences), len(differences)
    if n > 1:
        half = STUDENT.get(n - 1, 2.0) * (sum((d - mean) ** 2 for d in differences) / (n - 1) / n) ** 0.5
        between, width = f"[{mean - half:.1f}, {mean + half:.1f}]", 2 * half / fmean(scores)
        print(f"difference {mean:.1f}, 95 % interval {between}, {width:.2%} of")
        print("the score wide (aims: 0 inside, narrower than 10 %)")


if __name__ == "__main__":
    main()
