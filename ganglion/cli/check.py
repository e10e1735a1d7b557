"""Looks an environment over: spaces, seeds, endings, rewards, workers, speed, memory; each verdict with its fix. Or an
algorithm: whether it is pure, repeats, resumes exactly, acts per slot, and compiles. Or a dataset: whether it can be
read and learned from.

ganglion check CartPole-v1                             a registered id, or KIND:ID
ganglion check cartpole/dqn env.time_limit=100         the environment of a preset or file, settings changed
ganglion check MyEnv-v0 --import my_module             registered by a module of yours
ganglion check my_module:MyEnv env.options.size=5      a class of yours, or a function that makes one
ganglion check my_file.py:MyEnv                        the same
ganglion check data/pendulum                           a dataset: a folder or file
ganglion check --algo mine --import my_module          an algorithm of yours, over made-up spaces
ganglion check --algo mine --env MyEnv-v0 algo.lr=0.1  over the spaces of an environment, settings changed

Exit code 0: nothing failed (warnings are advice), 1: something did.
"""

from __future__ import annotations

import argparse
import json
import sys
from os.path import isdir, isfile
from typing import TYPE_CHECKING, Any

from ganglion import registry
from ganglion.cli.arguments import environment, import_argument
from ganglion.cli.text import say
from ganglion.errors import UserError, nearest

if TYPE_CHECKING:
    from ganglion.envs.check.findings import CheckReport

COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", default=[], metavar="ENV path=value", help="what to check, and settings")
    parser.add_argument("--steps", type=int, default=3_000, metavar="N", help="random steps to take (3000)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="at most about this long (20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of episodes and actions (0)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--algo", metavar="NAME", help="check an algorithm instead")
    parser.add_argument("--env", metavar="ENV", help="the environment whose spaces it is checked over")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.algo:
        return told(of_algorithm(args.algo, args.env, args.words, args.imports), args.json)
    if args.env:
        raise UserError(f"--env: it goes with --algo. To check an environment: ganglion check {args.env[:80]}")
    if not args.words:
        raise UserError("nothing to check. Try: ganglion check CartPole-v1")
    if not 50 <= args.steps <= 10_000_000:
        raise UserError(f"--steps should be between 50 and 10000000, got {args.steps}.")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed should be between 0 and {2**31 - 1}, got {args.seed}.")
    if not 0 < args.seconds <= 86_400:
        raise UserError(f"--seconds should be between 0 and 86400, got {args.seconds}.")
    if is_data(args.words[0]):
        from ganglion.data.check_data import check_data

        return told(check_data(args.words[0]), args.json)
    subject = asked(args.words, args.imports)
    from ganglion.envs.check.check_env import check_env

    return told(check_env(subject, steps=args.steps, seed=args.seed, seconds=args.seconds), args.json)


def told(report: CheckReport, as_json: bool) -> int:
    """Says what was found; the exit code."""
    if as_json:
        say(json.dumps(plain(report)))
    elif sys.stdout.isatty():
        show(report)
    else:
        say(*lines(report))
    return 0 if report.passed else 1


# ------------------------------------------------------------ what to check


def is_data(word: str) -> bool:
    """Whether a word names a dataset: a folder of one, or a file that has the ending of one."""
    return isdir(word) or word.endswith((".hdf5", ".h5", ".npz", ".parquet"))


def asked(words: list[str], imports: list[str]) -> Any:
    """The environment's config, or the class or function of the user's own."""
    from ganglion.config.files import import_module, load

    for module in imports:
        import_module(module)
    name, rest = ("", words) if "=" in words[0] and not isfile(words[0]) else (words[0], words[1:])
    if name in registry.presets() or isfile(name):
        return load(name, rest).env
    module, colon, attribute = name.partition(":")
    if colon and module not in registry.names("env"):
        return own(module, attribute, rest)
    named = [environment(name)] if name else []
    return load(None, ["algo=ppo", *named, *rest]).env  # an algorithm is asked for, and not used


def of_algorithm(name: str, env: str | None, settings: list[str], imports: list[str]) -> CheckReport:
    """An algorithm by its name and settings, over the spaces of an environment or made-up ones."""
    from ganglion.config.files import import_module, load
    from ganglion.runtime.build import build_env
    from ganglion.runtime.check_algorithm import SLOTS, check_algorithm, made_up

    for module in imports:
        import_module(module)
    named = [environment(env)] if env else ["env={kind: toy, id: identity}"]
    cfg = load(None, [f"algo={name}", *named, *settings])
    if not env:
        return check_algorithm(cfg.algo, made_up(cfg.algo))
    made = build_env(cfg, SLOTS)
    made.close()
    return check_algorithm(cfg.algo, made.spec)


def own(module: str, attribute: str, rest: list[str]) -> Any:
    """A class or function named on the command line; settings go through a config, as a registered id's would."""
    module = module.removesuffix(".py").removeprefix("./").replace("/", ".") if module.endswith(".py") else module
    import gymnasium

    from ganglion.config.files import import_module, load

    import_module(module)
    place = vars(sys.modules[module])
    if not callable(place.get(attribute)):
        known = [key for key, value in place.items() if isinstance(value, type) and not key.startswith("_")]
        raise UserError(f"{module} has no class or function {attribute[:80]!r}.{nearest(attribute, known)}")
    made = place[attribute]
    if not rest:
        return made
    if not (isinstance(made, type) and issubclass(made, gymnasium.Env)):
        raise UserError(f"{rest[0][:80]!r}: settings need a subclass of gymnasium.Env, and {attribute} is none.")
    if f"{attribute}-v0" not in gymnasium.registry:
        gymnasium.register(f"{attribute}-v0", f"{module}:{attribute}")
    return load(None, ["algo=ppo", environment(f"{attribute}-v0"), *rest]).env


# ------------------------------------------------------------ what to say


def plain(report: CheckReport) -> dict[str, Any]:
    findings = [finding._asdict() for finding in report.findings]
    return {"subject": report.subject, "about": report.about, "passed": report.passed, "findings": findings}


def verdict(report: CheckReport) -> str:
    """The last line."""
    fails, warns = len(report.of("fail")), len(report.of("warn"))
    parts = [f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((fails, "failure"), (warns, "warning")) if n]
    return f"{'failed' if fails else 'passed'}: {', '.join(parts) or 'nothing to mend'}"


def lines(report: CheckReport) -> list[str]:
    """One line per verdict, for a pipe."""
    found = [f"{f.verdict}  {f.name:<12} {f.seen}{f' Fix: {f.fix}' if f.fix else ''}" for f in report.findings]
    return [f"{report.subject}: {report.about}", *found, f"{report.subject} {verdict(report)}"]


def show(report: CheckReport) -> None:
    """The same on a terminal: coloured, wrapped, fixes below what they mend."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for f in report.findings:
        text = Text(f.seen)
        if f.fix:
            text.append(f"\nfix: {f.fix}", "bold")
        table.add_row(Text(f.verdict, COLOURS[f.verdict]), f.name, text)
    console = Console(highlight=False)
    console.print(Text(report.subject, "bold").append(f"  {report.about}", "dim"))
    console.print(table)
    worst = "fail" if not report.passed else "warn" if report.of("warn") else "pass"
    console.print(Text(f"{report.subject} {verdict(report)}", COLOURS[worst]))
