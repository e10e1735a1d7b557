"""Shows a run and its curve, or a config with every setting resolved, as a run would use and keep it.

ganglion show cartpole/dqn algo.lr=3e-4 > my.yaml               a file to start from
ganglion show cartpole/dqn --explain                            what each setting means
ganglion show runs/cartpole-dqn-20260101-120000                 how the run does, also while it trains
ganglion show runs/cartpole-dqn-20260101-120000 --metric learn/loss
ganglion show runs/cartpole-dqn-20260101-120000 --config        its config
"""

from __future__ import annotations

import argparse
import re
import shutil
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

from ganglion.cli.arguments import asked_cases, config_arguments, existing
from ganglion.cli.text import say, table
from ganglion.errors import UserError, nearest

if TYPE_CHECKING:
    from ganglion.config import RunConfig


WIDEST = 20  # characters of a value
URL = re.compile(r"[A-Za-z0-9+.-]+://")


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    parser.add_argument("--config", action="store_true", help="of a run: its settings")
    parser.add_argument("--explain", action="store_true", help="of a config: what each setting means")
    parser.add_argument("--metric", default="eval/return_mean", help="of a run: what to plot (eval/return_mean)")
    parser.add_argument("--plot", metavar="FILE", help="of a run: the curve as .png, .svg or .pdf (extra: plot)")


def run(args: argparse.Namespace) -> int:
    place = args.words[0] if len(args.words) == 1 and not args.config else ""
    if URL.match(place) or isfile(Path(place) / "config.yaml"):
        return show_run(place, args.metric, args.plot)
    if args.words and isfile(Path(args.words[0]) / "config.yaml"):
        args.words[0] = str(Path(args.words[0]) / "config.yaml")
    configs = stored(args.words, args.imports) if args.words and URL.match(args.words[0]) else asked_cases(args)
    from ganglion.config.files import dump

    for number, config in enumerate(configs, 1):
        if args.explain:
            say(*explained(config))
            continue
        case = [f"# {number} of {len(configs)}: {config.title}"] if len(configs) > 1 else []
        say(*case, dump(config).rstrip("\n"))
    return 0


def show_run(place: str, metric: str, picture: str | None) -> int:
    """What a run has reached so far."""
    from ganglion.analysis.runs import EVAL, TRAIN, RunGroup, read_run
    from ganglion.analysis.terminal_plot import number, plot

    found = read_run(place)
    if metric not in found.metrics():
        if metric != EVAL:
            raise UserError(f"--metric: {metric[:80]!r} was not recorded.{nearest(metric, found.metrics())}")
        metric = TRAIN  # not evaluated yet
    if picture:
        from ganglion.analysis.pictures import curves

        curves([RunGroup(found.name, [found])], metric, picture)
    width, height = shutil.get_terminal_size()
    steps, values = found.curve(metric)
    budget = found.config.get("train", {}).get("budget", "?")
    rows: list[tuple[str, ...]] = [
        ("Run", f"{found.name}: {found.config.get('algo', {}).get('kind', '?')} on {found.task}, seed {found.seed}"),
        ("Trained", f"{found.steps:,} env steps of {budget}, {found.updates:,} updates, {found.seconds:,.1f} s"),
    ]
    if values:
        rows.append((metric, f"last {number(values[-1])}, best {number(max(values))}, {len(values)} values"))
    if found.broken:
        rows.append(("Damaged", f"{found.broken} lines of metrics could not be read"))
    say(
        *table(rows),
        "",
        *plot([(steps, values)], width=min(width, 120), height=max(6, min(14, height - 8)), x="env steps"),
    )
    return 0


def stored(words: list[str], imports: list[str]) -> list[RunConfig]:
    """The config of a run by URL."""
    from ganglion.config.files import import_module
    from ganglion.runtime.run import load_config

    for module in imports:
        import_module(module)
    return [load_config(existing(words[0]), words[1:])]


def explained(config: RunConfig) -> list[str]:
    """A line for each setting: its value, and what the source says of it."""
    from ganglion.config.explain import meanings

    return table([(path, value[:WIDEST], why) for path, value, why in meanings(config)])
