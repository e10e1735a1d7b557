"""One update on a GPU, captured against eager: the same code, the same rows, in turns.

    python benchmarks/updates.py                    every case
    python benchmarks/updates.py sac ppo-pixels     some

Aims: SAC at batch 256 at most 1/8 of the eager time, PPO with a Nature CNN at minibatch 256 at most 1/4.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import versus


class Case(NamedTuple):
    """What is updated, and the most it may take, as a share of the eager time."""

    words: list[str]
    aim: float | None


BOX = "env={kind: torch, id: pendulum, slots: 8}"
REPLAY = ["algo.replay.batch=256", "algo.net.hidden=[256, 256]", "algo.limiter.warmup=500"]
PIXELS = ["env={kind: gym, id: Flicker-v0, slots: 8, workers: 0}", "algo.net.hidden=[512]"]
CASES = {
    "sac": Case(["algo=sac", BOX, *REPLAY], 1 / 8),
    "td3": Case(["algo=td3", BOX, *REPLAY], None),
    "dqn": Case(["algo=dqn", "env={kind: torch, id: cartpole, slots: 8}", "algo.replay.batch=128"], None),
    "ppo": Case(["algo=ppo", "env={kind: torch, id: cartpole, slots: 8}"], None),
    "ppo-pixels": Case(["algo=ppo", *PIXELS, "algo.shared=true"], 1 / 4),
    "ppo-pixels-bfloat16": Case(["algo=ppo", *PIXELS, "algo.shared=true", "algo.net.precision=bfloat16"], None),
}
WORDS = ["run.device=cuda", "run.fast=graph", "eval=never", "train.budget=1000M steps"]


class Flicker(gymnasium.Env[Any, int]):
    """Four frames of noise, as large as Atari's."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space: Any = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (4, 84, 84), np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.integers(0, 256, (4, 84, 84), np.uint8), float(action), False, False, {}


def look(case: Case, rounds: int, calls: int) -> list[str]:
    """Medians of both, in microseconds, and their ratio."""
    import torch

    from ganglion import load_config
    from ganglion.runtime.build import build

    trainer = build(load_config(None, [*case.words, *WORDS]))
    agent, asked = trainer.learner.agent, list[Any]()
    quick = agent._update

    def watch(*args: Any) -> Any:
        asked[:] = args
        return quick(*args)

    agent._update = watch
    events = trainer()
    while not asked or trainer.at.opt_steps < 4:
        next(events)
    forms = {"eager": agent.update, "captured": quick}
    spent: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(rounds):
        for name in list(forms) if turn % 2 else list(forms)[::-1]:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                forms[name](*asked)
            torch.cuda.synchronize()
            spent[name].append((time.perf_counter() - began) / calls * 1e6)
    got = versus.ratio([a / b for a, b in zip(spent["captured"], spent["eager"], strict=True)])
    aim = "" if case.aim is None else f"<= {case.aim:.3f} {'reached' if got.high <= case.aim else 'MISSED'}"
    each = [f"{median(spent[name]):,.0f}" for name in forms]
    return [*each, f"{got.mean:.3f} [{got.low:.3f}, {got.high:.3f}]", aim]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (all)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=100)
    asked = parser.parse_args()
    gymnasium.register("Flicker-v0", Flicker, max_episode_steps=1_000)
    rows = []
    for name in asked.cases or CASES:
        rows.append([name, *look(CASES[name], asked.rounds, asked.calls)])
        print(*rows[-1], flush=True)
    print(versus.machine("ganglion", "torch", "numpy"))
    print(versus.table(["update", "eager, us", "captured, us", "ratio", "aim"], rows))
    return 1 if any("MISSED" in row[-1] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
