"""How single gymnasium environments are made: by this process or a worker, from plain values; no torch, no pydantic.

A worker is told a maker, "module:function", and arguments that JSON can carry; it calls `function(slot, **arguments)`.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium

from ganglion.envs.repairs import quieten, repaired
from ganglion.envs.wrapping import wrapped
from ganglion.errors import UserError, nearest
from ganglion.faults import broken

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymSpec

EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale_py": "atari", "minigrid": "minigrid"}  # entry point -> our extra
FAMILIES = {"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid", "MinAtar/": "minatar"}  # id -> package


def find_spec(name: str) -> GymSpec:
    """What gymnasium has registered under a name."""
    if name not in gymnasium.registry:
        _register(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        close = nearest(name, gymnasium.registry)
        raise UserError(
            f"env.id: gymnasium has no environment {name!r}.{close} "
            "Accepted: a registered id; environments of your own need --import MODULE."
        ) from error


def _register(name: str) -> None:
    """Some ids are known once their package is imported, which gymnasium does not do by itself."""
    named = [package for start, package in FAMILIES.items() if name.startswith(start)]
    package = named[0] if named else "ale_py"  # it also has ids without a family: PongNoFrameskip-v4
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        if named:
            extra = EXTRAS.get(package, package)
            raise UserError(f'env.id: {name} needs a package. Try pip install "ganglion[{extra}]"') from error
        return
    if package == "minatar":
        importlib.import_module("ganglion.envs.grids").register_minatar()
    else:
        gymnasium.register_envs(module)


def make_one(spec: GymSpec, options: Mapping[str, Any], render: bool) -> gymnasium.Env[Any, Any]:
    """One environment without the wrappers whose work the slots do themselves: step order, checks, time limit."""
    spec = copy.deepcopy(spec)
    spec.order_enforce = False
    extra = {"render_mode": "rgb_array"} if render else {}
    try:
        quieten(spec)
        return repaired(gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **options, **extra))
    except Exception as error:
        raise explained(spec, error) from error


def explained(spec: GymSpec, error: Exception) -> Exception:
    """Why an environment could not be made, in one message."""
    if isinstance(error, (gymnasium.error.DependencyNotInstalled, ImportError)):
        extra = next((ours for part, ours in EXTRAS.items() if part in str(spec.entry_point)), None)
        remedy = f' Try pip install "ganglion[{extra}]".' if extra else ""
        return UserError(
            f"env.id: {spec.id} needs a package that is not installed ({error.__cause__ or error}).{remedy}"
        )
    if isinstance(error, gymnasium.error.Error):
        return UserError(f"env.id: {spec.id}: {error}")
    if isinstance(error, TypeError) and "argument" in str(error):
        return UserError(f"env.options: {str(error).split(' was raised')[0]} ({spec.id})")
    return error if isinstance(error, UserError) else broken(spec.id, error, "making it")


# ------------------------------------------------------------ by name, for workers


def gym_slot(
    slot: int,
    spec: str,
    options: Mapping[str, Any],
    per_slot: Sequence[Mapping[str, Any]] = (),
    layers: Sequence[Sequence[Any]] = (),
) -> gymnasium.Env[Any, Any]:
    """One slot's environment from a registered spec as JSON, in these named wrappers.

    `per_slot` options take turns over the slots.
    """
    from gymnasium.envs.registration import EnvSpec

    return wrapped(make_one(EnvSpec.from_json(spec), options_of(slot, options, per_slot), False), layers)


def own_slot(slot: int, made: str) -> gymnasium.Env[Any, Any]:
    """One slot's environment from a class or function that needs to be told nothing."""
    env: gymnasium.Env[Any, Any] = by_name(made)()
    return env


def options_of(slot: int, options: Mapping[str, Any], per_slot: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What one slot's environment is made with."""
    return {**options, **(per_slot[slot % len(per_slot)] if per_slot else {})}


def carried(spec: GymSpec) -> str:
    """A spec as JSON. What it makes must have a module and a name: a worker imports it by them."""
    spec = copy.deepcopy(spec)
    entry = spec.entry_point
    if callable(entry):
        spec.entry_point = address(entry, spec.id)
    spec.vector_entry_point = None
    try:
        return spec.to_json()
    except Exception as error:
        raise UserError(f"env.workers: the registration of {spec.id} cannot be sent to a worker ({error})") from error


def address(made: Any, name: str) -> str:
    """The "module:name" of a class or function that makes an environment."""
    module, own = getattr(made, "__module__", "__main__"), getattr(made, "__qualname__", "<locals>")
    if module == "__main__" or "<" in own:
        raise UserError(
            f"env.workers: {name} is made by {own} of {module}, which a worker cannot import. Put it at "
            'the top level of a module and register it by entry_point="module:Class", or set env.workers to 0.'
        )
    return f"{module}:{own}"


def plain(name: str, value: Any) -> Any:
    """A value as JSON would carry it; refused where JSON cannot."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: workers take plain values only: {error}") from error
    return json.loads(text)


def by_name(name: str) -> Any:
    """What "module:function" names."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise UserError(f"a maker should be named 'module:function', got {name!r}")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
