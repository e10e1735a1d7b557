"""Says what is in a dataset: episodes, returns, lengths, actions, how random they were, and broken rows.

ganglion data data/pendulum
ganglion data data/pendulum --out pendulum.png    as histograms
ganglion data data/pendulum --json
"""

from __future__ import annotations

import argparse

from ganglion.cli.arguments import load_torch
from ganglion.cli.text import say


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="DATA", help="a folder that `ganglion record` wrote, Minari, .hdf5, .npz, ...")
    parser.add_argument("--out", metavar="FILE", help="a picture of the same, .png or .svg")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    load_torch()
    from ganglion.data.report import draw, lines, plain, report

    found = report(args.path)
    if args.json:
        import json

        say(json.dumps(plain(found)))
    else:
        say(*lines(found))
    if args.out:
        draw(found, args.out)
        say(f"wrote {args.out}")
    return 0
