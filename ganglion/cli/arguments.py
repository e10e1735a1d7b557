"""The arguments that name a config: a preset or file, `path=value`, --algo, --env and --import."""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from os.path import isdir, isfile  # unlike those of Path, these never raise
from typing import TYPE_CHECKING, Any

from ganglion.errors import UserError

if TYPE_CHECKING:
    from ganglion.config import RunConfig
    from ganglion.record.stores import Where


def load_torch() -> None:
    """Without looking for garbage, which imports do not leave: a tenth of the time that torch takes."""
    if "torch" in sys.modules:
        return
    looks = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()  # what was imported is never looked through
        if looks:
            gc.enable()


def config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", default=[], metavar="PRESET|FILE|ENV path=value", help="what to start from, and settings"
    )
    parser.add_argument("--algo", metavar="NAME", help="the algorithm: short for algo=NAME")
    parser.add_argument("--env", metavar="ID", help="the environment: a gymnasium id, or KIND:ID of another kind")
    parser.add_argument("--budget", metavar="AMOUNT", help="how long: 10m, 50k steps; short for train.budget=AMOUNT")
    parser.add_argument("--seed", metavar="N", help="short for run.seed=N")
    parser.add_argument("--mode", metavar="MODE", help="where explorers are: short for run.mode=MODE")
    parser.add_argument("--explorers", metavar="N", help="how many remote explorers: short for fleet.explorers=N")
    parser.add_argument("--learners", metavar="N", help="that make each update together: short for fleet.learners=N")
    parser.add_argument("--seeds", type=int, metavar="N", help="N runs, with seeds from run.seed on; trained together")
    import_argument(parser)


def import_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import", dest="imports", metavar="MODULE", action="append", default=[], help="a module that registers names"
    )


def run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder of a run")


def asked_cases(args: argparse.Namespace) -> list[RunConfig]:
    """The configs that the arguments describe: one, or several of a sweep."""
    from ganglion import registry

    source, overrides = split(args.words)
    named = [f"algo={args.algo}"] if args.algo else []
    placed = [f"train.budget={args.budget}"] if args.budget else []
    placed += [f"run.mode={args.mode}"] if args.mode else []
    placed += [f"run.seed={args.seed}"] if args.seed else []
    placed += [f"fleet.explorers={args.explorers}"] if args.explorers else []
    placed += [f"fleet.learners={args.learners}"] if args.learners else []
    if source is None and not named and not overrides and not args.env:
        raise UserError("nothing to train. Try: ganglion train CartPole-v1, or ganglion list zoo")
    from ganglion.config.files import cases, import_module

    for module in args.imports:
        import_module(module)
    given = [*placed, *overrides]
    source, env = env_or_source(source, args.env)
    if source is None or source in registry.presets() or isfile(source):  # else it is refused, at once
        load_torch()
    if env and source is None and not named and not any(word.startswith(SAID) for word in overrides):
        found = cases(chosen(env, given), given)
    else:
        found = cases(source, [*named, *([environment(env)] if env else []), *given])
    return found if args.seeds is None else seeded(found, args.seeds)


SAID = ("algo=", "algo.kind=", "sweep.algo=", "sweep.algo.kind=", "data.path=")  # where no algorithm is to be chosen


def env_or_source(word: str | None, env: str | None) -> tuple[str | None, str | None]:
    """The source and the environment that are named: a word that is neither a preset nor a file may be the latter."""
    from ganglion import registry

    if word is None or env is not None or word in registry.presets() or isfile(word) or not is_name(word):
        return word, env
    load_torch()
    from ganglion.runtime.choose_settings import is_env

    return (None, word) if is_env(word) else (word, None)


def is_name(word: str) -> bool:
    """Whether it could be an environment's: KIND:ID, or a gymnasium id with or without its namespace."""
    shape = re.fullmatch(r"([A-Za-z_]\w*:)?([\w.-]+/)?[\w.-]+", word)
    return shape is not None and len(word) <= 200 and not isdir(word) and not word.endswith((".yaml", ".yml"))


def chosen(env: str, overrides: list[str]) -> dict[str, Any]:
    """Settings for an environment of which nothing else was said."""
    from ganglion.runtime.choose_settings import settings

    return settings(env, overrides)


def seeded(configs: list[RunConfig], count: int) -> list[RunConfig]:
    """Each config with `count` seeds from its own on, named by them."""
    if not 2 <= count <= 1_024:
        raise UserError(f"--seeds should be between 2 and 1024, got {count}.")
    return [one_seed(config, config.run.seed + k) for config in configs for k in range(count)]


def one_seed(config: RunConfig, seed: int) -> RunConfig:
    name, folder = f"{config.title}-seed={seed}", config.run.dir and f"{config.run.dir.rstrip('/')}/seed={seed}"
    run = config.run.model_copy(update={"seed": seed, "name": name[:200], "dir": folder})
    return config.model_copy(update={"run": run})


def split(words: list[str]) -> tuple[str | None, list[str]]:
    """The source, where there is one, and the overrides."""
    if words and ("=" not in words[0] or isfile(words[0])):
        return words[0], words[1:]
    return None, words


def environment(name: str) -> str:
    """`--env` as an override."""
    return f"env={json.dumps(name)}"  # JSON's quotes are YAML's


def existing(folder: str) -> Where:
    """The folder of a run, checked: on a disk, or in a store by URL."""
    from ganglion.record.run_folder import open_folder

    return open_folder(folder, "RUN")
