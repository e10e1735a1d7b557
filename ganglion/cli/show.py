"""Shows a config with every setting resolved, as a run would use and keep it.

ganglion show cartpole/dqn algo.lr=3e-4 > my.yaml      a file to start from
ganglion show runs/cartpole-dqn-20260101-120000        the config of a run
"""

from __future__ import annotations

import argparse
import re
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

from ganglion.cli.arguments import asked_cases, config_arguments, existing
from ganglion.cli.text import say

if TYPE_CHECKING:
    from ganglion.config import RunConfig


URL = re.compile(r"[A-Za-z0-9+.-]+://")


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.words and isfile(Path(args.words[0]) / "config.yaml"):
        args.words[0] = str(Path(args.words[0]) / "config.yaml")
    configs = stored(args.words, args.imports) if args.words and URL.match(args.words[0]) else asked_cases(args)
    from ganglion.config.files import dump

    for number, config in enumerate(configs, 1):
        case = [f"# {number} of {len(configs)}: {config.title}"] if len(configs) > 1 else []
        say(*case, dump(config).rstrip("\n"))
    return 0


def stored(words: list[str], imports: list[str]) -> list[RunConfig]:
    """The config of a run by URL."""
    from ganglion.config.files import import_module
    from ganglion.runtime.run import load_config

    for module in imports:
        import_module(module)
    return [load_config(existing(words[0]), words[1:])]
