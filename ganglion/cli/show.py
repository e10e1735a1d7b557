"""Shows a config with every setting resolved, as a run would use and keep it.

ganglion show cartpole/dqn algo.lr=3e-4 > my.yaml      a file to start from
ganglion show runs/cartpole-dqn-20260101-120000        the config of a run
"""

from __future__ import annotations

import argparse
from os.path import isfile
from pathlib import Path

from ganglion.cli.asked import asked_cases, config_arguments
from ganglion.cli.text import say


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.words and isfile(Path(args.words[0]) / "config.yaml"):
        args.words[0] = str(Path(args.words[0]) / "config.yaml")
    configs = asked_cases(args)
    from ganglion.config import dump

    for number, config in enumerate(configs, 1):
        case = [f"# {number} of {len(configs)}: {config.title}"] if len(configs) > 1 else []
        say(*case, dump(config).rstrip("\n"))
    return 0
