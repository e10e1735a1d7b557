"""What the rows of episodes show, whichever way they were collected: spaces, numbers, rewards, endings, masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from ganglion.core import Box, Composite, mask_misfit
from ganglion.envs.check.findings import Finding, failed, number, passed, short, warned
from ganglion.envs.gym_arrays import MASK, Array, flatten
from ganglion.envs.gym_spaces import from_gym, mask_space
from ganglion.envs.legal_actions import choices, entries
from ganglion.errors import UserError

FEW = 5  # episodes below which lengths and endings say nothing
LONG = 10  # steps: shorter episodes of one length are games of one length, not a time limit


@dataclass
class Trace:
    """One episode: an observation more than rewards; `mask` of each observation where actions can be illegal."""

    obs: list[Any] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)  # arrays, or trees of them; None where a row has none
    rewards: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    limited: bool = False  # by a time limit around the environment, not by its own word

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


# ------------------------------------------------------------ one observation in its space


def problem(space: spaces.Space[Any], value: Any, at: str = "") -> tuple[str, str] | None:
    """The first thing wrong with a value of a space, and its fix; None where it belongs there."""
    where = f" at {at}" if at else ""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
            return f"a dict with the keys {sorted(space.spaces)} was expected{where}, got {short(got)}", _SAME
        return _first(problem(part, value[k], f"{at}/{k}".lstrip("/")) for k, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            return f"a tuple of {len(space.spaces)} was expected{where}, got {short(value)}", _SAME
        return _first(problem(p, v, f"{at}/{i}".lstrip("/")) for i, (p, v) in enumerate(zip(space.spaces, value)))
    return _array_problem(space, value, where)


_SAME = "make observation_space say what reset() and step() return."


def _first(found: Iterator[tuple[str, str] | None]) -> tuple[str, str] | None:
    return next((one for one in found if one is not None), None)


def _array_problem(space: spaces.Space[Any], value: Any, where: str) -> tuple[str, str] | None:
    try:
        array = np.asarray(value)
    except Exception:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        return f"numbers were expected{where}, got {type(value).__name__} {short(value)}", _SAME
    if array.shape != (space.shape or ()):
        return f"shape {space.shape or ()} was expected{where}, got {array.shape}", _SAME
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return None  # another finding's
    low, high = bounds(space)
    if low is None or high is None:
        return None
    slack = 1e-6 + 1e-5 * np.abs(array) if array.dtype.kind == "f" else 0
    outside = (array < low - slack) | (array > high + slack)
    if not outside.any():
        return None
    place = tuple(int(i) for i in np.argwhere(outside)[0])
    which = f" of element {list(place)}" if place else ""
    span = f"[{number(float(low[place]))}, {number(float(high[place]))}]"
    return f"{number(float(array[place]))}{which}{where} is outside its bounds {span}", _BOUNDS


_BOUNDS = "widen the bounds of observation_space (-inf and inf are allowed), or clip what is returned."


def bounds(space: spaces.Space[Any]) -> tuple[Array | None, Array | None]:
    """What the numbers of a space lie between; None where it has no such thing."""
    match space:
        case spaces.Box():
            return space.low, space.high
        case spaces.Discrete():
            return np.asarray(space.start), np.asarray(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case spaces.MultiBinary():
            return np.zeros(space.shape), np.ones(space.shape)
    return None, None


def observations(space: spaces.Space[Any], traces: Sequence[Trace]) -> Finding:
    """Whether every observation is inside its space."""
    rows = [obs for trace in traces for obs in trace.obs]
    wrong = [found for found in (problem(space, obs) for obs in rows) if found is not None]
    if wrong:
        seen, fix = wrong[0]
        return failed("observation", f"{len(wrong):,} of {len(rows):,} do not fit the space: {seen}.", fix)
    other = _dtype(space, rows[0])
    if other:
        return warned("observation", f"inside its space, but {other}.", "return the dtype that observation_space says.")
    return passed("observation", f"{len(rows):,} of {len(rows):,} inside their space.")


def _dtype(space: spaces.Space[Any], obs: Any) -> str:
    """A leaf whose numbers come in another dtype than its space says."""
    for part, value in zip(_leaf_spaces(space), flatten(space, obs), strict=True):
        said, got = np.dtype(part.dtype or np.float32), np.asarray(value).dtype
        if isinstance(part, spaces.Box) and said != got and part.shape:
            return f"as {got} where the space says {said}"
        if not isinstance(part, spaces.Box) and got.kind == "f":
            return f"as {got} where the space says whole numbers"
    return ""


def _leaf_spaces(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _leaf_spaces(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in _leaf_spaces(part)]
    return [space]


# ------------------------------------------------------------ numbers


def finite(space: spaces.Space[Any], traces: Sequence[Trace]) -> Finding:
    """Whether observations and rewards are finite."""
    obs = sum(not _finite(space, obs) for trace in traces for obs in trace.obs)
    rewards = sum(not np.isfinite(_real(reward)) for trace in traces for reward in trace.rewards)
    if obs or rewards:
        fix = "guard divisions, logarithms and integrators; end an episode that has diverged."
        return failed("finite", f"nan or inf in {obs:,} observations and {rewards:,} rewards.", fix)
    return passed("finite", "no nan, no inf.")


def _finite(space: spaces.Space[Any], obs: Any) -> bool:
    if problem(space, obs) is not None:
        return True  # said already
    return all(bool(np.isfinite(np.asarray(x)).all()) for x in flatten(space, obs))


def _real(reward: Any) -> float:
    try:
        return float(np.asarray(reward).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        return 0.0  # no number: said already


def sizes(space: spaces.Space[Any], traces: Sequence[Trace]) -> Finding:
    """Whether observations have a size that networks like."""
    name = "scale"
    leaves = [s for s in _leaf_spaces(space) if isinstance(s, spaces.Box) and np.dtype(s.dtype).kind == "f"]
    rows = [obs for trace in traces for obs in trace.obs if problem(space, obs) is None]
    if not leaves or not rows:
        return passed(name, "no real numbers to scale.")
    flat = [np.concatenate([np.ravel(x) for x in flatten(space, o) if np.asarray(x).dtype.kind == "f"]) for o in rows]
    typical = np.median(np.abs(np.nan_to_num(np.stack(flat))), 0)
    largest = float(typical.max(initial=0.0))
    if largest > 100:
        fix = "algo.net.normalise=true, or divide in the environment."
        return warned(name, f"element {int(typical.argmax())} is typically {number(largest)} in size.", fix)
    return passed(name, f"typical size of an element up to {number(largest)}.")


def rewards(traces: Sequence[Trace]) -> Finding:
    """Whether rewards are numbers of a size that can be learned from."""
    given = [reward for trace in traces for reward in trace.rewards]
    odd = [r for r in given if not isinstance(r, int | float | np.integer | np.floating | np.bool_)]
    if odd:
        seen = f"a number was expected, got {type(odd[0]).__name__} {short(odd[0])}."
        return failed("reward", seen, "return float(reward).")
    numbers = np.nan_to_num(np.array([float(r) for r in given]))
    totals = [sum(_real(r) for r in trace.rewards) for trace in traces if trace.ended]
    largest, typical = float(np.abs(numbers).max(initial=0.0)), float(np.sqrt(np.mean(numbers**2)))
    span = f"{number(float(numbers.min()))} to {number(float(numbers.max()))}"
    seen = f"{span} a step" + (f", {number(float(np.mean(totals)))} an episode with random actions." if totals else ".")
    fix = "algo.processor.reward_scale={}, or algo.normalise_reward=true (ppo)."
    if typical > 100:
        return warned("reward", f"large: {seen}", fix.format(f"{10 ** -np.ceil(np.log10(typical)):.0e}"))
    if 0 < largest < 1e-3:
        return warned("reward", f"small: {seen}", fix.format(f"{10 ** -np.floor(np.log10(largest)):.0e}"))
    if largest == 0:
        return passed("reward", "always 0 with random actions: sparse, so exploration will decide.")
    return passed("reward", seen)


# ------------------------------------------------------------ endings


def endings(space: spaces.Space[Any], traces: Sequence[Trace], limit: int) -> Finding:
    """Whether episodes end, and end as what they are."""
    ended = [trace for trace in traces if trace.ended]
    steps = sum(len(trace.rewards) for trace in traces)
    if not ended:
        if limit:
            return passed("endings", f"none in {steps:,} steps; truncated after {limit:,}.")
        fix = "end episodes, or set env.time_limit to a number of steps."
        return warned("endings", f"no episode ended in {steps:,} steps, and there is no time limit.", fix)
    lengths = [len(trace.rewards) for trace in ended]
    if _looks_limited(space, ended):
        seen = f"all {len(ended)} episodes terminated after exactly {lengths[0]} steps, which looks like a time limit."
        return warned("endings", seen, "return truncated=True for it, and terminated only where nothing can follow.")
    if _restarts_itself(space, ended):
        seen = "the last observation of episodes looks like the first of the next: the environment resets itself."
        return warned("endings", seen, "return the true last observation and wait for reset().")
    terminated = sum(trace.terminated for trace in ended)
    kinds = f"{terminated} terminated, {len(ended) - terminated} truncated"
    return passed("endings", f"{len(ended)} episodes of {min(lengths)} to {max(lengths)} steps: {kinds}.")


def _looks_limited(space: spaces.Space[Any], ended: Sequence[Trace]) -> bool:
    """Terminations all after the same number of steps, without the time being part of the observation."""
    lengths = {len(trace.rewards) for trace in ended}
    alike = len(ended) >= FEW and len(lengths) == 1 and all(t.terminated and not t.truncated for t in ended)
    return alike and lengths.pop() >= LONG and not _shows_time(space, ended)


def _shows_time(space: spaces.Space[Any], ended: Sequence[Trace]) -> bool:
    """Whether some element of the last observation is the same in every episode and unlike all before it."""
    try:
        rows = np.stack([np.stack([_vector(space, obs) for obs in trace.obs]) for trace in ended])  # [N, T + 1, D]
    except ValueError:
        return False
    last, before = rows[:, -1], rows[:, :-1]
    same = (last == last[:1]).all(0)
    new = (before != last[0]).all((0, 1))
    return bool((same & new).any())


def _restarts_itself(space: spaces.Space[Any], ended: Sequence[Trace]) -> bool:
    """Last observations all lie where first ones do, and those between mostly elsewhere."""
    own = [trace for trace in ended if not trace.limited and len(trace.obs) > 2]
    if len(own) < FEW or any(problem(space, obs) for trace in own for obs in (trace.obs[0], trace.obs[-1])):
        return False
    first = np.stack([_vector(space, trace.obs[0]) for trace in own])
    low, high = first.min(0), first.max(0)
    inside = [bool(((v >= low) & (v <= high)).all()) for v in (_vector(space, t.obs[-1]) for t in own)]
    between = [((v >= low) & (v <= high)).all() for t in own for v in (_vector(space, o) for o in t.obs[1:-1])]
    wide = float(np.mean(between)) > 0.5
    return sum(inside) >= 0.9 * len(inside) and not wide


def _vector(space: spaces.Space[Any], obs: Any) -> Array:
    return np.concatenate([np.ravel(x).astype(np.float64) for x in flatten(space, obs)])


# ------------------------------------------------------------ masks


def masks(space: spaces.Space[Any], traces: Sequence[Trace], actions: spaces.Space[Any]) -> Finding | None:
    """Whether action masks fit the actions and leave something to do; None where there are none."""
    rows = [(mask, last) for t in traces for mask, last in zip(t.masks, [False] * (len(t.masks) - 1) + [t.ended])]
    if not any(mask is not None for mask, _ in rows):
        return None
    missing = sum(mask is None and not last for mask, last in rows)
    if missing:
        return failed(
            "mask", f"{missing:,} rows of {len(rows):,} have none.", f"give {MASK!r} at every reset and step."
        )
    given = [(mask, last) for mask, last in rows if mask is not None]
    wrong = next(filter(None, (unfit(space, actions, mask) for mask, _ in given)), None)
    if wrong:
        return failed("mask", *wrong)
    if any(not np.isin(choice, (0, 1)).all() for mask, _ in given for choice in choices(actions, mask)):
        return failed("mask", "entries other than 0 and 1.", "give booleans.")
    empty = sum(not last and not all(choice.any() for choice in choices(actions, mask)) for mask, last in given)
    if empty:
        return failed("mask", f"{empty:,} rows allow no action.", "end the episode there, or allow one (a pass).")
    shares = [choice.mean() for mask, _ in given for choice in choices(actions, mask)]
    return passed("mask", f"{float(np.mean(shares)):.0%} of actions legal on average, never none.")


def unfit(space: spaces.Space[Any], actions: spaces.Space[Any], mask: Any) -> tuple[str, str] | None:
    """Why training would refuse a mask, and its fix: by what its space says, or as one array of info."""
    seen = from_gym(space)
    try:
        told = seen.items[MASK] if isinstance(seen, Composite) and MASK in seen.items else mask_space(entries(mask))
    except UserError as error:
        return f"{str(error).removeprefix('env: ')}.", f"give {MASK!r} as a part of the observation."
    wanted = mask_misfit(told, from_gym(actions))
    size = f"{told.size} entries" if isinstance(told, Box) else "a mask for each of several parts"
    return (f"{size} for {short(actions)}.", f"it should be {wanted}.") if wanted else None
