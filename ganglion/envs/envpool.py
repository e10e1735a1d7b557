"""EnvPool's environments as slots of the contract: C++ threads step them. Promise: restart.

EnvPool takes its seed when it is made and never again, so that a reset makes it anew; running episodes cannot be saved.
It autoresets in the next step. An episode that ends at its time limit counts as truncated there, even if it also ended
by itself in that very step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from pydantic import Field, field_validator

from ganglion.config import register
from ganglion.envs.configs import ShapedConfig
from ganglion.errors import UserError, nearest

if TYPE_CHECKING:
    from ganglion.core import Env

OWN = {"num_envs": "env.slots", "seed": "run.seed", "max_episode_steps": "env.time_limit", "num_threads": "env.threads"}
OWN |= {"batch_size": "nothing: all slots step together", "env_type": "nothing: it is gymnasium"}
MASKS = ("action_mask", "legal_action_mask")  # what the families call theirs


@register("env", "envpool")
class EnvPoolConfig(ShapedConfig):
    """An environment of EnvPool's by its id: HalfCheetah-v5, CheetahRun-v1 (DeepMind control), Pong-v5."""

    id: str = Field(min_length=1, max_length=200)
    options: Mapping[str, Any] = Field(default_factory=dict)  # given to envpool.make
    threads: int = Field(default=0, ge=0, le=1024)  # 0: as EnvPool thinks right

    @field_validator("options")
    @classmethod
    def _not_ours(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in options:
            if name in OWN:
                raise ValueError(f"{name} is set by {OWN[name]}")
        return options

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        from ganglion.envs.vector import VectorGymEnv

        pool = _import()
        if self.id not in pool.list_all_envs():
            raise UserError(f"env.id: EnvPool has no environment {self.id!r}.{nearest(self.id, pool.list_all_envs())}")
        settings = {**self.options, "num_envs": slots or self.slots, "num_threads": self.threads}
        if self.time_limit is not None:
            settings["max_episode_steps"] = self.time_limit
        if render:
            settings["render_mode"] = "rgb_array"

        def make(seed: int) -> Any:
            return pool.make(self.id, env_type="gymnasium", seed=seed, **settings)

        try:
            seeded = Seeded(make)
        except (TypeError, ValueError, KeyError, AssertionError) as error:
            raise UserError(f"env.options: EnvPool did not make {self.id}: {error}") from error
        if seeded.pool.config["max_num_players"] > 1:
            raise UserError(f"env.id: {self.id} has several players, which is not supported yet.")
        return self.shape(VectorGymEnv(seeded, self.id, device, masked=False))  # type: ignore[arg-type]


def _import() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise UserError('env.kind: envpool needs a package. Try pip install "ganglion[envpool]"') from error
    return envpool


class Seeded:
    """A pool that is made anew for each seed; otherwise what a gymnasium VectorEnv is."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make, self.pool, self.seed = make, make(0), 0
        self.used = False  # whether episodes have begun
        self.checked = False  # whether the pool has seen an action
        self.num_envs = int(self.pool.config["num_envs"])
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = self.pool.render_mode
        self.single_observation_space = self.pool.observation_space
        self.single_action_space = self.pool.action_space
        self.layout = EnvPoolLayout.of(self.pool)

    @property
    def unwrapped(self) -> Any:
        return self.pool

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        if self.used or seed != self.seed:
            self.pool.close()
            self.pool, self.seed, self.checked = self.make(seed), seed, False
        self.used = True
        obs, info = self.pool.reset()
        return obs, _named(info)

    def send(self, action: Any) -> None:
        if isinstance(action, np.ndarray) and action.dtype == np.int64:
            action = action.astype(np.int32)  # what EnvPool takes for choices
        if self.layout is None or not self.checked:
            self.pool.send(action)  # which checks an action's dtype and shape, the first time
            self.checked = True
        else:
            self.pool._send([self.layout.slots, self.layout.slots, action.astype(self.layout.action, copy=False)])

    def recv(self) -> Any:
        if self.layout is not None:
            return self.layout.read(self.pool._recv())
        obs, reward, terminated, truncated, info = self.pool.recv()
        return obs, reward, terminated, truncated, _named(info)

    def render(self) -> Any:
        return self.pool.render()

    def close(self) -> None:
        self.pool.close()


class EnvPoolLayout(NamedTuple):
    """Where things are in the flat list that a pool's C++ side gives, of worlds whose observation is one array.

    Reading it there takes a third of the time that EnvPool's way through trees of Python objects does.
    """

    obs: int
    reward: int
    ended: int
    truncated: int
    info: tuple[tuple[str, int], ...]
    slots: Any
    action: Any  # dtype

    @classmethod
    def of(cls, pool: Any) -> EnvPoolLayout | None:
        """None where there is more than one array, a mask, or another EnvPool than this was written for."""
        names = list(getattr(pool, "_state_keys", ()))
        actions = list(getattr(getattr(pool, "_spec", None), "_action_keys", ()))
        known = all(callable(getattr(pool, name, None)) for name in ("_send", "_recv"))
        if not known or not {"obs", "reward", "done", "trunc"} <= set(names) or len(actions) != 3:
            return None
        if actions[:2] != ["env_id", "players.env_id"] or any(f"info:{mask}" in names for mask in MASKS):
            return None
        info = [(name[5:], i) for i, name in enumerate(names) if name.startswith("info:") and "env_id" not in name]
        if any("." in name or name in ("players", "elapsed_step") for name, _ in info):
            return None
        obs, reward, ended, truncated = (names.index(name) for name in ("obs", "reward", "done", "trunc"))
        dtype = pool._spec._action_spec[-1][0]
        return cls(obs, reward, ended, truncated, tuple(info), pool.all_env_ids, dtype)

    def read(self, values: list[Any]) -> Any:
        """What gymnasium's step returns."""
        truncated = values[self.truncated]
        info = {name: values[i] for name, i in self.info}
        return values[self.obs], values[self.reward], values[self.ended] > truncated, truncated, info


def _named(info: Mapping[str, Any]) -> dict[str, Any]:
    """The info that matters: masks under our name, numbers of the world, none of EnvPool's counters."""
    kept = {k: v for k, v in info.items() if k not in ("env_id", "players", "elapsed_step", *MASKS)}
    mask = next((info[name] for name in MASKS if name in info), None)
    return kept if mask is None else {**kept, "action_mask": mask}
