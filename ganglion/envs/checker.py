"""Looks an environment over before anyone trains on it: one verdict per line, each with its fix.

report = ganglion.check_env("CartPole-v1")
report = ganglion.check_env(MyEnv)          # a class of your own, or a function that makes one
assert report.passed, report
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import Any, cast

import gymnasium

from ganglion.config import EnvConfig
from ganglion.core import Env
from ganglion.envs.checks import cost, rows, single, slots
from ganglion.envs.checks.findings import Broken, Finding, Report, failed, raised
from ganglion.envs.configs import GymConfig
from ganglion.envs.gym import GymEnv
from ganglion.envs.making import find_spec
from ganglion.envs.spaces import to_gym
from ganglion.errors import UserError

SLOTS = 3  # of environments that have several
STEPS = 3_000
SECONDS = 20.0


def check_env(
    env: str | EnvConfig | Callable[[], Any], *, steps: int = STEPS, seed: int = 0, seconds: float = SECONDS
) -> Report:
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
        return Report(name, "could not be made", (raised("construct", error, f"{name}()").finding,))
    if not isinstance(made, gymnasium.Env) and hasattr(made, "spec") and hasattr(made, "promise"):
        return Report(name, *_contract(env, steps, seed, seconds))
    if not isinstance(made, gymnasium.Env):
        fix = f"class {name}(gymnasium.Env): ..."
        wrong = failed("construct", f"{name} is no gymnasium.Env.", fix)
        return Report(name, f"of type {type(made).__mro__[-2].__module__}.{type(made).__name__}", (wrong,))
    limit = (made.spec.max_episode_steps or 0) if made.spec else 0
    return Report(name, *_gymnasium(env, limit, steps, seed, seconds, lambda: GymEnv(lambda slot: env(), SLOTS, name)))


def _config(cfg: EnvConfig, steps: int, seed: int, seconds: float) -> Report:
    name = str(cfg.plain().get("id") or cfg.kind)
    if "life" in type(cfg).model_fields:  # lives are endings inside one score: looked at without them
        cfg = cfg.model_copy(update={"life": False})
    if not isinstance(cfg, GymConfig) or cfg.vector:
        return Report(name, *_contract(lambda: cfg.build(slots=SLOTS), steps, seed, seconds))
    spec = find_spec(cfg.registered())
    limit = cfg.time_limit or spec.max_episode_steps or 0
    make = cfg.maker(spec)
    return Report(name, *_gymnasium(lambda: make(0), limit, steps, seed, seconds, lambda: cfg.build(slots=SLOTS)))


# ------------------------------------------------------------ one gymnasium environment


def _gymnasium(
    make: Callable[[], Any], limit: int, steps: int, seed: int, seconds: float, build: slots.Build
) -> tuple[str, tuple[Finding, ...]]:
    """First as it is, then as slots of the contract."""
    found: list[Finding] = []
    about = ""
    try:
        env = _made(make)
        found.append(single.declared(env))
        about = single.summary(env, limit)
        walk = single.drive(env, seed, single.Chooser(env.action_space, seed), limit)
        moments = _timed(walk, steps, seconds / 3)
        found.append(Finding("pass", "calls", f"reset and step give what gymnasium says, {len(moments):,} calls."))
        episodes = single.traces(moments)
        found += _rows(env.observation_space, env.action_space, episodes, limit)
        found.append(single.infos(moments))
        repeats = single.repeatable(make, env, seed, limit, moments)
        found.append(repeats)
        exact = repeats.verdict == "pass"
        if exact:
            found.append(single.seeded(make, seed, limit, moments))
        found.append(single.owned(make, seed, limit, moments, exact))
        if all(finding.verdict != "fail" for finding in found):
            found += _slots_of(build, seed)
        found.append(cost.speed(*single.pace(moments)))
        del moments, episodes
        again = single.drive(env, seed + 1, single.Chooser(env.action_space, seed + 1), limit)
        found.append(_memory(again, steps, seconds / 3))
        env.close()
    except Broken as broken:
        found.append(broken.finding)
    return about, tuple(found)


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except UserError:
        raise
    except Exception as error:
        raise raised("construct", error, "making it") from error


def _slots_of(build: slots.Build, seed: int) -> list[Finding]:
    """The same environment under the contract: only what could differ there."""
    env = build()
    walk = slots.drive(env, seed, slots.Chooser(env.spec.action, env.spec.slots, seed))
    seen = list(islice(walk, slots.REPEATS))
    return [
        slots.typed(env, seen),
        slots.accounted(env, seen, env.episodes()),
        slots.resumable(build, seed, seen),
    ]


# ------------------------------------------------------------ an environment of the contract


def _contract(make: Callable[[], Any], steps: int, seed: int, seconds: float) -> tuple[str, tuple[Finding, ...]]:
    found: list[Finding] = []
    about = ""
    build = cast(Callable[[], Env], make)
    try:
        env: Env = _made(build)
        space, actions = to_gym(env.spec.obs), to_gym(env.spec.action)
        about = f"{single.described(space)} -> {single.described(actions)}, {env.spec.slots} slots"
        walk = slots.drive(env, seed, slots.Chooser(env.spec.action, env.spec.slots, seed))
        seen = _timed(walk, max(steps // env.spec.slots, 1), seconds / 3)
        finished = env.episodes()
        found += [slots.typed(env, seen), slots.dead_rows(build, seed, seen), slots.accounted(env, seen, finished)]
        episodes = [trace for own in slots.traces(seen) for trace in own]
        found += _rows(space, actions, episodes, int(getattr(env, "limit", 0)))
        repeats = slots.repeatable(build, env, seed, seen)
        found += [repeats, slots.seeded(build, seed, seen), slots.owned(seen)]
        if repeats.verdict == "pass":
            found.append(slots.resumable(build, seed, seen))
        times = sorted(s.seconds / env.spec.slots for s in seen[1:])
        found.append(cost.speed(times[len(times) // 2], seen[0].seconds, single.trimmed(times), env.spec.slots))
        del seen, episodes
        again = slots.drive(env, seed, slots.Chooser(env.spec.action, env.spec.slots, seed))
        found.append(_memory(again, steps // env.spec.slots, seconds / 3, env.episodes))
        env.close()
    except Broken as broken:
        found.append(broken.finding)
    return about, tuple(found)


# ------------------------------------------------------------ both


def _timed(walk: Any, steps: int, seconds: float) -> list[Any]:
    """So many moments of a walk, or as many as the time allows."""
    ends, found = perf_counter() + seconds, []
    for moment in islice(walk, steps + 1):
        found.append(moment)
        if perf_counter() > ends and len(found) > 2:
            break
    return found


def _rows(space: Any, actions: Any, episodes: list[rows.Trace], limit: int) -> list[Finding]:
    observed = rows.observations(space, episodes)
    found = [observed, rows.finite(space, episodes), rows.rewards(episodes)]
    if observed.verdict != "fail":
        found += [rows.sizes(space, episodes), rows.endings(space, episodes, limit)]
    masked = rows.masks(episodes, actions)
    return [*found, masked] if masked else found


def _memory(walk: Any, steps: int, seconds: float, drain: Callable[[], Any] = lambda: None) -> Finding:
    def advance(count: int) -> None:
        for _ in islice(walk, count):
            pass
        drain()

    gc.collect()
    return cost.memory(advance, 2 * steps, seconds)
