"""Compiles what a run will need, on a throw-away copy: `python -m ganglion.runtime.precompile CONFIG [MODULE ...]`."""

from __future__ import annotations

import importlib
import os
import sys


def main(config: str, modules: list[str]) -> None:
    """Trains a copy of the run, compiled from the start, until each function has been compiled once."""
    os.nice(5)
    for module in modules:
        importlib.import_module(module)
    from ganglion.config import load
    from ganglion.runtime.build import build

    trainer = build(load(config, ["run.fast=compile", "run.mode=local"]))
    wanted = 1 + trainer.learner.agent.algo.late_every
    parent = os.getppid()
    for log in trainer():
        if log.at.opt_steps >= wanted or os.getppid() != parent:
            break
    trainer.explorer.env.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
