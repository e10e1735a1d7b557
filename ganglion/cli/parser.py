"""Reads the command line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ganglion import __version__
from ganglion.cli import (
    bench,
    board,
    check,
    compare,
    data,
    doctor,
    eject,
    evaluate,
    explore,
    export,
    launch,
    league,
    listing,
    play,
    record,
    replay,
    report,
    resume,
    show,
    train,
    tune,
)
from ganglion.cli.text import say
from ganglion.errors import UserError, nearest

COMMANDS = {
    "train": train,
    "resume": resume,
    "launch": launch,
    "explore": explore,
    "eval": evaluate,
    "play": play,
    "league": league,
    "record": record,
    "data": data,
    "replay": replay,
    "list": listing,
    "show": show,
    "compare": compare,
    "board": board,
    "tune": tune,
    "doctor": doctor,
    "report": report,
    "export": export,
    "eject": eject,
    "check": check,
    "bench": bench,
}
EXAMPLES = """\
examples:
  ganglion train CartPole-v1 --budget 10m           any environment: algorithm, slots and workers are chosen
  ganglion train cartpole/dqn                       a preset of the zoo
  ganglion train cartpole/dqn algo.lr=3e-4 run.seed=1
  ganglion train my.yaml env.slots=16               a file of your own, one setting changed
  ganglion train cartpole/ppo --seeds 16            16 runs as one batched model: mean and 95 % interval
  ganglion train --algo ppo --env CartPole-v1 train.budget="100k steps"
  ganglion train my.yaml --import my_module         names registered by your own code
  ganglion train cartpole/ppo --mode ray --explorers 8 --learners 2
  ganglion launch local cartpole/ppo --restarts 10  resumed when it is killed; also: launch slurm
  ganglion resume runs/cartpole-dqn-20260101-120000
  ganglion explore /shared/fleet                    for a run with --mode files fleet.path=/shared/fleet
  ganglion eval runs/cartpole-dqn-20260101-120000 --episodes 100 --json
  ganglion play runs/cartpole-dqn-20260101-120000 --out cartpole.gif
  ganglion league runs/rock_paper_scissors-league-20260101-120000       who is in it, payoff, ratings
  ganglion record runs/cartpole-dqn-20260101-120000 --out data/cartpole       its episodes as a dataset
  ganglion data data/cartpole                       what is in a dataset
  ganglion replay runs/cartpole-dqn-20260101-120000 3-17    an episode whose environment failed, again
  ganglion list zoo                                 also: algos, envs, nets, writers, ...
  ganglion show cartpole/dqn                        every setting, resolved
  ganglion show runs/cartpole-dqn-20260101-120000   how a run does, with its curve
  ganglion compare runs/study                       groups of runs: scores, intervals, a verdict
  ganglion tune cartpole/ppo --trials 30 --budget 20k     settings searched by Optuna; --method pbt: a population
  ganglion doctor runs/cartpole-dqn-20260101-120000 what is wrong with a run, and what to change
  ganglion export runs/cartpole-dqn-20260101-120000 --to onnx       its agent, without Ganglion
  ganglion eject runs/cartpole-dqn-20260101-120000 > one.py         its algorithm, in one file
  ganglion report runs/study                        one page of HTML; also Markdown, a model card
  ganglion board                                    a live page of the runs below runs/
  ganglion check MyEnv-v0 --import my_module        is this environment fit to train on?
  ganglion bench cartpole/ppo                       how fast, where the time goes, how far from the limit

`ganglion COMMAND --help` says more.
"""


class Parser(argparse.ArgumentParser):
    """Complains like everything else here: one message, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. Try: {self.prog} --help")

    def flags(self) -> list[str]:
        return sorted(self._option_string_actions)


def build() -> tuple[Parser, dict[str, Parser]]:
    shape = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="ganglion",
        description="Deep reinforcement learning: train, stop, resume, evaluate, watch.",
        epilog=EXAMPLES,
        formatter_class=shape,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ganglion {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=Parser)
    parsers = {}
    for name, module in COMMANDS.items():
        about, _, more = (module.__doc__ or "").partition("\n")
        sub = commands.add_parser(
            name,
            help=about.rstrip("."),
            description=about,
            epilog=more.strip(),
            formatter_class=shape,
            allow_abbrev=False,
        )
        module.arguments(sub)
        sub.set_defaults(run=module.run)
        parsers[name] = sub
    return parser, parsers


def parse(argv: list[str]) -> argparse.Namespace | None:
    """The command and its arguments; None when help or the version was all that was asked for."""
    parser, parsers = build()
    if not argv:
        say(parser.format_help())
        return None
    if not argv[0].startswith("-") and argv[0] not in COMMANDS:
        accepted = ", ".join(COMMANDS)
        raise UserError(f"unknown command {argv[0][:80]!r}. Accepted: {accepted}.{nearest(argv[0], COMMANDS)}")
    try:
        args, rest = parser.parse_known_args(argv)
    except SystemExit:  # --help, --version; errors raise UserError
        return None
    flags = [word for word in rest if word.startswith("-")]
    if flags or args.command is None:
        known = (parsers[args.command] if args.command else parser).flags()
        word = flags[0].partition("=")[0]
        raise UserError(f"unknown option {word[:80]!r}. Accepted: {', '.join(known)}.{nearest(word, known)}")
    if rest and "words" not in args:
        raise UserError(f"unexpected {rest[0][:80]!r}. Try: ganglion {args.command} --help")
    if rest:
        args.words = [*args.words, *rest]  # argparse ends a list of words at the first option
    return args
