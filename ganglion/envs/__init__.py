"""Environments: gymnasium's, made of tensors, toys; all under one contract, `core.Env`.

Names are looked up when first used, so that a worker process can take the numpy parts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ganglion.envs.check.check_env import check_env
    from ganglion.envs.classic_control import NATIVE, Acrobot, CartPole, MountainCar, Pendulum
    from ganglion.envs.configs import AtariConfig, GymConfig, TorchConfig, ToyConfig
    from ganglion.envs.envpool import EnvPoolConfig
    from ganglion.envs.gym import GymEnv
    from ganglion.envs.gym_make import WRAPPERS, wrapped
    from ganglion.envs.gym_spaces import from_gym, to_gym
    from ganglion.envs.old_gym import OldGym
    from ganglion.envs.pool import Pool, PoolEnv
    from ganglion.envs.seeds import episode_seed
    from ganglion.envs.torch_env import TorchEnv, TorchGame
    from ganglion.envs.toys import TOYS, Bandit, Chain, DeepSea, Identity, Masked, Memory, Toy, TruncationProbe
    from ganglion.envs.transforms import Element, Processed
    from ganglion.envs.vector import VectorGymEnv
    from ganglion.envs.wrappers import FrameStack, Show, Wrapper, clip_obs, keep

_MODULES = {
    "check.check_env": ("check_env",),
    "configs": ("AtariConfig", "GymConfig", "TorchConfig", "ToyConfig"),
    "transforms": ("Element", "Processed"),
    "envpool": ("EnvPoolConfig",),
    "gym": ("GymEnv",),
    "classic_control": ("NATIVE", "Acrobot", "CartPole", "MountainCar", "Pendulum"),
    "old_gym": ("OldGym",),
    "pool": ("Pool", "PoolEnv"),
    "seeds": ("episode_seed",),
    "gym_spaces": ("from_gym", "to_gym"),
    "toys": ("TOYS", "Bandit", "Chain", "DeepSea", "Identity", "Masked", "Memory", "Toy", "TruncationProbe"),
    "vector": ("VectorGymEnv",),
    "torch_env": ("TorchEnv", "TorchGame"),
    "wrappers": ("FrameStack", "Show", "Wrapper", "clip_obs", "keep"),
    "gym_make": ("WRAPPERS", "wrapped"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "NATIVE",
    "TOYS",
    "WRAPPERS",
    "Acrobot",
    "AtariConfig",
    "Bandit",
    "CartPole",
    "Chain",
    "DeepSea",
    "Element",
    "EnvPoolConfig",
    "FrameStack",
    "GymConfig",
    "GymEnv",
    "Identity",
    "Masked",
    "Memory",
    "MountainCar",
    "OldGym",
    "Pendulum",
    "Pool",
    "PoolEnv",
    "Processed",
    "Show",
    "TorchConfig",
    "TorchEnv",
    "TorchGame",
    "Toy",
    "ToyConfig",
    "TruncationProbe",
    "VectorGymEnv",
    "Wrapper",
    "check_env",
    "clip_obs",
    "episode_seed",
    "from_gym",
    "keep",
    "to_gym",
    "wrapped",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
