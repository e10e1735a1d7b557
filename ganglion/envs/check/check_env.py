"""Looks an environment over before anyone trains on it: one verdict per line, each with its fix.

report = ganglion.check_env("CartPole-v1")
report = ganglion.check_env(MyEnv)          # a class of your own, or a function that makes one
assert report.passed, report
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium

from ganglion.config import EnvConfig
from ganglion.core import Env
from ganglion.envs.check import cost, rows, single_env, slots_env
from ganglion.envs.check.findings import Broken, CheckReport, Finding, failed, raised, warned
from ganglion.envs.configs import GymConfig
from ganglion.envs.gym import GymEnv
from ganglion.envs.gym_make import address, by_name, find_spec
from ganglion.envs.gym_spaces import to_gym
from ganglion.envs.pool import Pool, PoolEnv
from ganglion.envs.vector import VectorGymEnv
from ganglion.errors import EnvError, UserError

SLOTS = 3  # of environments that have several
WORKERS = 2  # with shares of different sizes
STEPS = 3_000
SECONDS = 20.0
ROOM = 256 << 20  # bytes of observations kept


def check_env(
    env: str | EnvConfig | Callable[[], Any], *, steps: int = STEPS, seed: int = 0, seconds: float = SECONDS
) -> CheckReport:
    """Checks a registered gymnasium id, an env config, or a class or function that makes an environment.

    `steps` are walked with random legal actions, as far as `seconds` allow, and some of them repeated.
    """
    if isinstance(env, str):
        env = GymConfig(id=env)
    if isinstance(env, EnvConfig):
        return _config(env, steps, seed, seconds)
    name = getattr(env, "__qualname__", type(env).__name__)
    try:
        made = env()
    except Exception as error:
        return CheckReport(name, "could not be made", (raised("construct", error, f"{name}()").finding,))
    if not isinstance(made, gymnasium.Env) and hasattr(made, "spec") and hasattr(made, "promise"):
        made.close()
        return CheckReport(name, *_contract(env, steps, seed, seconds))
    if isinstance(made, gymnasium.vector.VectorEnv):
        made.close()
        return CheckReport(name, *_contract(lambda: VectorGymEnv(env(), name), steps, seed, seconds))
    if not isinstance(made, gymnasium.Env):
        old = callable(getattr(made, "reset", None)) and callable(getattr(made, "step", None))
        fix = f"class New(ganglion.envs.OldGym): world = {name}" if old else f"class {name}(gymnasium.Env): ..."
        return CheckReport(name, "of another kind", (failed("construct", f"{name} is no gymnasium.Env.", fix),))
    limit = (made.spec.max_episode_steps or 0) if made.spec else 0
    with suppress(Exception):  # said later
        made.close()
    walks = Walks(lambda: GymEnv(lambda slot: env(), SLOTS, name), _own_pool(env, name))
    return CheckReport(name, *_gymnasium(env, limit, steps, seed, seconds, walks))


def _own_pool(made: Callable[[], Any], name: str) -> Callable[[], Env] | None:
    """Workers for a class or function that they can import."""
    try:
        where = address(made, name)
        if by_name(where) is not made:
            return None
    except (UserError, ImportError, AttributeError):
        return None
    return lambda: PoolEnv(Pool("ganglion.envs.gym_make:own_slot", {"made": where}, SLOTS, WORKERS, spare=False), name)


def _config(cfg: EnvConfig, steps: int, seed: int, seconds: float) -> CheckReport:
    name = str(cfg.plain().get("id") or cfg.kind)
    if "life" in type(cfg).model_fields:  # lives are endings inside one score: looked at without them
        cfg = cfg.model_copy(update={"life": False})
    if not isinstance(cfg, GymConfig) or cfg.vector:
        slots = _whole_copies(cfg)
        return CheckReport(name, *_contract(lambda: cfg.whole(slots=slots), steps, seed, seconds))
    spec = find_spec(cfg.registered())
    limit = cfg.time_limit or spec.max_episode_steps or 0
    make = cfg.maker(spec)
    here, there = (cfg.model_copy(update={"workers": workers}) for workers in (0, WORKERS))
    tried = cfg.workers != 0 and cfg.for_workers()
    walks = Walks(lambda: here.whole(slots=SLOTS), (lambda: there.whole(slots=SLOTS)) if tried else None)
    return CheckReport(name, *_gymnasium(lambda: make(0), limit, steps, seed, seconds, walks))


# ------------------------------------------------------------ one gymnasium environment


class Copies:
    """Makes copies of an environment, and closes them all in the end."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.made: list[Any] = []

    def __call__(self) -> Any:
        try:
            self.made.append(self.make())
        except Exception as error:
            if isinstance(error, UserError) and not isinstance(error, EnvError):
                raise
            raise raised("construct", error.__cause__ or error, "making it") from error
        return self.made[-1]

    def close(self) -> list[Finding]:
        """What went wrong with it, once."""
        found: list[Finding] = []
        for env in self.made:
            try:
                env.close()
            except Exception as error:
                fix = raised("close", error, "close()").finding
                found = [warned("close", fix.seen, fix.fix)]
        return found


class Walks(NamedTuple):
    """How slots of an environment are built: walked by this process, and by workers where that is tried."""

    here: Callable[[], Env]
    there: Callable[[], Env] | None


def _gymnasium(
    make: Callable[[], Any], limit: int, steps: int, seed: int, seconds: float, walks: Walks
) -> tuple[str, tuple[Finding, ...]]:
    """First as it is, then as slots of the contract."""
    found: list[Finding] = []
    copies, groups, about = Copies(make), Copies(walks.here), ""
    try:
        env = copies()
        found.append(single_env.declared(env))
        about = single_env.summary(env, limit)
        walk = single_env.drive(env, seed, single_env.Chooser(env.action_space, seed), limit)
        moments = _timed(walk, steps, seconds / 3)
        pace = single_env.pace(moments)
        found.append(Finding("pass", "calls", f"reset and step give what gymnasium says, {len(moments):,} calls."))
        found += _rows(env.observation_space, env.action_space, single_env.traces(moments), limit)
        found.append(single_env.infos(moments))
        known = moments[: _repeats(pace, seconds, 400)]
        repeats = single_env.repeatable(copies, env, seed, limit, known)
        found.append(repeats)
        exact = repeats.verdict == "pass"
        found += [single_env.seeded(copies, seed, limit, known)] if exact else []
        found.append(single_env.owned(copies, seed, limit, known, exact))
        if all(finding.verdict != "fail" for finding in found):
            found += _slots_of(groups, walks.there, seed, _repeats(pace, seconds, 200) // SLOTS)
        del moments, known
        again = single_env.drive(env, seed + 1, single_env.Chooser(env.action_space, seed + 1), limit)
        found += [cost.speed(pace), _memory(again, steps, seconds / 3)]
    except Broken as broken:
        found.append(broken.finding)
    groups.close()
    return about, (*found, *copies.close())


def _whole_copies(cfg: EnvConfig) -> int:
    """How many slots to look at: as many as are whole copies of a game of several agents."""
    for slots in (SLOTS, 4 * SLOTS):
        try:
            cfg.whole(slots=slots).close()
        except UserError as error:
            if "no whole copies" not in str(error):
                raise
        else:
            return slots
    return cfg.slots


def _slots_of(build: Copies, there: Callable[[], Env] | None, seed: int, count: int) -> list[Finding]:
    """The same environment under the contract: only what could differ there."""
    env = build()
    walk = slots_env.drive(env, seed, slots_env.SlotsChooser(env.spec.action, env.spec.slots, seed))
    seen = list(islice(walk, count))
    found = [
        slots_env.typed(env, seen),
        slots_env.accounted(env, seen, env.episodes()),
        slots_env.resumable(build, seed, seen),
    ]
    if there is None or sys.platform != "linux":
        return found
    return [*found, slots_env.parallel(there, env, seed, seen)]


# ------------------------------------------------------------ an environment of the contract


def _contract(make: Callable[[], Env], steps: int, seed: int, seconds: float) -> tuple[str, tuple[Finding, ...]]:
    found: list[Finding] = []
    build, about = Copies(make), ""
    try:
        env: Env = build()
        space, actions = to_gym(env.spec.obs), to_gym(env.spec.action)
        about = f"{single_env.described(space)} -> {single_env.described(actions)}, {env.spec.slots} slots"
        walk = slots_env.drive(env, seed, slots_env.SlotsChooser(env.spec.action, env.spec.slots, seed))
        seen = _timed(walk, max(steps // env.spec.slots, 1), seconds / 3)
        finished, pace = env.episodes(), slots_env.pace(seen)
        known = seen[: _repeats(pace, seconds / env.spec.slots, 200)]
        found += [slots_env.typed(env, seen), slots_env.dead_rows(build, seed, seen, known)]
        found.append(slots_env.accounted(env, seen, finished))
        episodes = [trace for own in slots_env.traces(seen) for trace in own]
        found += _rows(space, actions, episodes, int(getattr(env, "limit", 0)))
        repeats = slots_env.repeatable(build, env, seed, known)
        found += [repeats, slots_env.seeded(build, seed, known), slots_env.owned(seen)]
        if repeats.verdict == "pass":
            found.append(slots_env.resumable(build, seed, known))
        del seen, known, episodes
        again = slots_env.drive(env, seed, slots_env.SlotsChooser(env.spec.action, env.spec.slots, seed))
        found += [
            cost.speed(pace, env.spec.slots),
            _memory(again, steps // env.spec.slots, seconds / 3, env.episodes),
        ]
    except Broken as broken:
        found.append(broken.finding)
    return about, (*found, *build.close())


# ------------------------------------------------------------ both


def _repeats(pace: cost.Pace, seconds: float, most: int) -> int:
    """How many calls can be repeated some ten times in a third of the time."""
    return int(min(max(seconds / 30 / max(pace.mean + pace.resets, 1e-9), 30), most))


def _timed(walk: Any, steps: int, seconds: float) -> list[Any]:
    """So many moments of a walk, or as many as the time and a fair share of memory allow."""
    ends, found, most = perf_counter() + seconds, [], steps + 1
    for moment in walk:
        found.append(moment)
        if len(found) == 1:
            most = min(most, max(ROOM // max(_size(moment), 1), 50))
        if len(found) >= most or (perf_counter() > ends and len(found) > 2):
            break
    return found


def _size(value: Any) -> int:
    """Bytes of the arrays in a tree."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 0))


def _rows(space: Any, actions: Any, episodes: list[rows.Trace], limit: int) -> list[Finding]:
    observed = rows.observations(space, episodes)
    found = [observed, rows.finite(space, episodes), rows.rewards(episodes)]
    if observed.verdict != "fail":
        found += [rows.sizes(space, episodes), rows.endings(space, episodes, limit)]
    masked = rows.masks(space, episodes, actions)
    return [*found, masked] if masked else found


def _memory(walk: Any, steps: int, seconds: float, drain: Callable[[], Any] = lambda: None) -> Finding:
    def advance(count: int) -> None:
        for _ in islice(walk, count):
            pass
        drain()

    gc.collect()
    return cost.memory(advance, 2 * steps, seconds)
