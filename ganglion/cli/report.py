"""Writes a report of runs: one page of HTML with everything in it, or Markdown; or the text of a model card.

ganglion report runs/cartpole-dqn-20260101-120000                        report.html
ganglion report runs/study --out study.md                                every run below a folder
ganglion report runs/cartpole-dqn-20260101-120000 --card --out README.md a card for the Hugging Face hub
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ganglion.cli.arguments import import_argument
from ganglion.cli.text import say
from ganglion.errors import UserError, nearest

ENDINGS = (".html", ".md")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("places", nargs="+", metavar="RUN|FOLDER", help="runs, or folders with runs in them")
    parser.add_argument("--out", metavar="FILE", help="a .html or .md file (report.html)")
    parser.add_argument("--metric", metavar="NAME", help="what to compare and to draw first (eval/return_mean)")
    parser.add_argument("--card", action="store_true", help="of one run: the text of a model card, printed or in FILE")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ganglion.analysis.report import card, facts, html, markdown
    from ganglion.analysis.runs import find_runs

    out = Path(args.out or "report.html")
    if out.suffix not in ENDINGS:
        raise UserError(f"--out: {str(out)[:200]!r} should end in .html or .md.")
    runs = find_runs(args.places)
    if args.card:
        if len(runs) != 1:
            raise UserError(f"--card: one run has a card, these are {len(runs)}.")
        text = card(runs[0])
        if args.out is None:
            say(text.rstrip("\n"))
            return 0
    else:
        known = sorted({name for one in runs for name in one.metrics()})
        if args.metric is not None and args.metric not in known:
            raise UserError(f"--metric: {args.metric[:80]!r} was not recorded.{nearest(args.metric, known)}")
        found = facts(runs, args.metric)
        text = html(found) if out.suffix == ".html" else markdown(found)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: {str(out)[:200]} cannot be written: {error.strerror}.") from error
    say(f"{out}: {len(runs)} run{'s' if len(runs) != 1 else ''}, {len(text.encode()):,} bytes")
    return 0
