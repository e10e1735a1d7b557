"""Training in three lines, for notebooks and scripts; the settings are those of a config.

agent = ganglion.PPO("CartPole-v1", lr=1e-3, slots=8, seed=1).train("100k steps")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from ganglion.config import RunConfig
from ganglion.config.files import load
from ganglion.runtime.saved_agent import SavedAgent, train

World = str | Mapping[str, Any] | Callable[..., "gymnasium.Env[Any, Any]"]
QUIET = {"log": ["jsonl"]}


class Experiment:
    """An algorithm on an environment: a gymnasium id, `kind:id`, a mapping of settings, a class or a function that
    makes an environment. Other settings are the algorithm's, but `seed` and `slots`."""

    def __init__(self, algo: str, env: World, seed: int = 0, slots: int | None = None, **settings: Any) -> None:
        self.algo, self.env, self.seed, self.slots = {"kind": algo, **settings}, named(env), seed, slots

    def config(self, budget: str | int = "50k steps", **sections: Any) -> RunConfig:
        """The config of the run; `sections` are those of a config: `eval={"every": "10k steps"}`, `log=["console"]`."""
        run = {"seed": self.seed, **sections.pop("run", {})}
        train = {"budget": budget, **sections.pop("train", {})}
        raw = {**QUIET, "algo": self.algo, "env": self.env, "train": train, "run": run, **sections}
        return load(raw, [] if self.slots is None else [f"env.slots={self.slots}"])

    def train(self, budget: str | int = "50k steps", **sections: Any) -> SavedAgent:
        """Trains to the end of the budget; the best agent of the run, whose `folder` holds everything else."""
        return train(self.config(budget, **sections))


def named(env: World) -> str | Mapping[str, Any]:
    """What a config says of an environment; a class or function is registered with gymnasium under its own name."""
    if not callable(env):
        return env
    name = f"{env.__module__.replace('.', '-')}-{env.__qualname__}".replace("<", "").replace(">", "").replace(".", "-")
    gymnasium.register(f"{name}-v0", entry_point=env)
    return f"{name}-v0"
