"""From process start to a solved CartPole, against peers with their published settings, seed by seed in turns.

    python -m benchmarks.peers.solved [--seeds 10] [--against sb3 cleanrl tianshou] [--peers DIR]

A side is timed from the start of its process until it stops training, because an evaluation of 20 deterministic
episodes reached 475; its model then plays 100 fresh ones, whose mean is beside the time. Ganglion's time is that of the
whole command, until its process has ended and its checkpoint is on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.install import DEFAULT, ROOT
from benchmarks.versus import machine, median, ratio, table

PRESET, SOLVED = "cartpole/ppo-quick", 475.0
AROUND = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Trial(NamedTuple):
    """Seconds until a side said it was trained, and the mean return of 100 fresh episodes."""

    seconds: float
    score: float


def ours(seed: int, more: list[str]) -> Trial:
    with tempfile.TemporaryDirectory() as folder:
        where = f"{folder}/run"
        settings = [f"run.seed={seed}", f"run.dir={where}", "run.device=cpu", "log.writers=[jsonl]", *more]
        began = time.monotonic()
        call("train", PRESET, *settings)
        seconds = time.monotonic() - began
        told = json.loads(call("eval", where, "--episodes", "100", "--json"))
    return Trial(seconds, told["mean"])


def call(*arguments: str) -> str:
    command = [sys.executable, "-m", "ganglion", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=AROUND).stdout


def theirs(peer: str, seed: int, peers: Path) -> Trial:
    more = [str(peers / "cleanrl-src")] if peer == "cleanrl" else []
    command = [str(peers / peer / "bin" / "python"), "-m", "benchmarks.peers.solved_side", peer, str(seed), *more]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/stderr", "w+") as noise:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=noise, text=True, env=AROUND, cwd=folder)
        assert child.stdout is not None
        line = child.stdout.readline().strip()
        seconds = time.monotonic() - began
        if line != "trained":
            child.wait()
            noise.seek(0)
            raise RuntimeError(f"{peer} said {line!r}:\n{noise.read()[-2000:]}")
        score = float(child.stdout.readline())
        child.wait()
    return Trial(seconds, score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--against", nargs="*", default=["sb3", "cleanrl", "tianshou"])
    parser.add_argument("--peers", type=Path, default=DEFAULT)
    parser.add_argument("--ours", nargs="*", default=[], metavar="PATH=VALUE", help="settings of Ganglion's side")
    given = parser.parse_args()
    print(machine("torch", "gymnasium"), flush=True)
    trials: dict[str, list[Trial]] = {name: [] for name in ("ganglion", *given.against)}
    for seed in range(given.seeds):
        order = list(trials) if seed % 2 == 0 else list(reversed(trials))
        for name in order:
            trial = ours(seed, given.ours) if name == "ganglion" else theirs(name, seed, given.peers.resolve())
            trials[name].append(trial)
            print(f"seed {seed}   {name:9}   {trial.seconds:6.1f} s   return {trial.score:.1f}", flush=True)
    rows = []
    for name, made in trials.items():
        good = sum(t.score >= SOLVED for t in made)
        pairs = [t.seconds / o.seconds for t, o in zip(made, trials["ganglion"], strict=True)]
        rows.append([name, f"{median(t.seconds for t in made):.1f}", f"{good} of {len(made)}", ratio(pairs)])
    print(table(["system", "median seconds", "475 over 100 fresh episodes", "times Ganglion's seconds"], rows))


if __name__ == "__main__":
    main()
