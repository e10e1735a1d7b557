"""Scores a saved agent: deterministic, on seeds of its own.

ganglion eval runs/cartpole-dqn-20260101-120000 --episodes 100 --json
ganglion eval runs/cartpole-dqn-20260101-120000 env.time_limit=1000
ganglion eval runs/cartpole-dqn-20260101-120000 --data data/cartpole      without an environment: by rows of others
"""

from __future__ import annotations

import argparse
from typing import Any

from ganglion.cli.arguments import existing, import_argument, load_torch, run_argument
from ganglion.cli.text import say, table
from ganglion.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("words", nargs="*", default=[], metavar="path=value", help="of the run, changed")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--seed", type=int, default=1_000_000, metavar="N", help="of the first episode (1000000)")
    which_arguments(parser)
    parser.add_argument("--data", metavar="DATA", help="estimate its discounted value from a dataset instead")
    parser.add_argument("--gamma", type=float, default=0.99, metavar="G", help="with --data: the discount (0.99)")
    parser.add_argument("--stochastic", action="store_true", help="with --data: its actions are drawn, as in training")
    parser.add_argument("--updates", type=int, default=10_000, metavar="N", help="with --data: of the fit (10000)")
    parser.add_argument("--against", metavar="PLAYER", help="of a league: games of --player against this one")
    parser.add_argument("--player", metavar="PLAYER", help="of a league: who is scored (its first player)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    import_argument(parser)


def which_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", dest="which", action="store_const", const="best", default="best", help="(default)")
    which.add_argument("--last", dest="which", action="store_const", const="last", help="the newest checkpoint")


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    if not 1 <= args.episodes <= 1_000_000:
        raise UserError(f"--episodes should be between 1 and 1000000, got {args.episodes}.")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed should be between 0 and {2**31 - 1}, got {args.seed}.")
    if args.words and (args.data or args.against or args.player):
        raise UserError("eval: settings are changed for episodes of a run alone, without --data, --against, --player.")
    load_torch()
    from ganglion.config.files import import_module
    from ganglion.runtime.run import evaluate, load_config

    for module in args.imports:
        import_module(module)
    if args.against or args.player or load_config(folder).league is not None:
        from ganglion.league.saved_league import score_games

        result = score_games(folder, args.player, args.against, args.episodes, args.seed)
    else:
        result = (
            evaluate(folder, args.episodes, args.seed, args.which, args.words) if args.data is None else from_data(args)
        )
    if args.json:
        import json

        say(json.dumps(dict(result)))
        return 0
    names = {"interval": "95 % interval", "fqe": "fitted Q", "wis": "weighted sampling", "effective": "its episodes"}
    say(*table([(names.get(name, name), shown(value)) for name, value in result.items() if name != "returns"]))
    return 0


def from_data(args: argparse.Namespace) -> dict[str, Any]:
    """The same from rows that others collected."""
    if not 0 <= args.gamma < 1:
        raise UserError(f"--gamma should be between 0 and 1, and below it, got {args.gamma}.")
    if not 1 <= args.updates <= 100_000_000:
        raise UserError(f"--updates should be between 1 and 100000000, got {args.updates}.")
    from ganglion.data.evaluation import Settings
    from ganglion.data.evaluation import from_data as estimate

    s = Settings(gamma=args.gamma, stochastic=args.stochastic, updates=args.updates, seed=args.seed % 2**31)
    found = estimate(args.folder, args.data, args.which, s)
    return found if args.json else {name: interval(x) if type(x) is tuple else x for name, x in told(found).items()}


def told(found: dict[str, Any]) -> dict[str, Any]:
    """Estimates as plain tuples of three."""
    return {name: tuple(x) if name in ("behaviour", "fqe", "wis") else x for name, x in found.items()}


def interval(estimate: tuple[float, float, float]) -> str:
    value, low, high = estimate
    return f"{value:.2f}, 90 % interval {low:.2f} to {high:.2f}"


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return " to ".join(f"{bound:.2f}" for bound in value) if isinstance(value, (tuple, list)) else str(value)
