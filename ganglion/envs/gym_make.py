"""From an id to a gymnasium environment: found, made, wrapped, and repaired where its package is at fault."""

from __future__ import annotations

import copy
import importlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec

from ganglion.errors import UserError, nearest
from ganglion.faults import broken

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymSpec


log = logging.getLogger(__name__)


class NewWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """BipedalWalker in a new Box2D world for each episode: in the old one traces of the last episode remain, and the
    same seed and actions come to lead elsewhere. Gymnasium's LunarLander does the same."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import Box2D

        walker: Any = self.env.unwrapped
        walker._destroy()
        walker.world = Box2D.b2World()
        return self.env.reset(seed=seed, options=options)


def repaired(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, with its repair around it where it needs one."""
    return NewWorld(env) if type(env.unwrapped).__name__ == "BipedalWalker" else env


def quieten(spec: GymSpec, first: bool = True) -> None:
    """Keeps ALE from saying its name, and MuJoCo from repeating its warnings, for every environment that is made.
    `first`: whether warnings of this process are shown at all."""
    entry = str(spec.entry_point)
    if entry.startswith("ale_py"):
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    elif "mujoco" in entry:
        with suppress(ImportError, AttributeError):  # an older one, or none
            mujoco = importlib.import_module("mujoco")
            if mujoco.get_mju_user_warning() is None:
                mujoco.set_mju_user_warning(warn_once if first else shown.add)


shown: set[str] = set()  # warnings of simulators


def warn_once(text: str) -> None:
    if text not in shown:
        shown.add(text)
        log.warning("MuJoCo: %s", text)


class Checked(spaces.Discrete):
    """Actions that were looked at before they got here: asking again takes a third of a small environment's step."""

    def contains(self, x: Any) -> bool:
        return True


class CheckedEach(spaces.MultiDiscrete):
    """The same, of a vector environment."""

    def contains(self, x: Any) -> bool:
        return True


def trusting(env: Any) -> None:
    """Makes an environment believe that its actions are within its space: `Actions` sees to that where they are plain
    numbers, unless a wrapper makes other ones of them."""
    known: dict[type, type] = {spaces.Discrete: Checked, spaces.MultiDiscrete: CheckedEach}
    space = env.action_space
    if env is env.unwrapped and type(space) in known:
        space.__class__ = known[type(space)]


WRAPPERS = {  # what `env.wrappers` can name -> where it is
    "rewind": "ganglion.envs.atari:Rewind",
    "sticky": "ganglion.envs.atari:Sticky",
    "noop": "ganglion.envs.atari:NoopStart",
    "skip": "ganglion.envs.atari:SkipMax",
    "life": "ganglion.envs.atari:EpisodicLife",
    "fire": "ganglion.envs.atari:FireStart",
    "warp": "ganglion.envs.atari:Warp",
    "image": "ganglion.envs.grid_worlds:Image",
    "one_hot": "ganglion.envs.grid_worlds:OneHot",
    "flat": "ganglion.envs.grid_worlds:Flat",
    "mission": "ganglion.envs.grid_worlds:Mission",
}

SETTINGS = {"sticky": (0.0, 1.0), "noop": (1, 10_000), "skip": (1, 1_000), "warp": (8, 1_024)}  # from, to

Layer = tuple[Any, ...]  # a name, and its setting where it has one


def wrapped(env: gymnasium.Env[Any, Any], layers: Sequence[Sequence[Any]]) -> gymnasium.Env[Any, Any]:
    """The environment inside these wrappers, the first innermost."""
    for name, *setting in layers:
        env = find(name)(env, *setting)
    return env


def check_setting(name: str, given: Sequence[Any]) -> None:
    """Refuses a setting that a wrapper does not take."""
    if name not in SETTINGS:
        if given:
            raise ValueError(f"{name} takes no setting")
        return
    low, high = SETTINGS[name]
    kinds = (int,) if isinstance(low, int) else (int, float)
    if not given or type(given[0]) not in kinds or not low <= given[0] <= high:
        whole = "a whole number" if isinstance(low, int) else "a number"
        raise ValueError(f"{name} takes {whole} from {low:g} to {high:g}")


def find(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """A wrapper by its name."""
    if name not in WRAPPERS:
        raise UserError(
            f"env.wrappers: unknown name {name!r}. Accepted: {', '.join(WRAPPERS)}.{nearest(name, WRAPPERS)}"
        )
    module, _, attribute = WRAPPERS[name].partition(":")
    found: Callable[..., gymnasium.Env[Any, Any]] = getattr(importlib.import_module(module), attribute)
    return found


EXTRAS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "minigrid": "minigrid",
    "highway_env": "highway",
}  # entry point -> our extra
FAMILIES = {
    "ALE/": "ale_py",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "MinAtar/": "minatar",
    "highway-": "highway_env",
}  # id -> package


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
        importlib.import_module("ganglion.envs.grid_worlds").register_minatar()
    else:
        gymnasium.register_envs(module)


def make_one(spec: GymSpec, options: Mapping[str, Any], render: bool, first: bool = True) -> gymnasium.Env[Any, Any]:
    """One environment without the wrappers whose work the slots do themselves: step order, checks, time limit."""
    spec = copy.deepcopy(spec)
    spec.order_enforce = False
    extra = {"render_mode": "rgb_array"} if render else {}
    try:
        quieten(spec, first)
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

    return wrapped(make_one(EnvSpec.from_json(spec), options_of(slot, options, per_slot), False, slot == 0), layers)


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
