"""Runs a logged episode again, from its seed and actions.

ganglion replay runs/cartpole-dqn-20260101-120000            what is logged: episodes that failed, env.log_episodes
ganglion replay runs/cartpole-dqn-20260101-120000 3-17       episode 17 of slot 3
"""

from __future__ import annotations

import argparse
import faulthandler
from contextlib import suppress
from typing import TYPE_CHECKING

from ganglion.cli.arguments import existing, import_argument, run_argument
from ganglion.cli.text import clipped, say, table
from ganglion.errors import UserError, nearest
from ganglion.record.stores import Where, names

if TYPE_CHECKING:
    from ganglion.runtime.replay_failure import SavedFailure


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("episode", nargs="?", metavar="EPISODE", help="SLOT-EPISODE, as listed without it")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    files = [folder / sort / name for sort in ("episodes", "failures") for name in sorted(names(folder / sort))]
    logged = {path.name.removesuffix(".json"): path for path in files if path.name.endswith(".json")}
    if args.episode is None:
        rows = [listed(path) for path in logged.values()]
        say(*(table(rows) or [f"No environment has failed in {folder}, and no other episode was logged."]))
        return 0
    if args.episode not in logged:
        accepted = ", ".join(logged) or "none: nothing has failed or was logged"
        raise UserError(f"no episode {args.episode!r} is logged. Accepted: {accepted}.{nearest(args.episode, logged)}")
    from ganglion.config.files import import_module

    for module in args.imports:
        import_module(module)
    from ganglion.runtime.replay_failure import read_report

    return again(folder, read_report(logged[args.episode]))


def listed(path: Where) -> tuple[str, ...]:
    from ganglion.runtime.replay_failure import read_report

    try:
        told = read_report(path)
    except UserError as error:  # the others can be replayed
        return path.name.removesuffix(".json"), "damaged", "", clipped(str(error).splitlines()[0], 200)
    step = "" if told.step is None else f"step {told.step}"
    what = clipped(told.error.splitlines()[0], 200) if told.error else f"return {told.total:g}"
    return told.name, told.kind, step, what


def again(folder: Where, told: SavedFailure) -> int:
    """Replays in this process, so that a debugger can follow."""
    from ganglion.runtime.replay_failure import replay

    with suppress(OSError):  # stderr may be no file
        faulthandler.enable()  # a crash of the whole process leaves its stack, too
    length = len(told.actions[0]) if told.acting and told.actions else 0
    say(f"Slot {told.slot}, episode {told.episode}, seed {told.seed}, {length} actions.")
    now = replay(folder, told)
    say(*table([("Return", f"{now.total:g}"), ("Length", str(now.length))]))
    if now.traceback is not None:
        say("It failed again:" if told.error else "It failed:", now.traceback.rstrip())
    elif told.error:
        ended = " It ended by itself." if now.ended else ""
        say(f"It did not fail again.{ended} Then it had been: {told.error}")
    else:
        same = now.total == told.total and now.length == told.step
        say("The same as then." if same else f"Then it had been {told.total:g} in {told.step} steps.")
    return 0
