"""Compares runs: several seeds of one config are one group.

ganglion compare runs/a-seed=0 runs/a-seed=1 runs/b-seed=0 runs/b-seed=1
ganglion compare runs/study                            every run below a folder, grouped by their settings
ganglion compare runs/study --metric episode/return --which mean --json
"""

from __future__ import annotations

import argparse
import json
import shutil
from typing import TYPE_CHECKING

from ganglion.cli.arguments import import_argument
from ganglion.cli.text import say, table

if TYPE_CHECKING:
    from ganglion.analysis.compare import Comparison

SHOWN = 20  # settings that differ


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("places", nargs="+", metavar="RUN|FOLDER", help="runs, or folders with runs in them")
    parser.add_argument("--metric", default="eval/return_mean", help="what to compare (eval/return_mean)")
    parser.add_argument("--which", choices=("last", "best", "mean"), default="last", help="value of each run (last)")
    parser.add_argument("--plot", metavar="FILE", help="curves with intervals as .png, .svg or .pdf (extra: plot)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ganglion.analysis.compare import compare
    from ganglion.analysis.runs import find_runs, grouped

    runs = find_runs(args.places)
    found = compare(runs, args.metric, args.which)
    if args.plot:
        from ganglion.analysis.pictures import curves

        curves(grouped(runs), args.metric, args.plot)
    say(*([json.dumps(plain(found))] if args.json else lines(found, shutil.get_terminal_size().columns)))
    return 0


def lines(found: Comparison, width: int) -> list[str]:
    several = len(found.tasks) > 1
    scale = " scaled to 0..1 within each task" if several else ""
    head = f"{found.which} {found.metric} on {', '.join(found.tasks)}{scale}; 95 % stratified bootstrap intervals"
    rows: list[tuple[str, ...]] = [("group", "runs", "mean", "IQM", "IQM 95 %", "median", "env steps", "steps/s")]
    for one in found.groups:
        iqm, low, high = one.figures["iqm"]
        told = f"{low:.4g} to {high:.4g}" if low == low else "-"
        numbers = (f"{one.figures['mean'][0]:.4g}", f"{iqm:.4g}", told, f"{one.figures['median'][0]:.4g}")
        rows.append((one.name, str(one.runs), *numbers, f"{one.steps:,}", f"{one.speed:,.0f}"))
    out = [head, "", *(line[:width] for line in table(rows))]
    if found.pairs:
        out += ["", f"Is a run of {found.groups[0].name} better than one of ...?"]
        out += table([(f"  {p.second}", f"{100 * p.chance:.0f} %", percent(*p.interval)) for p in found.pairs])
        out += ["", *(p.verdict + "." for p in found.pairs)]
    if found.apart:
        out += ["", "Settings that differ:"]
        differ = [
            (f"  {path}", *("-" if v is None else str(v)[:40] for v in values))
            for path, values in list(found.apart.items())[:SHOWN]
        ]
        out += [line[:width] for line in table([("  setting", *(one.name[:40] for one in found.groups)), *differ])]
        out += [f"  ... and {len(found.apart) - SHOWN} more"] if len(found.apart) > SHOWN else []
    return out + (["", *(f"Note: {note}." for note in found.notes)] if found.notes else [])


def percent(low: float, high: float) -> str:
    return f"({100 * low:.0f} to {100 * high:.0f})" if low == low else "(no interval)"


def plain(found: Comparison) -> dict[str, object]:
    """For programs; NaN, which JSON lacks, is null."""
    from ganglion.analysis.compare import profiles

    def numbers(values: tuple[float, ...]) -> list[float | None]:
        return [value if value == value else None for value in values]

    groups = [
        {
            "name": one.name,
            "runs": one.runs,
            "scores": one.scores.tolist(),
            "env_steps_per_s": one.speed,
            **{name: numbers(figure) for name, figure in one.figures.items()},
        }
        for one in found.groups
    ]
    pairs = [
        {
            "first": p.first,
            "second": p.second,
            "probability_of_improvement": numbers((p.chance, *p.interval)),
            "iqm_difference": numbers((p.gap, *p.gap_interval)),
            "verdict": p.verdict,
        }
        for p in found.pairs
    ]
    levels, shares = profiles(found)
    above = {name: {"share": share.tolist(), "low": numbers(tuple(low)), "high": numbers(tuple(high))}
             for name, (share, low, high) in shares.items()}  # fmt: skip
    told = {"metric": found.metric, "which": found.which, "tasks": list(found.tasks), "notes": list(found.notes)}
    profile = {"levels": levels.tolist(), **above}
    return {**told, "groups": groups, "pairs": pairs, "differences": dict(found.apart), "profile": profile}
