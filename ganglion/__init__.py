"""Ganglion: deep reinforcement learning from one readable file to a cluster.

    import ganglion

    run = ganglion.train("cartpole/dqn", ["run.seed=1"])  # to the end
    for log in ganglion.Run.create(ganglion.load_config("cartpole/ppo")).stream():  # event by event
        ...

Everything is imported when first used: `import ganglion` alone waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pathlib import Path

    from ganglion import algos, buffers, config, core, envs, fast, nn, ops, record, registry, runtime
    from ganglion.config import RunConfig, register
    from ganglion.config import dump as dump_config
    from ganglion.config import load as load_config
    from ganglion.envs.check.check_env import check_env
    from ganglion.errors import UserError
    from ganglion.runtime.run import Run, evaluate

_PARTS = ("algos", "buffers", "config", "core", "envs", "fast", "nn", "ops", "record", "registry", "runtime")
_NAMES = {
    "Run": ("ganglion.runtime.run", "Run"),
    "RunConfig": ("ganglion.config", "RunConfig"),
    "UserError": ("ganglion.errors", "UserError"),
    "check_env": ("ganglion.envs.check.check_env", "check_env"),
    "dump_config": ("ganglion.config", "dump"),
    "evaluate": ("ganglion.runtime.run", "evaluate"),
    "load_config": ("ganglion.config", "load"),
    "register": ("ganglion.registry", "register"),
}

__all__ = [
    "Run",
    "RunConfig",
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
    "load_config",
    "nn",
    "ops",
    "record",
    "register",
    "registry",
    "runtime",
    "train",
]


def train(source: str | Path | None, overrides: Iterable[str] = (), imports: Iterable[str] = ()) -> Run:
    """Trains a run to its end: a preset, a file or YAML text, then `path=value` in order."""
    run: Run = __getattr__("Run").create(__getattr__("load_config")(source, overrides, imports))
    for _ in run.stream():
        pass
    return run


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"ganglion.{name}")
    if name in _NAMES:
        module, attribute = _NAMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'ganglion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
