"""Two revisions of Ganglion against each other, in turns: is the new one as fast as the old one?

    git worktree add /tmp/old REVISION
    python benchmarks/revisions.py --old /tmp/old                      every workload, eager
    python benchmarks/revisions.py --old /tmp/old dqn sac --fast eager compile
    python benchmarks/revisions.py --old /tmp/old collect-gpu learn-gpu --fast graph

Presets as `ganglion train` runs them, in steady state, without evaluations and checkpoints. Each side is a process that
imports its own tree; they take turns A B B A (`versus`). A ratio above 1 says that the new one is faster; on a machine
that is not quiet only the one by processor time means something. `--old` of the new tree itself is the control.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
sys.path.append(str(HERE))  # after the tree that PYTHONPATH names: a side imports that one

from benchmarks import versus  # noqa: E402


class Work(NamedTuple):
    """What is run, and the env steps of a turn; the updates that follow them are counted."""

    words: list[str]
    steps: int
    warm: int = 100  # updates before the first turn
    first: int = 0  # env steps before it


MANY = 2_048  # slots on a GPU
PENDULUM = ["algo=sac", f"env={{kind: torch, id: pendulum, slots: {MANY}}}", "algo.replay.capacity=1M"]
REPLAY = "algo.limiter.warmup=500"
WORKS = {
    "dqn": Work(["cartpole/dqn", "algo.epsilon=0.05", REPLAY], 2_000),
    "ppo": Work(["cartpole/ppo"], 10_240),
    "sac": Work(["pendulum/sac", REPLAY], 600),
    "td3": Work(["pendulum/td3", REPLAY], 800),
    "sac-256": Work(["pendulum/sac", REPLAY, "algo.net.hidden=[256, 256]"], 200, 50),
    "td3-256": Work(["pendulum/td3", REPLAY, "algo.net.hidden=[256, 256]"], 300, 50),
    "impala": Work(["cartpole/impala"], 16_384),
    "dqn-plain": Work(["algo=dqn", "env={kind: gym, id: CartPole-v1, slots: 1}", REPLAY, "algo.epsilon=0.05"], 4_000),
    "ppo-torch": Work(["algo=ppo", "env={kind: torch, id: cartpole, slots: 8}"], 8_192),
    "sac-torch": Work(["algo=sac", "env={kind: torch, id: pendulum, slots: 8}", REPLAY], 400),
}
ON_GPU = {  # collecting without updates; with one for as many env steps as there are slots
    "collect-gpu": Work([*PENDULUM, "algo.limiter.warmup=100000M"], 200 * MANY, 0, 50 * MANY),
    "learn-gpu": Work([*PENDULUM, f"algo.limiter={{opt_interval: {MANY}, warmup: {8 * MANY}}}"], 200 * MANY),
}
ALIKE = ["train.budget=100000M steps", "eval=never", "save=never", "log.writers=[jsonl]"]


def side(name: str, fast: str) -> None:
    """Serves one revision: whichever is imported."""
    import torch

    from ganglion.runtime.run import Run

    try:
        from ganglion.config.files import load
    except ImportError:  # a revision of before settings and files parted
        from ganglion.config import load

    words, _, warm, first = {**WORKS, **ON_GPU}[name]
    head, rest = (None, words) if "=" in words[0] else (words[0], words[1:])
    alike = [*ALIKE, f"run.device={'cuda' if name in ON_GPU else 'cpu'}", f"run.fast={fast}"]
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(load(head, [*rest, *alike, f"run.dir={folder}/run"]))
        trainer, stream = run.trainer, run.stream()
        while trainer.at.opt_steps < warm or trainer.at.env_steps < first:
            next(stream)

        def work(steps: int) -> versus.Counts:
            before = trainer.at
            while trainer.at.env_steps < before.env_steps + steps:
                next(stream)
            if name in ON_GPU:
                torch.cuda.synchronize()
            at = trainer.at
            return {"env_steps": at.env_steps - before.env_steps, "updates": at.opt_steps - before.opt_steps}

        versus.serve(work)


def worker(tree: Path, name: str, fast: str) -> versus.Worker:
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), name, "--side", "--fast", fast]
    return versus.Worker(f"{name} of {tree}", command, env)


def measure(name: str, fast: str, given: argparse.Namespace) -> versus.Outcome:
    """Both sides get ready at the same time: on a GPU that is the most of it."""
    with ExitStack() as open_sides, ThreadPoolExecutor() as pool:
        new, old = pool.map(lambda tree: worker(tree, name, fast), (HERE, given.old.resolve()))
        open_sides.enter_context(new), open_sides.enter_context(old)
        steps = int({**WORKS, **ON_GPU}[name].steps * given.share)
        return versus.compare(new, old, steps, given.pairs, within=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = f"of {', '.join(WORKS)}, all unless named; on a GPU {', '.join(ON_GPU)}"
    parser.add_argument("works", nargs="*", help=known)
    parser.add_argument("--old", type=Path, default=HERE, help="the tree of the other revision")
    parser.add_argument("--fast", nargs="*", default=["eager"], help="values of run.fast")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of a turn")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given.works[0], given.fast[0])
        return
    print(versus.machine("torch", "gymnasium"), flush=True)
    began = time.monotonic()
    for fast in given.fast:
        for name in given.works or WORKS:
            try:
                outcome = measure(name, fast, given)
            except (RuntimeError, AssertionError) as problem:
                print(f"{name} {fast}: {problem}", flush=True)
                continue
            rates = f"{versus.number(outcome.a)} against {versus.number(outcome.b)} env steps/s"
            print(f"{name:12} {fast:8} {outcome.ratio}, cpu {outcome.cpu} ({rates})", flush=True)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
