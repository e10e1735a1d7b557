"""Two learners, in two processes, that make each update together, each from rows of its own.

    python examples/two_learners.py

Each is a Trainer with an environment of its own. The first one would have the run's folder, its evaluations and its
checkpoints (`run.trainer = GroupTrainer(run.trainer, group)`); the others only take part.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import ganglion
from ganglion.fleet.learner_group import Group, GroupTrainer, seed_of
from ganglion.runtime.build import build

SETTINGS = [
    "algo={kind: impala, lr: 3e-3, horizon: 16, epochs: 2, normalise_advantage: true, net: {hidden: [32]}}",
    "env={kind: toy, id: identity, size: 4, slots: 4}",
    "train.budget=6k steps",  # of both together
    "eval.episodes=32",
]


def learner(rank: int, size: int, meet: Path) -> str:
    """One of them; all meet at a file."""
    config = ganglion.load_config(None, [*SETTINGS, f"run.seed={seed_of(0, rank)}"])
    with Group(rank, size, meet) as group:
        trainer = GroupTrainer(build(config), group)
        for _ in trainer():
            pass
    numbers = trainer.run_evaluate()[1]
    weight = float(sum(x.double().sum() for x in trainer.learner.agent.command(trainer.at).tensors.values()))
    return (
        f"{trainer.at.env_steps} steps, {trainer.at.opt_steps} updates, weights {weight}, {numbers['eval/return_mean']}"
    )


def main(size: int = 2) -> list[str]:
    """What each of them says at the end."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, __file__]
        started = [
            subprocess.Popen([*command, str(rank), str(size), f"{folder}/meet"], stdout=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        said = [process.communicate(timeout=300)[0].strip() for process in started]
    assert all(process.returncode == 0 for process in started)
    return said


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(learner(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
    else:
        for line in main():
            print(line)
