"""Who steps the slots of an environment, this process or workers: chosen by what a step of it costs; Linux only.

Results do not depend on the choice. What would change them is never chosen here: the number of slots, torch's threads,
native versions of an environment.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ganglion.envs.legal_actions import mask_of, sample

MOST_STEPS, MOST_SECONDS = 100, 0.2  # of measuring
HANDOVER = 100e-6  # seconds that a step of all slots takes longer through a pool of workers, whatever they do
CLEARLY = 1.25  # times faster a pool must be expected to be
PER_CORE = 4  # workers per core, of environments that wait rather than compute


class Cost(NamedTuple):
    """What a step of one slot takes: seconds, and whether most of them are spent waiting."""

    seconds: float
    waits: bool


class Choice(NamedTuple):
    """How many workers, 0 for none, and why."""

    workers: int
    why: str


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def measure(make: Callable[[int], gymnasium.Env[Any, Any]]) -> Cost:
    """Steps an environment of its own, with random legal actions, for a fraction of a second."""
    with unchanged():
        env = make(0)
        try:
            return _timed(env)
        finally:
            env.close()


def _timed(env: gymnasium.Env[Any, Any]) -> Cost:
    trial = Trial(env)
    trial.steps(2)  # what is slow only once
    before, wall = resource.getrusage(resource.RUSAGE_THREAD), time.perf_counter()
    busy, steps, trial.choosing = time.process_time(), 0, 0.0
    while steps < MOST_STEPS and time.perf_counter() - wall < MOST_SECONDS:
        steps += trial.steps(5)
    busy, wall = time.process_time() - busy, time.perf_counter() - wall
    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before.ru_nvcsw
    waits = slept >= steps and busy < wall / 2  # of its own will, not because others use the machine as well
    return Cost(max((wall if waits else busy) - trial.choosing, 0.0) / steps, waits)


class Trial:
    """A walk with random legal actions."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env, self.episode = env, 0
        self.choosing = 0.0  # seconds, which are not the environment's
        self.dice = np.random.default_rng(0)
        env.action_space.seed(0)
        self.seen = env.reset(seed=0)

    def steps(self, count: int) -> int:
        for _ in range(count):
            start = time.process_time()
            action = sample(self.env.action_space, mask_of(*self.seen), self.dice)
            self.choosing += time.process_time() - start
            obs, _, terminated, truncated, info = self.env.step(action)
            self.seen = obs, info
            if terminated or truncated:
                self.episode += 1
                self.seen = self.env.reset(seed=self.episode)
        return count


@contextmanager
def unchanged() -> Iterator[None]:
    """Leaves the global random numbers as they were, for environments that use them."""
    plain, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)


def choose(cost: Cost, slots: int, cores: int) -> Choice:
    """Workers, where they are clearly faster: each walks its slots one after another, side by side with the others."""
    share = ceil(slots / min(slots, cores * PER_CORE if cost.waits else cores))  # PER_CORE: waiting needs no core
    workers = ceil(slots / share)  # no more than it takes for shares of this size
    took = f"a step takes {_spoken(cost.seconds)}{', mostly waiting' if cost.waits else ''}"
    alone, pooled = slots * cost.seconds, share * cost.seconds + HANDOVER
    if workers > 1 and alone > CLEARLY * pooled:
        return Choice(workers, f"{took}: {workers} workers step the {slots} slots, {share} each at most")
    if slots == 1 or (cores == 1 and not cost.waits):
        return Choice(0, f"{took}: with {'one slot' if slots == 1 else 'one core'} this process walks it alone")
    return Choice(0, f"{took}, too short to be worth a worker process: this process steps the {slots} slots")


def _spoken(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"
