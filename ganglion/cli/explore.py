"""Explores for a run whose learner is another process, through a folder or URL that both can access.

ganglion train cartpole/ppo --mode files fleet.path=/shared/fleet     the learner, anywhere
ganglion explore /shared/fleet                                        as many explorers as you like, anywhere
ganglion explore s3://bucket/fleet --import my_module

Explorers may come, leave (Ctrl-C) and die at any time; those beyond fleet.explorers stand by to replace them.
"""

from __future__ import annotations

import argparse

from ganglion.cli.arguments import import_argument
from ganglion.cli.text import hear_warnings, say
from ganglion.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the run's fleet.path: a folder or URL")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="seconds to wait for a run to begin (60)")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.wait <= 1e9:
        raise UserError(f"--wait should be 0 or more seconds, got {args.wait}.")
    hear_warnings()
    from ganglion.cli.training_loop import listening
    from ganglion.config.files import import_module
    from ganglion.fleet.files_explorer import explore

    for module in args.imports:
        import_module(module)
    with listening() as asked:
        explore(args.path, args.wait, say, lambda: asked.signal is not None)
    return 128 + asked.signal if asked.signal is not None else 0
