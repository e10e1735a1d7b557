"""Trains an agent.

  ganglion train CartPole-v1 --budget 10m     algorithm, slots and workers are chosen by spaces, budget and step cost

Otherwise settings come from a preset or a file, then path=value in order; the last one wins. Values are YAML: numbers
(1e-3), words, [lists], {mappings: too}. A path may lead into anything shown by `ganglion show`:

  ganglion train cartpole/dqn algo.net.hidden=[64,64] algo.replay.kind=prioritised
  ganglion train cartpole/dqn sweep.run.seed=[0,1,2]       three runs, one after the other; a ranked table
  ganglion train my.yaml sweep.algo.lr=[1e-3,3e-4] --parallel 4     in processes of their own, four at a time
  ganglion train cartpole/ppo --seeds 16                   16 runs as one batched model; mean and 95 % interval
  ganglion train my.yaml sweep.algo.lr=[1e-3,3e-4] --together    the same for numbers of the algorithm

Ctrl-C saves first; `ganglion resume RUN` continues exactly where it stopped.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

from ganglion.cli.arguments import asked_cases, config_arguments
from ganglion.cli.text import hear_warnings, say

if TYPE_CHECKING:
    from ganglion.config import RunConfig


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    parser.add_argument("--together", action="store_true", help="the runs of a sweep as one batched model (ppo, dqn)")
    parser.add_argument("--parallel", type=int, metavar="N", help="the runs of a sweep in N processes at a time")


WHICH = ("fleet.address", "fleet.host", "fleet=")  # settings that say which Ray


def begin_early(args: argparse.Namespace) -> None:
    """Ray starts while torch is imported; not where settings may say which Ray, for these are not read yet."""
    said = dict(word.split("=", 1) for word in args.words if "=" in word)
    if (args.mode or said.get("run.mode")) != "ray" or any(chooses(word) for word in args.words):
        return
    from ganglion.fleet.fork_server import begin_fork_server
    from ganglion.fleet.ray_cluster import ClusterSettings, begin_ray

    counts = [(args.explorers or said.get("fleet.explorers"), 2), (args.learners or said.get("fleet.learners"), 1)]
    explorers, learners = (int(told) if told and told.isdecimal() else usual for told, usual in counts)
    begin_fork_server()
    begin_ray(ClusterSettings(processes=explorers + learners - 1))


def chooses(word: str) -> bool:
    """Whether a setting, or the file that is named, may say which Ray."""
    if not isfile(word):
        return word.startswith(WHICH)
    with suppress(OSError), Path(word).open("rb") as file:
        return b"fleet" in file.read(1_000_000)  # a larger one is refused
    return True


def run(args: argparse.Namespace) -> int:
    begin_early(args)
    configs = asked_cases(args)
    hear_warnings()
    if args.together or (args.seeds is not None and args.parallel is None):
        from ganglion.cli import train_seeds

        return train_seeds.train(configs, args.imports)
    from ganglion.cli import sweep

    if args.parallel is not None:
        return sweep.parallel(configs, args.imports, args.parallel)
    if len(configs) > 1:
        return sweep.one_by_one(configs, args.imports)
    from ganglion.cli.training_loop import drive
    from ganglion.runtime.run import Run

    if told := hints(configs[0], args.words):
        say(*told)
    return drive(Run.create(configs[0]), args.imports)


def hints(config: RunConfig, words: list[str]) -> list[str]:
    """What somebody may want to know before it begins: that nothing will be learned, or that settings are there."""
    from ganglion import registry
    from ganglion.runtime.choose_settings import preset

    found, budget = [], config.train.budget
    begins = first_update(config)
    if budget.unit == "steps" and begins >= budget.count:
        found.append(f"Note: train.budget ends at {budget}, before the first update at {begins:,} env steps.")
    if not (words and (words[0] in registry.presets() or isfile(words[0]))) and config.run.chosen is None:
        own = preset(config.env)
        found += [f"Note: there is a preset for this environment: ganglion train {own}"] if own else []
    return found


def first_update(config: RunConfig) -> int:
    """Env steps before which a limiter allows no update."""
    match config.algo.plain():
        case {"limiter": {"warmup": int(warmup)}}:
            return warmup
    return 0
