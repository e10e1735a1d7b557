"""DQN and PPO computed by JAX, beside torch's: scores on CartPole-v1, and processor time per action and per update.

python -m benchmarks.backends learn --out docs/results/backends-learning.json
python -m benchmarks.backends speed --out docs/results/backends-speed.txt
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import ganglion
from ganglion.runtime.build import build

NET = {"ppo": "algo.net.hidden=[64,64]", "dqn": "algo.net.hidden=[128,128]"}
SETTINGS = {  # those of the presets cartpole/ppo and cartpole/dqn
    "ppo": [
        "algo.lr={kind: linear, start: 1e-3, end: 0.0}", "algo.clip={kind: linear, start: 0.2, end: 0.0}",
        "algo.gamma=0.98", "algo.lam=0.8", "algo.horizon=32", "algo.epochs=20", "algo.minibatches=1",
        "algo.entropy=0.0", "env={id: CartPole-v1, slots: 8, workers: 0}", "train.budget=100k steps",
        "eval={every: 10k steps, episodes: 20}",
    ],
    "dqn": [
        "algo.lr={kind: linear, start: 1e-3, end: 0.0}", "algo.gamma=0.99", "algo.n_step=3", "algo.target_every=50",
        "algo.epsilon={kind: linear, start: 1.0, end: 0.04, until: 0.16}",
        "algo.replay={kind: replay, capacity: 100k, batch: 128}", "algo.limiter={opt_interval: 2, warmup: 1000}",
        "env={id: CartPole-v1, slots: 4, workers: 0}", "train.budget=50k steps",
        "eval={every: 5k steps, episodes: 20, slots: 20}",
    ],
}  # fmt: skip


def config(kind: str, *more: str) -> Any:
    plain = kind.removesuffix("_jax")
    net = [NET[plain]] if plain == kind else []
    return ganglion.load_config(None, [f"algo={kind}", *SETTINGS[plain], *net, "log=[]", "run.fast=eager", *more])


def learn(kinds: list[str], seeds: int, out: Path) -> None:
    """Each run's evaluations, added to what is there already."""
    found = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(seeds):
        for kind in kinds:
            if f"{kind}/{seed}" in found:
                continue
            with tempfile.TemporaryDirectory() as folder:
                run = ganglion.Run.create(config(kind, f"run.seed={seed}", f"run.dir={folder}/run"))
                began = time.process_time()
                curve = [
                    [log.at.env_steps, round(log.metrics["eval/return_mean"], 1)]
                    for log in run.stream()
                    if log.kind == "evaluate"
                ]
                seconds = time.process_time() - began
                run.close()
            found[f"{kind}/{seed}"] = {"curve": curve, "processor_seconds": round(seconds, 1)}
            print(kind, seed, curve[-1], max(score for _, score in curve), f"{seconds:.0f} s", flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n")


def speed(out: Path) -> None:
    """Processor time of one side and of the other in turns; medians of 9 blocks."""
    lines = ["# python -m benchmarks.backends speed; us of processor time, medians of 9 blocks of 100, in turns"]
    for plain in ("ppo", "dqn"):
        sides = {kind: work(kind) for kind in (plain, f"{plain}_jax")}
        for what in ("act", "update"):
            took: dict[str, list[float]] = {kind: [] for kind in sides}
            for _ in range(9):
                for kind, both in sides.items():
                    began = time.process_time()
                    for _ in range(100):
                        both[what]()
                    took[kind].append((time.process_time() - began) / 100 * 1e6)
            here, there = (sorted(took[kind]) for kind in sides)
            ratio = median(a / b for a, b in zip(took[plain], took[f"{plain}_jax"]))
            cells = (f"{median(x):7.0f} ({x[2]:.0f} to {x[-3]:.0f})" for x in (here, there))
            lines.append(f"{plain:<5}{what:<8}torch {next(cells)}   jax {next(cells)}   torch / jax {ratio:.2f}")
    print("\n".join(lines))
    out.write_text("\n".join(lines) + "\n")


def work(kind: str) -> dict[str, Any]:
    """An action of all slots, and an update of a run that has begun."""
    torch.set_num_threads(1)
    trainer = build(config(kind, "run.seed=0"))
    for _ in trainer():
        if trainer.at.opt_steps > 20:
            break
    agent, learner, seat = trainer.learner.agent, trainer.learner, trainer.source.seats[0]
    obs, knobs, at = trainer.source.now.obs, agent.knobs(trainer.at), trainer.at
    noise = seat.noise.next()
    if learner.mini is None:
        learner.begin(at)
    mini, rows = learner.mini, () if learner.table is None else learner.table[0]
    none = learner.stream.noise(agent.draws.learn, learner.deep, learner.wide)
    return {
        "act": lambda: agent.act(obs, seat.past, knobs, noise),
        "update": lambda: agent.learn(mini, none, at, rows, learner.kind),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("learn", "speed"))
    parser.add_argument("--kinds", nargs="+", default=["ppo_jax", "dqn_jax"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "learn":
        learn(options.kinds, options.seeds, options.out)
    else:
        speed(options.out)


if __name__ == "__main__":
    main()
