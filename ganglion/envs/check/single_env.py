"""One gymnasium environment, walked call by call: what it returns, repeats, keeps and changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from ganglion.envs import legal_actions
from ganglion.envs.check import cost
from ganglion.envs.check.findings import Broken, Finding, failed, number, passed, raised, short, warned
from ganglion.envs.check.rows import Trace
from ganglion.envs.gym_arrays import leaves
from ganglion.envs.gym_spaces import from_gym
from ganglion.envs.seeds import episode_seed
from ganglion.errors import UserError

World = gymnasium.Env[Any, Any]
FIVE = "return obs, reward, terminated, truncated, info."


class Moment(NamedTuple):
    """What one call of reset (no action) or step gave, copied, and what else it did."""

    obs: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: Any
    action: Any
    first: bool
    limited: bool  # by the time limit around the environment
    seconds: float
    touched: str  # what of an earlier call it changed in place


Choose = Callable[[Moment], Any]


# ------------------------------------------------------------ walking


class Chooser:
    """Random legal actions; one in eight of a Box lies in a corner of it."""

    def __init__(self, space: spaces.Space[Any], seed: int) -> None:
        self.space = copy.deepcopy(space)
        self.space.seed(seed)
        self.dice = np.random.default_rng(seed)

    def __call__(self, before: Moment) -> Any:
        if isinstance(self.space, spaces.Box) and self.dice.random() < 0.125:
            corner = self.space.low if self.dice.random() < 0.5 else self.space.high
            if np.isfinite(corner).all():
                return corner.copy()
        return legal_actions.sample(self.space, legal_actions.mask_of(before.obs, before.info), self.dice)


def replayed(moments: Sequence[Moment]) -> Choose:
    """The actions of an earlier walk, in their order."""
    actions = iter([m.action for m in moments if not m.first])
    return lambda before: next(actions)


def drive(env: World, seed: int, choose: Choose, limit: int = 0, spoil: bool = False) -> Iterator[Moment]:
    """Walks for ever, resetting at each ending; `spoil` overwrites what was returned before the next call."""
    before: Moment | None = None
    kept: Any = None
    episode = length = 0
    while True:
        begun = before is None or before.terminated or before.truncated
        action = None if begun or before is None else choose(before)
        given = copy.deepcopy(action)
        start = perf_counter()
        result = _reset(env, episode_seed(seed, 0, episode)) if begun else _step(env, given, seed, episode, length)
        seconds = perf_counter() - start
        touched = "" if before is None or same(kept, before.obs) else "an observation"
        if given is not None and not same(given, action):
            touched = "the action"
        obs, reward, terminated, truncated, info = result
        length = 0 if begun else length + 1
        episode += bool(terminated or truncated or length == limit > 0)
        limited = length == limit > 0
        kept, shown = obs, copy.deepcopy(obs)
        before = Moment(
            shown, reward, bool(terminated), bool(truncated) or limited, info, action, begun, limited, seconds, touched
        )
        yield before
        if spoil:
            kept = copy.deepcopy(shown)
            overwrite(obs)


def _reset(env: World, seed: int) -> tuple[Any, Any, bool, bool, Any]:
    try:
        result: Any = env.reset(seed=seed)
    except TypeError as error:
        if "seed" in str(error) or "unexpected keyword" in str(error):
            fix = "def reset(self, *, seed=None, options=None): super().reset(seed=seed) ..."
            raise Broken(failed("calls", f"reset(seed=...) is refused: {short(error)}.", fix)) from error
        raise raised("calls", error, f"reset(seed={seed})") from error
    except Exception as error:
        raise raised("calls", error, f"reset(seed={seed})") from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        seen = f"reset() should give (obs, info), info a dict; got {type(result).__name__} {short(result)}."
        raise Broken(failed("calls", seen, "return obs, {} from reset()."))
    return result[0], 0.0, False, False, result[1]


def _step(env: World, action: Any, seed: int, episode: int, length: int) -> tuple[Any, Any, Any, Any, Any]:
    when = f"step({short(action)}), the {length + 1}. of episode seed {episode_seed(seed, 0, episode)},"
    try:
        result: Any = env.step(action)
    except Exception as error:
        raise raised("calls", error, when) from error
    if not isinstance(result, tuple) or len(result) != 5:
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        old = " (the old gym interface)" if isinstance(result, tuple) and len(result) == 4 else ""
        raise Broken(failed("calls", f"step() should give five values, got {got}{old}.", FIVE))
    if not isinstance(result[4], dict):
        raise Broken(failed("calls", f"info should be a dict, got {short(result[4])}.", FIVE))
    for name, flag in zip(("terminated", "truncated"), result[2:4]):
        if not isinstance(flag, bool | np.bool_ | int | np.integer):
            raise Broken(failed("calls", f"{name} should be a bool, got {type(flag).__name__} {short(flag)}.", FIVE))
    return result


def same(a: Any, b: Any) -> bool:
    """Whether two trees hold equal arrays."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    try:
        return np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")
    except TypeError:
        return bool(a == b)


def overwrite(obs: Any) -> None:
    """Fills the arrays of an observation with other numbers of their kind."""
    for part in obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple | list) else ():
        overwrite(part)
    if isinstance(obs, np.ndarray) and obs.flags.writeable and obs.dtype.kind in "biuf":
        obs[...] = np.ones((), obs.dtype)


def traces(moments: Sequence[Moment]) -> list[Trace]:
    """Moments as episodes."""
    found: list[Trace] = []
    for m in moments:
        if m.first:
            found.append(Trace())
        else:
            found[-1].rewards.append(m.reward)
        found[-1].obs.append(m.obs)
        found[-1].masks.append(legal_actions.mask_of(m.obs, m.info))
        found[-1].terminated, found[-1].truncated, found[-1].limited = m.terminated, m.truncated, m.limited
    return found


# ------------------------------------------------------------ what it says of itself


def declared(env: World) -> Finding:
    """The two spaces: there, valid, and of a kind that can be learned with."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            old = " of old gym" if type(space).__module__.split(".")[0] == "gym" else ""
            seen = f"{name} is {short(type(space).__name__)}{old}, not a space of gymnasium."
            raise Broken(failed("spaces", seen, f"set self.{name} = gymnasium.spaces.... in __init__()."))
        try:
            parts = leaves(space)
            from_gym(space)  # which refuses some masks
        except UserError as error:
            seen = str(error).removeprefix("env: ")
            raise Broken(failed("spaces", f"{seen}.", "compose the space of those.")) from error
        for leaf in parts:
            if isinstance(leaf.space, spaces.Box) and not (leaf.space.low <= leaf.space.high).all():
                seen = f"{name} has a Box whose low is above its high (or nan)."
                raise Broken(failed("spaces", seen, "low <= high, element by element."))
    boxes = [leaf.space for leaf in leaves(env.action_space) if isinstance(leaf.space, spaces.Box)]
    if any(not (np.isfinite(box.low).all() and np.isfinite(box.high).all()) for box in boxes):
        return warned("spaces", "actions have no finite bounds: SAC and TD3 need them.", "bound action_space.")
    if any(np.abs([box.low, box.high]).max() > 10 for box in boxes):
        fix = "take actions in [-1, 1] and scale inside the environment."
        return warned("spaces", "actions reach beyond 10: exploration begins with steps of about 1.", fix)
    wide = [s for s in leaves(env.observation_space) if _float_image(s.space)]
    if wide:
        return warned("spaces", "images as reals up to 255.", "use dtype=np.uint8: a quarter of the memory.")
    return passed("spaces", "valid, and of a kind that can be learned with.")


def _float_image(space: spaces.Space[Any]) -> bool:
    real = isinstance(space, spaces.Box) and space.dtype != np.uint8
    return real and len(space.shape or ()) == 3 and bool((space.high == 255).all())  # type: ignore[attr-defined]


def infos(moments: Sequence[Moment]) -> Finding:
    """Whether info can be read: names are text, and numbers are averaged into records."""
    keys = {key: value for m in moments for key, value in m.info.items()}
    odd = next((key for key in keys if not isinstance(key, str)), None)
    if odd is not None:
        return failed("info", f"a key that is no text: {short(repr(odd))}.", "use str keys.")
    if any(a.info is b.info and a.info for a, b in zip(moments, moments[1:])):
        return warned("info", "every call returns the same dict, changed in place.", "return a new dict.")
    kinds = (int, float, np.integer, np.floating, np.bool_)
    shown = [key for key, value in keys.items() if isinstance(value, kinds) and not key.startswith("_")]
    return passed("info", f"recorded per episode: {', '.join(sorted(shown)[:6])}." if shown else "nothing to record.")


# ------------------------------------------------------------ repeating


def difference(a: Moment, b: Moment) -> str:
    """In what two calls that should be equal are not; empty where they are."""
    if not same(a.obs, b.obs):
        return f"observations {short(a.obs)} and {short(b.obs)}"
    if not same(a.reward, b.reward):
        return f"rewards {short(a.reward)} and {short(b.reward)}"
    flags = (a.terminated, a.truncated) == (b.terminated, b.truncated)
    return "" if flags else "endings"


def compare(walk: Iterator[Moment], known: Sequence[Moment]) -> str:
    """Where a walk first leaves a known one."""
    for count, (before, m) in enumerate(zip(known, walk)):
        found = difference(before, m)
        if found:
            return f"at call {count}: {found}"
    return ""


def beside(walk: Iterator[Moment], other: Iterator[Moment]) -> Iterator[Moment]:
    """A walk with another taken at the same time."""
    for m in walk:
        yield m
        next(other)


def streams() -> dict[str, str]:
    """The global random streams as they are."""
    return {"random": repr(random.getstate()), "numpy.random": repr(np.random.get_state())}


def repeatable(make: Callable[[], World], used: World, seed: int, limit: int, known: Sequence[Moment]) -> Finding:
    """Same seed and actions: the same in another copy, in a copy with others beside it, and after another reset."""
    before = streams()
    again = compare(drive(make(), seed, replayed(known), limit), known)
    shared = [name for name, state in streams().items() if state != before[name]]
    source = f" It draws from the global {' and '.join(shared)}." if shared else ""
    fix = "super().reset(seed=seed) in reset(), then only self.np_random; until then env.resume=restart."
    if again:
        return failed("repeats", f"the same seed and actions give other results {again}.{source}", fix)
    other = make()
    company = drive(other, seed + 1, Chooser(other.action_space, seed + 1), limit)
    crowd = compare(beside(drive(make(), seed, replayed(known), limit), company), known)
    if crowd or source:
        seen = source.strip() or f"copies in one process disturb each other {crowd}."
        kept = "keep state in self, not in the class or module"
        return failed("repeats", seen, fix if source else f"{kept}.")
    left = compare(drive(used, seed, replayed(known), limit), known)
    if left:
        return failed("repeats", f"after use, reset(seed) starts otherwise {left}.", "clear everything in reset().")
    return passed("repeats", f"{len(known)} calls the same in another copy, beside others and after reset(seed).")


def seeded(make: Callable[[], World], seed: int, limit: int, known: Sequence[Moment]) -> Finding:
    """Whether the seed reaches what is random."""
    for other in range(seed + 1, seed + 4):
        env = make()
        moments = drive(env, other, Chooser(env.action_space, seed), limit)
        walk, hidden = [next(moments)], generators(env)
        walk += islice(moments, min(len(known), 200))
        if any(difference(a, b) for a, b in zip(walk, known)):
            return passed("seed", "other seeds give other episodes.")
        moved = [name for name, state in generators(env).items() if name in hidden and state != hidden[name]]
    asked = episode_seed(other, 0, sum(m.first for m in walk) - 1)
    if moved:
        seen = f"every seed gives the same episodes, though self.{moved[0]} is drawn from."
        return warned("seed", seen, "draw from self.np_random, which reset(seed=seed) of gymnasium.Env seeds.")
    if getattr(env.unwrapped, "_np_random_seed", asked) != asked:
        fix = "super().reset(seed=seed) in reset(); nothing to do where nothing is random."
        return warned("seed", "every seed gives the same episodes, and reset() does not take the seed.", fix)
    return passed("seed", "nothing in it is random: every seed gives the same episodes.")


def generators(env: World) -> dict[str, str]:
    """Random generators an environment keeps beside gymnasium's own, and their state."""
    found = {}
    for name, value in vars(env.unwrapped).items():
        if isinstance(value, np.random.Generator) and name != "_np_random":
            found[name] = repr(value.bit_generator.state)
        elif isinstance(value, np.random.RandomState):
            found[name] = repr(value.get_state())
        elif isinstance(value, random.Random):
            found[name] = repr(value.getstate())
    return found


def owned(make: Callable[[], World], seed: int, limit: int, known: Sequence[Moment], repeats: bool) -> Finding:
    """Whether what is returned belongs to the caller."""
    touched = next((m.touched for m in known if m.touched), "")
    if touched == "the action":
        return warned("aliasing", "step() changes the action it is given.", "copy it first.")
    if touched:
        seen = "an observation that was returned changes at the next call."
        return warned("aliasing", f"{seen} Ganglion copies it; others keep it.", "return self.obs.copy().")
    if repeats and compare(drive(make(), seed, replayed(known), limit, spoil=True), known):
        seen = "writing into a returned observation changes the world."
        return warned("aliasing", seen, "return a copy of what the environment goes on using.")
    return passed("aliasing", "what is returned is the caller's own.")


def pace(moments: Sequence[Moment]) -> cost.Pace:
    """What steps and resets take; the first reset loads things, and counts only where it is the only one."""
    steps = sorted(m.seconds for m in moments if not m.first)
    resets = [m.seconds for m in moments if m.first]
    later = sorted(resets[1:] or resets)
    return cost.Pace(
        step=float(np.median(steps)) if steps else 0.0,
        reset=float(np.median(later)),
        mean=cost.trimmed(steps),
        resets=cost.trimmed(later) * (len(resets) - 1) / max(len(steps), 1),
    )


def summary(env: World, limit: int) -> str:
    """The spaces and the time limit, in a line."""
    ends = f"limit {number(limit)}" if limit else "no time limit"
    return f"{described(env.observation_space)} -> {described(env.action_space)}, {ends}"


def described(space: spaces.Space[Any]) -> str:
    """A space in a few characters, without its bounds."""
    if isinstance(space, spaces.Dict):
        return short("{" + ", ".join(f"{key}: {described(part)}" for key, part in space.spaces.items()) + "}")
    if isinstance(space, spaces.Tuple):
        return short(f"({', '.join(described(part) for part in space.spaces)})")
    return f"Box{list(space.shape)} {space.dtype}" if isinstance(space, spaces.Box) else short(space)
