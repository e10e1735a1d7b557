"""Gradient steps per CPU second of offline algorithms, beside d3rlpy, in turns: batch 256, obs 17, actions 6.

    python -m benchmarks.offline_speed --peer PYTHON     an interpreter that has d3rlpy; without one: ours alone

Each side is a process of its own; sampling a batch is part of a step. Ours: eager, and compiled as long runs are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

ROWS, OBS, ACTIONS, BATCH = 20_000, 17, 6, 256
STEPS = {"iql": 300, "td3_bc": 300, "cql": 60}
ONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def ours(algo: str, compiled: bool, steps: int) -> float:
    import torch

    from ganglion import registry
    from ganglion.buffers.limiter import Ready
    from ganglion.core import Box, EnvSpec, Past, Progress
    from ganglion.data.dataset import Dataset, episode, joined
    from ganglion.data.loader import Loader
    from ganglion.fast import Compiled
    from ganglion.runtime.agent import Agent
    from ganglion.runtime.engine import Engine
    from ganglion.runtime.learner import Learner

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cpu")
    spec = EnvSpec(Box((OBS,)), Box((ACTIONS,), low=(-1.0,), high=(1.0,)))
    parts = [
        episode(torch.randn(1_001, OBS), 2 * torch.rand(1_000, ACTIONS) - 1, torch.randn(1_000), False, {})
        for _ in range(ROWS // 1_000)
    ]
    rows = joined([Dataset(spec, part) for part in parts]).rows
    cfg: Any = registry.lookup("algo", algo).model_validate(
        {"replay": {"capacity": len(rows.reward) + 4, "batch": BATCH}}
    )
    agent = Agent(cfg.build(spec), Engine(device, Compiled if compiled else None))
    loader = Loader(cfg.recipe(spec).buffer.build(spec, device), 0, device, 0)
    loader.push(rows, (rows.obs[-1], Past((), torch.ones(1, 1, dtype=torch.bool))), Progress())
    learner, at = Learner(agent, loader, Ready(), 0), Progress()
    for _ in range(20):
        at = learner.step(at).at
    began = time.process_time()
    for _ in range(steps):
        at = learner.step(at).at
    return steps / (time.process_time() - began)


PEER = """
import json, sys, time, logging
import numpy as np, torch
torch.set_num_threads(1)
import d3rlpy
from d3rlpy.dataset import MDPDataset
logging.disable(50)
name, steps, rows, obs, actions, batch = sys.argv[1], *map(int, sys.argv[2:])
kinds = {"iql": d3rlpy.algos.IQLConfig, "td3_bc": d3rlpy.algos.TD3PlusBCConfig, "cql": d3rlpy.algos.CQLConfig}
draw = np.random.default_rng(0)
cut = np.zeros(rows)
cut[999::1000] = 1
data = MDPDataset(draw.normal(size=(rows, obs)).astype("f4"), draw.uniform(-1, 1, (rows, actions)).astype("f4"),
                  draw.normal(size=rows).astype("f4"), np.zeros(rows), cut)
algo = kinds[name](batch_size=batch).create(device="cpu:0")
algo.build_with_dataset(data)
def go(count):
    for _ in range(count):
        algo.update(data.sample_transition_batch(batch))
go(20)
began = time.process_time()
go(steps)
print(json.dumps(steps / (time.process_time() - began)))
"""


def peer(python: str, algo: str, steps: int) -> float:
    numbers = [str(n) for n in (steps, ROWS, OBS, ACTIONS, BATCH)]
    out = subprocess.run(
        [python, "-c", PEER, algo, *numbers], capture_output=True, text=True, env={**os.environ, **ONE}
    )
    if out.returncode:
        raise SystemExit(out.stderr[-2_000:])
    return float(json.loads(out.stdout.strip().splitlines()[-1]))


def own(algo: str, compiled: bool, steps: int) -> float:
    asked = [sys.executable, "-m", "benchmarks.offline_speed", "--side", algo, "--steps", str(steps)]
    asked += ["--compiled"] if compiled else []
    out = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, **ONE}, check=True)
    return float(json.loads(out.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--algo", nargs="*", default=list(STEPS))
    parser.add_argument("--steps", type=int, help="by default 300, and 60 of cql")
    parser.add_argument("--side")
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(ours(args.side, args.compiled, args.steps)))
        return
    for algo in args.algo:
        steps = args.steps or STEPS[algo]
        found: dict[str, list[float]] = {"eager": [], "compiled": [], "d3rlpy": []}
        for _ in range(args.times):
            found["eager"].append(own(algo, False, steps))
            found["compiled"].append(own(algo, True, steps))
            if args.peer:
                found["d3rlpy"].append(peer(args.peer, algo, steps))
        told = {side: round(median(x), 1) for side, x in found.items() if x}
        ratio = told["compiled"] / told["d3rlpy"] if args.peer else float("nan")
        print(f"{algo:<8} {json.dumps(told)}  {ratio:.1f} times as many", flush=True)


if __name__ == "__main__":
    main()
