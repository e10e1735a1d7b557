"""Ganglion: deep reinforcement learning from one readable file to a cluster.

    import ganglion

    agent = ganglion.train("cartpole/dqn", ["run.seed=1"])  # to the end: the best agent of the run
    agent = ganglion.PPO("CartPole-v1", lr=1e-3).train("100k steps")
    agent = ganglion.load("runs/cartpole-dqn-20260101-120000")
    action = agent.act(observation)
    for log in ganglion.Run.create(ganglion.load_config("cartpole/ppo")).stream():  # event by event
        ...

Everything is imported when first used: `import ganglion` alone waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pathlib import Path

    from ganglion import algos, buffers, config, core, envs, fast, nn, ops, record, registry, runtime
    from ganglion.config import RunConfig, register
    from ganglion.config.files import dump as dump_config
    from ganglion.config.files import load as load_config
    from ganglion.envs.check.check_env import check_env
    from ganglion.errors import UserError
    from ganglion.runtime.quick import Experiment
    from ganglion.runtime.run import Run, evaluate
    from ganglion.runtime.saved_agent import SavedAgent

_PARTS = ("algos", "buffers", "config", "core", "envs", "fast", "nn", "ops", "record", "registry", "runtime")
_NAMES = {
    "Experiment": ("ganglion.runtime.quick", "Experiment"),
    "Run": ("ganglion.runtime.run", "Run"),
    "RunConfig": ("ganglion.config", "RunConfig"),
    "SavedAgent": ("ganglion.runtime.saved_agent", "SavedAgent"),
    "UserError": ("ganglion.errors", "UserError"),
    "check_env": ("ganglion.envs.check.check_env", "check_env"),
    "dump_config": ("ganglion.config.files", "dump"),
    "evaluate": ("ganglion.runtime.run", "evaluate"),
    "load_config": ("ganglion.config.files", "load"),
    "register": ("ganglion.registry", "register"),
}

__all__ = [
    "Experiment",
    "Run",
    "RunConfig",
    "SavedAgent",
    "UserError",
    "__version__",
    "algos",
    "buffers",
    "check_env",
    "config",
    "core",
    "dump_config",
    "envs",
    "evaluate",
    "fast",
    "load",
    "load_config",
    "nn",
    "ops",
    "record",
    "register",
    "registry",
    "runtime",
    "train",
]


def train(
    source: str | Path | Mapping[str, Any] | None, overrides: Iterable[str] = (), imports: Iterable[str] = ()
) -> SavedAgent:
    """Trains a run to its end and loads its best agent: a preset, a file, YAML text or a mapping of settings, then
    `path=value` in order."""
    trained: SavedAgent = import_module("ganglion.runtime.saved_agent").train(
        __getattr__("load_config")(source, overrides, imports)
    )
    return trained


def load(run: Path | str, which: str = "best", player: str | None = None) -> SavedAgent:
    """The agent of a run's best checkpoint, its newest ("last") or a named one."""
    agent: SavedAgent = import_module("ganglion.runtime.saved_agent").load(run, which, player)
    return agent


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"ganglion.{name}")
    if name in _NAMES:
        module, attribute = _NAMES[name]
        return getattr(import_module(module), attribute)
    if name.isidentifier() and name.lower() in import_module("ganglion.registry").names("algo"):
        return partial(__getattr__("Experiment"), name.lower())
    raise AttributeError(f"module 'ganglion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
