"""Runs a logged episode again, from its seed and actions.

ganglion replay runs/cartpole-dqn-20260101-120000            the episodes that failed
ganglion replay runs/cartpole-dqn-20260101-120000 3-17       episode 17 of slot 3
"""

from __future__ import annotations

import argparse
import faulthandler
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ganglion.cli.asked import existing, import_argument, run_argument
from ganglion.cli.text import say, table
from ganglion.errors import UserError, nearest


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("episode", nargs="?", metavar="EPISODE", help="SLOT-EPISODE, as listed without it")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    logged = {path.stem: path for path in sorted((folder / "failures").glob("*.json"))}
    if args.episode is None:
        rows = [listed(json.loads(path.read_text(encoding="utf-8"))) for path in logged.values()]
        say(*(table(rows) or [f"No environment has failed in {folder}."]))
        return 0
    if args.episode not in logged:
        accepted = ", ".join(logged) or "none: nothing has failed"
        raise UserError(f"no episode {args.episode!r} is logged. Accepted: {accepted}.{nearest(args.episode, logged)}")
    from ganglion.config.files import import_module

    for module in args.imports:
        import_module(module)
    return again(folder, json.loads(logged[args.episode].read_text(encoding="utf-8")))


def listed(failure: dict[str, Any]) -> tuple[str, ...]:
    step = "" if failure["step"] is None else f"step {failure['step']}"
    return failure["name"], failure["kind"], step, failure["error"].splitlines()[0]


def again(folder: Path, failure: dict[str, Any]) -> int:
    """Replays in this process, so that a debugger can follow."""
    if failure["actions"] is None:
        raise UserError(f"{failure['name']} cannot be replayed: its actions were not kept.")
    from ganglion.runtime.replay import replay

    with suppress(OSError):  # stderr may be no file
        faulthandler.enable()  # a crash of the whole process leaves its stack, too
    length = len(failure["actions"][0]) if failure["acting"] else 0
    say(f"Slot {failure['slot']}, episode {failure['episode']}, seed {failure['seed']}, {length} actions.")
    told = replay(folder, failure)
    say(*table([("Return", f"{told.total:g}"), ("Length", str(told.length))]))
    if told.traceback is None:
        ended = " It ended by itself." if told.ended else ""
        say(f"It did not fail again.{ended} Then it had been: {failure['error']}")
        return 0
    say("It failed again:", told.traceback.rstrip())
    return 0
