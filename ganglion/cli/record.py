"""Records episodes of a saved agent, or of random actions, as a dataset; appends where it is there.

ganglion record runs/pendulum-sac-20260101-120000 --episodes 50 --out data/expert
ganglion record runs/pendulum-sac-20260101-120000 --checkpoint 5000-4000 --checkpoint last --out data/mixed
ganglion record --env Pendulum-v1 --random --episodes 50 --out data/mixed
"""

from __future__ import annotations

import argparse

from ganglion.cli.arguments import environment, existing, import_argument, load_torch
from ganglion.cli.evaluate import which_arguments
from ganglion.cli.text import say
from ganglion.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", required=True, metavar="DATA", help="the folder of the dataset, new or to append to")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of episodes and actions (0)")
    which_arguments(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        action="append",
        default=[],
        help="another one, such as 5000-4000; several: each an equal part",
    )
    parser.add_argument("--deterministic", action="store_true", help="evaluation actions instead of training actions")
    parser.add_argument("--epsilon", type=float, default=0.0, metavar="E", help="share of random actions (0)")
    parser.add_argument("--random", action="store_true", help="random actions alone")
    parser.add_argument("--env", metavar="ENV", help="with --random and no RUN: the environment")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.episodes <= 10_000_000:
        raise UserError(f"--episodes should be between 1 and 10000000, got {args.episodes}.")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed should be between 0 and {2**31 - 1}, got {args.seed}.")
    if not 0 <= args.epsilon <= 1:
        raise UserError(f"--epsilon should be between 0 and 1, got {args.epsilon}.")
    if (args.folder is None) == (args.env is None) or (args.env and not args.random):
        raise UserError("record: name a RUN, or an environment with --env ENV --random.")
    if args.folder is not None:
        existing(args.folder)
    load_torch()
    from pathlib import Path

    from ganglion.config.files import import_module, load
    from ganglion.data import files
    from ganglion.data.dataset import joined
    from ganglion.data.record import record_random, record_run
    from ganglion.runtime.run import load_config

    for module in args.imports:
        import_module(module)
    if args.random:
        cfg = load_config(existing(args.folder)) if args.folder else load(None, ["algo=ppo", environment(args.env)])
        data = record_random(cfg, args.episodes, args.seed)
    else:
        data = joined([record_run(args.folder, *part, args.deterministic, args.epsilon) for part in parts(args)])
    files.write(Path(args.out), data)
    mean = float(data.returns().mean())
    say(f"{args.out}: {data.steps:,} steps in {len(data.lengths()):,} episodes, mean return {mean:.2f}")
    return 0


def parts(args: argparse.Namespace) -> list[tuple[int, int, str]]:
    """Episodes, seed and name of each checkpoint: an equal share each, of other episodes."""
    names = args.checkpoint or [args.which]
    shares = [args.episodes * (k + 1) // len(names) - args.episodes * k // len(names) for k in range(len(names))]
    return [(share, args.seed + k, name) for k, (share, name) in enumerate(zip(shares, names, strict=True)) if share]
