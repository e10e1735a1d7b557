"""Shows runs as a live page in a browser on this machine: curves, settings, health, videos, load.

ganglion board                    every run below runs/
ganglion board runs/study --port 8800
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from ganglion.cli.arguments import import_argument
from ganglion.cli.text import say
from ganglion.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where runs are (runs)")
    parser.add_argument("--port", type=int, default=8765, metavar="N", help="on 127.0.0.1; 0: any that is free (8765)")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ganglion.board.server import BoardServer

    folder = Path(args.folder)
    if not folder.is_dir():
        raise UserError(f"DIR: {args.folder[:200]!r} is not a folder. The board reads runs on a disk.")
    if not 0 <= args.port <= 65_535:
        raise UserError(f"--port should be between 0 and 65535, got {args.port}.")
    with BoardServer(folder, args.port) as board:
        say(f"{board.url} shows the runs in {folder}. Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):
            board.serve_forever()
    return 0
