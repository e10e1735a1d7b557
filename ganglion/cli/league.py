"""Shows a league: its players, payoff, ratings over time, who plays whom, lineage.

ganglion league runs/rock_paper_scissors-league-20260101-120000
ganglion league runs/rock_paper_scissors-league-20260101-120000 --out league.png      payoff and ratings as a picture
"""

from __future__ import annotations

import argparse
from shutil import get_terminal_size

from ganglion.cli.arguments import existing, import_argument, load_torch, run_argument
from ganglion.cli.text import say, table


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("--out", metavar="FILE", help="a .png or .svg file for payoff and ratings")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    load_torch()
    from ganglion.config.files import import_module
    from ganglion.league import report
    from ganglion.league.saved_league import SavedLeague, records

    for module in args.imports:
        import_module(module)
    saved, logs = SavedLeague(folder), records(folder)
    league = saved.league
    saved.close()
    if args.out:
        report.draw(league, logs, args.out)
        say(f"payoff and ratings in {args.out}")
    elif args.json:
        import json

        tables = {"names": league.payoff.names, "win_rates": league.payoff.table().tolist()}
        tables |= {"games": league.payoff.met.tolist(), "elo": league.ratings.elo}
        say(json.dumps(tables))
    else:
        width = get_terminal_size().columns - 2
        for title, rows in report.text(league, logs, width):
            lines = table(rows) if rows and type(rows[0]) is tuple else rows
            say(title, *(f"  {line}"[: width + 2] for line in lines), "")
    return 0
