"""Compiles what a run will need, on a throw-away copy: `python -m ganglion.runtime.precompile CONFIG PATHS MODULE ...`.

PATHS, as JSON, are where the run finds modules.
"""

from __future__ import annotations

import json
import os
import sys

from ganglion.processes import search


def main(config: str, paths: list[str], modules: list[str]) -> None:
    """Trains a copy of the run, compiled from the start, until each function has been compiled once."""
    os.nice(5)
    from ganglion.config.files import import_module, load

    search(paths)
    for module in modules:
        import_module(module)
    from ganglion.runtime.build import build

    trainer = build(load(config, ["run.fast=compile", "run.mode=local"]))
    wanted = 1 + trainer.learner.agent.algo.late_every
    parent = os.getppid()
    for log in trainer():
        if log.at.opt_steps >= wanted or os.getppid() != parent:
            break
    trainer.explorer.env.close()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
