"""Measures how fast a config trains here, where the time goes, and how far it is from the machine's limits.

ganglion bench cartpole/ppo
ganglion bench cartpole/ppo run.fast=compile env.slots=16 --seconds 20 --json

Nothing is saved. Evaluation and recording are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from ganglion.cli.arguments import asked_cases, config_arguments
from ganglion.cli.text import say, table
from ganglion.errors import UserError

if TYPE_CHECKING:
    from ganglion.config import RunConfig
    from ganglion.runtime.bench import BenchResult


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of measured training (10)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    if not 0.1 <= args.seconds <= 86_400:
        raise UserError(f"--seconds should be between 0.1 and 86400, got {args.seconds}.")
    configs = asked_cases(args)
    from ganglion.runtime.bench import bench

    for config in configs:
        result = bench(config, args.seconds)
        say(json.dumps(plain(config, result)) if args.json else "\n".join(lines(config, result)))
    return 0


def plain(config: RunConfig, result: BenchResult) -> dict[str, object]:
    limits = {name: {"steps": limit.rate, "about": limit.about} for name, limit in result.limits.items()}
    shares = dict(result.shares._asdict())
    return {**result._asdict(), "name": config.title, "shares": shares, "limits": limits}


def lines(config: RunConfig, result: BenchResult) -> list[str]:
    """Rates, shares, limits and the bottleneck."""
    s = result.shares
    where = f"{config.run.threads} thread{'s' if config.run.threads > 1 else ''}, {config.run.fast}"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(s._fields[:4], s))
    rows: list[tuple[str, ...]] = [("alone", "env steps/s", "reached", "")]
    rows += [
        (name, f"{rate:,.0f}", f"{result.steps / rate:.0%}", about) for name, (rate, about) in result.limits.items()
    ]
    return [
        f"{config.title}: {config.env.slots} slots, {where}, {result.seconds:.1f} s of training",
        f"{result.steps:,.0f} env steps/s, {result.updates:,.0f} updates/s",
        f"{shares} (storing {s.store:.0%}, sampling {s.sample:.0%})",
        "",
        *(f"  {line}" for line in table(rows)),
        "",
        f"Bottleneck: {result.advice}",
        *busy(),
    ]


def busy() -> list[str]:
    """A word where others use the machine too."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return [f"The machine is busy (load {load:.1f}, {cores} cores): alone it would be faster."] if load > cores else []
