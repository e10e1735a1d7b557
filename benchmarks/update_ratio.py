"""What an update of Rainbow costs beside one of DQN, on a CPU with one thread: sampling, learning, priorities.

    python benchmarks/update_ratio.py                     every case
    python benchmarks/update_ratio.py vector --fast compile

Both learn from replays of random rows of the same size, in one process and in turns A B B A; what counts is processor
time, which other programs on the machine do not add to. Aim: an update of Rainbow costs at most 1.6 of DQN.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import versus
from benchmarks.updates import Flicker

AIM = 1.6
REPLAY = ["algo.replay.batch={batch}", "algo.replay.capacity={rows}", "algo.limiter.warmup=1000"]
PIXELS = ["env={kind: gym, id: Flicker-v0, slots: 8, workers: 0}", "algo.net.hidden=[512]"]
CASES: dict[str, tuple[list[str], int, int]] = {  # settings of both, rows of a batch, rows of a replay
    "vector": (["env={kind: torch, id: cartpole, slots: 8}", "algo.net.hidden=[128, 128]"], 128, 10_000),
    "vector-512": (["env={kind: torch, id: cartpole, slots: 8}", "algo.net.hidden=[512, 512]"], 128, 10_000),
    "pixels": (PIXELS, 32, 2_000),
}
SIDES = {"rainbow": ["algo=rainbow"], "dqn": ["algo=dqn", "algo.replay.kind=prioritised"], "dqn-uniform": ["algo=dqn"]}


def made(side: str, case: str, fast: str) -> Any:
    """A trainer whose replay has rows to learn from, and which has learned a little."""
    from ganglion import load_config
    from ganglion.runtime.build import build

    shared, batch, rows = CASES[case]
    replay = [text.format(batch=batch, rows=rows) for text in REPLAY]
    run = ["run.device=cpu", "run.threads=1", f"run.fast={fast}", "eval=never", "train.budget=1000M steps"]
    trainer = build(load_config(None, [*SIDES[side], *shared, *replay, *run]))
    for _ in trainer():
        if trainer.at.opt_steps >= 20 and trainer.at.env_steps >= min(rows, 4_000):
            break
    return trainer


def updates(trainer: Any, count: int) -> float:
    """Microseconds of processor time per update."""
    began, learner = time.process_time(), trainer.learner
    for _ in range(count):
        trainer.at = learner.step(trainer.at).at
    return (time.process_time() - began) / count * 1e6


def look(case: str, other: str, fast: str, rounds: int, calls: int) -> list[str]:
    sides = {name: made(name, case, fast) for name in ("rainbow", other)}
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1, rounds):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            took = updates(sides[name], calls)
            spent[name] += [took] if turn >= 0 else []  # the first round only warms up
    got = versus.ratio([a / b for a, b in zip(*spent.values(), strict=True)])
    aim = f"<= {AIM} {'reached' if got.high <= AIM else 'MISSED'}"
    each = [f"{median(values):,.0f}" for values in spent.values()]
    return [f"{case}, {fast}", f"rainbow / {other}", *each, f"{got.mean:.2f} [{got.low:.2f}, {got.high:.2f}]", aim]


def main() -> int:
    import gymnasium
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (all)")
    parser.add_argument("--fast", nargs="*", default=["eager"], help="eager, compile")
    parser.add_argument("--other", nargs="*", default=["dqn", "dqn-uniform"], help="beside what")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=40)
    asked = parser.parse_args()
    gymnasium.register("Flicker-v0", Flicker, max_episode_steps=1_000)
    rows = []
    for case in asked.cases or CASES:
        for fast in asked.fast:
            for other in asked.other:
                rows.append(look(case, other, fast, asked.rounds, asked.calls))
                print(*rows[-1], flush=True)
    print(versus.machine("ganglion", "torch", "numpy"))
    print(versus.table(["case", "updates", "rainbow, us", "the other, us", "ratio", "aim"], rows))
    return 1 if any("MISSED" in row[-1] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
