"""Writes the algorithm of a run as one readable file that needs torch and gymnasium only.

ganglion eject runs/cartpole-ppo-20260101-120000 > one.py      then: python one.py
ganglion eject cartpole/ppo algo.gamma=0.95 > one.py           of a preset or file, with settings
"""

from __future__ import annotations

import argparse
from os.path import isfile
from pathlib import Path

from ganglion.cli.arguments import asked_cases, config_arguments, existing
from ganglion.cli.text import say
from ganglion.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from ganglion.eject.write import one_file

    place = args.words[0] if args.words else ""
    if "://" in place or isfile(Path(place) / "config.yaml"):
        from ganglion.runtime.run import load_config

        configs = [load_config(existing(place), args.words[1:])]
    else:
        configs = asked_cases(args)
    if len(configs) != 1:
        raise UserError(f"eject: one run makes one file, these are {len(configs)}.")
    say(one_file(configs[0]).rstrip("\n"))
    return 0
