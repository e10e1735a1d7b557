"""Compiles what a run will need, on a throw-away copy:

python -m ganglion.runtime.precompile CONFIG PATHS [MODULE ...] [--parent PID]

PATHS, as JSON, are where the run finds modules.
"""

from __future__ import annotations

import argparse
import json
import os
import signal

from ganglion.processes import search, with_parent


def main(config: str, paths: list[str], modules: list[str], parent: int) -> None:
    """Trains a copy of the run, compiled from the start, until each function has been compiled once."""
    with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        return
    os.nice(5)
    from ganglion.config.files import import_module, load

    search(paths)
    for module in modules:
        import_module(module)
    from ganglion.runtime.build import build

    trainer = build(load(config, ["run.fast=compile", "run.mode=local", "data.path=null"]))
    wanted = 1 + trainer.learner.agent.algo.late_every
    for log in trainer():
        if log.at.opt_steps >= wanted:
            break
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("paths", type=json.loads)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="a process that it ends with")
    asked = parser.parse_args()
    main(asked.config, asked.paths, asked.modules, asked.parent)
