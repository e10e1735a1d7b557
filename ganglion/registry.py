"""Names and the modules that define them: read by `--help` and `list` without importing torch or pydantic.

A name of the package has one line in TABLE. User modules add names when they are imported (`--import my.module`, or
Python), and installed packages by an entry point of the group "ganglion" named `family.name`, its value the module:

    [project.entry-points.ganglion]
    "algo.mine" = "my_package.mine"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ganglion.errors import UserError, nearest

TABLE: dict[str, dict[str, str]] = {
    "algo": {
        "a2c": "ganglion.algos.a2c",
        "acer": "ganglion.algos.acer",
        "airl": "ganglion.algos.airl",
        "alphazero": "ganglion.algos.alphazero",
        "atoc": "ganglion.algos.atoc",
        "awac": "ganglion.algos.awac",
        "bc": "ganglion.algos.bc",
        "bcq": "ganglion.algos.bcq",
        "bootstrapped_dqn": "ganglion.algos.bootstrapped_dqn",
        "c51": "ganglion.algos.c51",
        "coma": "ganglion.algos.coma",
        "cql": "ganglion.algos.cql",
        "crossq": "ganglion.algos.crossq",
        "d4pg": "ganglion.algos.d4pg",
        "dagger": "ganglion.algos.dagger",
        "ddpg": "ganglion.algos.ddpg",
        "decision_transformer": "ganglion.algos.decision_transformer",
        "discrete_bcq": "ganglion.algos.discrete_bcq",
        "discrete_sac": "ganglion.algos.discrete_sac",
        "dqfd": "ganglion.algos.dqfd",
        "dqn": "ganglion.algos.dqn",
        "dreamer": "ganglion.algos.dreamer",
        "edac": "ganglion.algos.edac",
        "flashsac": "ganglion.algos.flashsac",
        "fqf": "ganglion.algos.fqf",
        "gail": "ganglion.algos.gail",
        "hybrid_sac": "ganglion.algos.hybrid_sac",
        "impala": "ganglion.algos.impala",
        "iql": "ganglion.algos.iql",
        "iqn": "ganglion.algos.iqn",
        "maddpg": "ganglion.algos.maddpg",
        "mappo": "ganglion.algos.mappo",
        "masac": "ganglion.algos.masac",
        "muzero": "ganglion.algos.muzero",
        "nfsp": "ganglion.algos.nfsp",
        "ppg": "ganglion.algos.ppg",
        "ppo": "ganglion.algos.ppo",
        "pqn": "ganglion.algos.pqn",
        "pqn_vdn": "ganglion.algos.pqn_vdn",
        "qmix": "ganglion.algos.qmix",
        "qrdqn": "ganglion.algos.qrdqn",
        "r2d2": "ganglion.algos.r2d2",
        "rainbow": "ganglion.algos.rainbow",
        "rebrac": "ganglion.algos.rebrac",
        "redq": "ganglion.algos.redq",
        "reinforce": "ganglion.algos.reinforce",
        "sac": "ganglion.algos.sac",
        "sampled_muzero": "ganglion.algos.sampled_muzero",
        "sqil": "ganglion.algos.sqil",
        "td3": "ganglion.algos.td3",
        "td3_bc": "ganglion.algos.td3_bc",
        "tdmpc2": "ganglion.algos.tdmpc2",
        "tqc": "ganglion.algos.tqc",
        "trpo": "ganglion.algos.trpo",
        "vdn": "ganglion.algos.vdn",
    },
    "bonus": {
        "e3b": "ganglion.bonuses.e3b",
        "icm": "ganglion.bonuses.icm",
        "ngu": "ganglion.bonuses.ngu",
        "rnd": "ganglion.bonuses.rnd",
    },
    "resets": {
        "shrink": "ganglion.bonuses.resets",
    },
    "env": {
        "gym": "ganglion.envs.configs",
        "atari": "ganglion.envs.configs",
        "board": "ganglion.envs.board_games",
        "board_turns": "ganglion.envs.board_turns",
        "envpool": "ganglion.envs.envpool",
        "colours": "ganglion.envs.colours",
        "foraging": "ganglion.envs.foraging",
        "kuhn": "ganglion.envs.kuhn",
        "lbforaging": "ganglion.envs.agent_games",
        "openspiel": "ganglion.envs.openspiel",
        "leduc": "ganglion.envs.leduc",
        "matrix": "ganglion.envs.matrix_games",
        "particles": "ganglion.envs.particles",
        "pettingzoo": "ganglion.envs.agent_games",
        "remote": "ganglion.envs.remote",
        "rware": "ganglion.envs.agent_games",
        "starcraft": "ganglion.envs.starcraft",
        "sumo": "ganglion.envs.sumo",
        "torch": "ganglion.envs.configs",
        "toy": "ganglion.envs.configs",
        "vmas": "ganglion.envs.vmas",
    },
    "net": {
        "mlp": "ganglion.nn.nets",
    },
    "buffer": {
        "replay": "ganglion.buffers.replay",
        "prioritised": "ganglion.buffers.prioritised",
        "rollout": "ganglion.buffers.rollout",
    },
    "relabel": {
        "hindsight": "ganglion.buffers.hindsight",
    },
    "limiter": {
        "ratio": "ganglion.buffers.limiter",
        "ready": "ganglion.buffers.limiter",
        "always": "ganglion.buffers.limiter",
    },
    "processor": {
        "rows": "ganglion.buffers.processors",
        "demonstrated": "ganglion.buffers.demonstrated",
        "labelled": "ganglion.data.labels",
        "recorded": "ganglion.data.recorder",
    },
    "wrapper": {
        "identity": "ganglion.envs.wrappers",
        "present": "ganglion.envs.wrappers",
        "joint": "ganglion.envs.joint_actions",
        "previous": "ganglion.envs.wrappers",
    },
    "matchmaker": {
        "league": "ganglion.league.matchmakers",
        "pfsp": "ganglion.league.matchmakers",
        "psro": "ganglion.league.matchmakers",
        "self": "ganglion.league.matchmakers",
        "uniform": "ganglion.league.matchmakers",
    },
    "mode": {
        "local": "ganglion.runtime.build",
        "sync": "ganglion.fleet.build",
        "threads": "ganglion.fleet.build",
        "ray": "ganglion.fleet.build",
        "files": "ganglion.fleet.build",
        "learners": "ganglion.fleet.learner_processes",
        "offline": "ganglion.data.offline",
        "with_data": "ganglion.data.offline",
    },
    "writer": {
        "console": "ganglion.record.writers.console",
        "csv": "ganglion.record.writers.csv",
        "jsonl": "ganglion.record.writers.jsonl",
        "mlflow": "ganglion.record.writers.mlflow",
        "tensorboard": "ganglion.record.writers.tensorboard",
        "wandb": "ganglion.record.writers.wandb",
    },
    "schedule": {
        "constant": "ganglion.config.schedules",
        "linear": "ganglion.config.schedules",
        "exponential": "ganglion.config.schedules",
        "cosine": "ganglion.config.schedules",
        "piecewise": "ganglion.config.schedules",
    },
}

EXTRA = {("algo", name): f"ganglion.backends.{name}" for name in ("dqn_jax", "ppo_jax")}  # need ganglion[jax]
_found: dict[tuple[str, str], type[Any]] = {}  # what has been imported so far

Kind = TypeVar("Kind", bound=type[Any])


class Registered(NamedTuple):
    """Where a name comes from: its module, and the distribution or flag that brought it."""

    module: str
    source: str


def register(family: str, name: str) -> Callable[[Kind], Kind]:
    """Gives a config class its name; inside the package the name must already be in TABLE."""

    def add(cls: Kind) -> Kind:
        _check(family, name, cls)
        cls.kind = name
        _found[family, name] = cls
        return cls

    return add


def _check(family: str, name: str, cls: type[Any]) -> None:
    if family not in TABLE:
        raise UserError(f"{family!r} is no family. Accepted: {', '.join(TABLE)}.{nearest(family, TABLE)}")
    ours = TABLE[family].get(name) or EXTRA.get((family, name))
    if cls.__module__.split(".")[0] == "ganglion":
        if ours != cls.__module__:
            raise TypeError(f"{family} {name!r} of {cls.__module__} needs its line in ganglion/registry.py, not {ours}")
        return
    before = _found.get((family, name))
    taken = ours or (before.__module__ if before else cls.__module__)
    again = before is not None and (before.__module__, before.__qualname__) == (cls.__module__, cls.__qualname__)
    if ours or (before is not None and not again):
        raise UserError(f"{cls.__module__} registers the {family} {name!r}, a name that {taken} has: choose another.")


def names(family: str) -> list[str]:
    """All names of a family: the package's, those of entry points, those imported."""
    others = [n for f, n in _found if f == family] + [n for f, n in _entry_points() if f == family]
    return list(dict.fromkeys([*TABLE[family], *(n for f, n in EXTRA if f == family), *sorted(others)]))


def lookup(family: str, name: str) -> type[Any]:
    """The config class of a name; imports its module on first use."""
    module = TABLE[family].get(name) or EXTRA.get((family, name))
    entry = _entry_points().get((family, name))
    if module is None and (family, name) not in _found and entry is not None:
        module = entry.module
    if (family, name) not in _found and module is not None:
        _import(family, name, module)
    if (family, name) not in _found:
        known = names(family)
        hint = " Names of your own modules need --import MODULE."
        raise UserError(f"unknown {family} {name[:80]!r}. Accepted: {', '.join(known)}.{nearest(name, known)}{hint}")
    return _found[family, name]


def _import(family: str, name: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("ganglion", "torch"):
            raise
        raise UserError(f"{family} {name!r} needs the package {error.name!r}, which is not installed.") from error
    if (family, name) not in _found:
        raise TypeError(f"{module} does not register the {family} {name!r}")


def origin(family: str, name: str) -> Registered:
    """Where a name comes from, without importing it."""
    if ours := TABLE[family].get(name) or EXTRA.get((family, name)):
        return Registered(ours, "ganglion")
    entry = _entry_points().get((family, name))
    if entry is not None:
        return entry
    return Registered(lookup(family, name).__module__, "--import")


@cache
def _entry_points() -> dict[tuple[str, str], Registered]:
    from importlib.metadata import entry_points  # costs more than the rest of --help

    found: dict[tuple[str, str], Registered] = {}
    for point in entry_points(group="ganglion"):
        family, _, name = point.name.partition(".")
        if family in TABLE and name and name not in TABLE[family]:
            found[family, name] = Registered(point.module, point.dist.name if point.dist else "entry point")
    return found


def presets() -> dict[str, Path]:
    """The zoo: tuned configs shipped with the package, `family/algo` -> file."""
    root = Path(__file__).parent / "zoo"
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.glob("*/*.yaml"))}


def version() -> str:
    """Of the installed distribution; a source tree that was not installed has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ganglion")
    except PackageNotFoundError:
        return "source"
