"""How long the zoo's fastest preset takes from the start of its process to a solved CartPole, seed by seed.

    python benchmarks/solved.py [--seeds 5]

Wall-clock time of the whole command, imports and evaluations included; the saved agent is then scored on 100 episodes
of its own. Time the process spent computing is beside it: on a busy machine the difference is waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

PRESET, SOLVED, LIMIT = "cartpole/ppo-quick", 475.0, 20.0


def ganglion(*arguments: str) -> str:
    command = [sys.executable, "-m", "ganglion", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure(seed: int) -> bool:
    """Trains one seed and says how it went; whether it was solved in time."""
    with TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        ganglion("train", PRESET, f"run.seed={seed}", f"run.dir={run}", "run.device=cpu", "log.writers=[jsonl]")
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        mean = json.loads(ganglion("eval", run, "--episodes", "100", "--json"))["mean"]
    good = mean >= SOLVED and wall < LIMIT
    verdict = "" if good else "   NOT solved in time"
    print(f"seed {seed}   {wall:5.1f} s wall   {busy:5.1f} s computing   return {mean:.1f}{verdict}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N-1 (5)")
    count = parser.parse_args().seeds
    load = os.getloadavg()[0]
    print(f"{PRESET}: process start to {SOLVED:g}; {os.cpu_count()} cores, load {load:.1f} before")
    good = sum([measure(seed) for seed in range(count)])
    print(f"{good} of {count} within {LIMIT:g} s")
    return 0 if good == count else 1


if __name__ == "__main__":
    sys.exit(main())
