"""Says what is wrong with a run, why, and which setting to change.

ganglion doctor runs/cartpole-dqn-20260101-120000             what it recorded, and how its agent plays
ganglion doctor runs/cartpole-dqn-20260101-120000 --no-play   what it recorded alone
"""

from __future__ import annotations

import argparse
import json
import shutil
from textwrap import wrap
from typing import TYPE_CHECKING

from ganglion.cli.arguments import import_argument, load_torch, run_argument
from ganglion.cli.text import say
from ganglion.errors import UserError

if TYPE_CHECKING:
    from ganglion.doctor.examine import Examined
    from ganglion.record.health import HealthFinding, History


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("--no-play", action="store_true", help="do not play with the saved agent")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    load_torch()
    from ganglion.analysis.runs import read_run
    from ganglion.config.files import import_module
    from ganglion.record.health import RULES, History

    for module in args.imports:
        import_module(module)
    found = read_run(args.folder)
    history = History(found.events, found.config)
    told = [one for rule in RULES for one in rule(history)]
    notes = [f"{found.broken} lines of metrics could not be read"] if found.broken else []
    notes += [] if found.events else ["nothing has been recorded yet"]
    played = examined(args.folder, history, notes) if not args.no_play else None
    told += played.findings if played else []
    if args.json:
        numbers = dict(played.numbers) if played else {}
        say(json.dumps({"findings": [one._asdict() for one in told], "numbers": numbers, "notes": notes}))
        return 0
    width = min(shutil.get_terminal_size().columns, 120)
    count = f"{len(told)} finding{'s' if len(told) != 1 else ''}" if told else "nothing found"
    say(f"{found.name}: {count} after {found.steps:,} env steps, {found.updates:,} updates.")
    for number, one in enumerate(told, 1):
        say(*shown(number, one, width))
    if played and played.numbers:
        say("", "Played: " + ", ".join(f"{name} {value:.4g}" for name, value in played.numbers.items()))
    if notes:
        say("", *(line for note in notes for line in wrap(f"Note: {note}.", width)))
    return 0


def examined(folder: str, history: History, notes: list[str]) -> Examined | None:
    """The saved agent's examination; where there is none to be had, a note why."""
    from ganglion.doctor.examine import examine
    from ganglion.runtime.run import load_trained

    try:
        return examine(load_trained(folder, "last"), history)
    except UserError as error:
        notes.append(f"the agent was not examined: {str(error).rstrip('.')}")
        return None


def shown(number: int, found: HealthFinding, width: int) -> list[str]:
    lines = ["", *wrap(f"{number}. {found.what} [{found.rule}]", width, subsequent_indent="   ")]
    for name, text in (("seen", found.evidence), ("cause", found.cause), ("change", found.change)):
        lines += wrap(f"   {name + ':':<8}{text}", width, subsequent_indent=" " * 11)
    return lines
