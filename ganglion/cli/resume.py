"""Continues a run from its newest checkpoint, exactly where it stopped.

Settings may be changed where the saved state still fits them, such as a longer budget:

  ganglion resume runs/cartpole-dqn-20260101-120000 train.budget="100k steps"
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from ganglion.cli.arguments import existing, import_argument, load_torch, run_argument
from ganglion.cli.text import hear_warnings, say


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("words", nargs="*", default=[], metavar="path=value", help="settings to change")
    import_argument(parser)


def begin_early(file: Path, changed: Sequence[str]) -> None:
    """Ray starts while torch is imported; not where settings are changed that may say which Ray."""
    from ganglion.config.files import read_raw
    from ganglion.fleet.fork_server import begin_fork_server
    from ganglion.fleet.ray_cluster import ClusterSettings, begin_ray

    try:
        said = read_raw(file)
        mode, fleet = said["run"]["mode"], said["fleet"]
        site = ClusterSettings(fleet["address"], fleet["host"], fleet["explorers"] + fleet["learners"] - 1)
    except Exception:  # whoever reads all of it says what is wrong
        return
    if mode == "ray" and not any(word.startswith(("run.mode", "fleet")) for word in changed):
        if not site.address:
            begin_fork_server()
        begin_ray(site)


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    hear_warnings()
    if isinstance(folder, Path):
        begin_early(folder / "config.yaml", args.words)
    load_torch()
    from ganglion.cli.training_loop import drive
    from ganglion.config.files import import_module
    from ganglion.runtime.run import Run

    for module in args.imports:
        import_module(module)
    run = Run.open(folder, args.words)
    if run.trainer.finished():
        budget, again = run.cfg.train.budget, f"ganglion resume {shlex.quote(str(folder))}"
        say(f'Its budget of {budget} is spent: nothing is left to train. For more:  {again} train.budget="..."')
    return drive(run, args.imports)
