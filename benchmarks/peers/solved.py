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
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.install import DEFAULT, ROOT
from benchmarks.versus import machine, median, ratio, table

PRESET, SOLVED = "cartpole/ppo-quick", 475.0
BARRED = "PYTHONDONTWRITEBYTECODE"  # what is installed has its bytecode; a checkout keeps its own at its first run
KEPT = {name: value for name, value in os.environ.items() if name != BARRED}
AROUND = {**KEPT, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Trial(NamedTuple):
    """Seconds until a side was trained, by the clock and by the processor, and the mean of 100 fresh episodes."""

    seconds: float
    cpu: float
    score: float


def ours(seed: int, more: list[str]) -> Trial:
    with tempfile.TemporaryDirectory() as folder:
        where = f"{folder}/run"
        settings = [f"run.seed={seed}", f"run.dir={where}", "run.device=cpu", "log.writers=[jsonl]", *more]
        began, used = time.monotonic(), spent()
        call("train", PRESET, *settings)
        seconds, cpu = time.monotonic() - began, spent() - used
        told = json.loads(call("eval", where, "--episodes", "100", "--json"))
    return Trial(seconds, cpu, told["mean"])


def spent() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
        if not line.startswith("trained"):
            child.wait()
            noise.seek(0)
            raise RuntimeError(f"{peer} said {line!r}:\n{noise.read()[-2000:]}")
        score = float(child.stdout.readline())
        child.wait()
    return Trial(seconds, float(line.split()[1]), score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--against", nargs="*", default=["sb3", "cleanrl", "tianshou"])
    parser.add_argument("--peers", type=Path, default=DEFAULT)
    parser.add_argument("--ours", nargs="*", default=[], metavar="PATH=VALUE", help="settings of Ganglion's side")
    given = parser.parse_args()
    print(machine("torch", "gymnasium"), flush=True)
    trials: dict[str, list[Trial]] = {name: [] for name in ("ganglion", *given.against)}
    for seed in range(-1, given.seeds):
        order = list(trials) if seed % 2 == 0 else list(reversed(trials))
        for name in order:
            known = abs(seed)  # -1: seed 1 once more, not counted, so that files and bytecode are there
            trial = ours(known, given.ours) if name == "ganglion" else theirs(name, known, given.peers.resolve())
            if seed < 0:
                continue
            trials[name].append(trial)
            times = f"{trial.seconds:6.1f} s   {trial.cpu:6.1f} s computing"
            print(f"seed {seed}   {name:9}   {times}   return {trial.score:.1f}", flush=True)
    rows = []
    for name, made in trials.items():
        good = sum(t.score >= SOLVED for t in made)
        both = list(zip(made, trials["ganglion"], strict=True))
        times = [f"{median(x):.1f}" for x in ([t.seconds for t in made], [t.cpu for t in made])]
        ratios = [ratio([t.seconds / o.seconds for t, o in both]), ratio([t.cpu / o.cpu for t, o in both])]
        rows.append([name, *times, f"{good} of {len(made)}", *ratios])
    head = ["system", "seconds (median)", "of the processor", "475 over 100 fresh episodes"]
    print(table([*head, "times Ganglion's seconds", "times Ganglion's processor seconds"], rows))


if __name__ == "__main__":
    main()
