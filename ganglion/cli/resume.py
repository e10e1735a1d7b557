"""Continues a run from its newest checkpoint, exactly where it stopped.

Settings may be changed where the saved state still fits them, such as a longer budget:

  ganglion resume runs/cartpole-dqn-20260101-120000 train.budget="100k steps"
"""

from __future__ import annotations

import argparse
import logging

from ganglion.cli.asked import existing, import_argument, run_argument


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("words", nargs="*", default=[], metavar="path=value", help="settings to change")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    logging.basicConfig(format="ganglion: %(message)s")
    from ganglion.cli.drive import drive
    from ganglion.config.files import import_module
    from ganglion.runtime.run import Run

    for module in args.imports:
        import_module(module)
    return drive(Run.open(folder, args.words), args.imports)
