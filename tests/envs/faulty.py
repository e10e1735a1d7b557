"""Worlds that go wrong on purpose; a worker makes them by name, so each is told by its slot what to do and when."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

HOARD: list[bytearray] = []


class Counting(gymnasium.Env[Any, Any]):
    """Shows (slot, episode's random number, step, sum of actions): every row can be told from every other."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, slot: int = 0, length: int = 20) -> None:
        self.slot, self.length = slot, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.sum = 0, 0
        self.name = int(self.np_random.integers(1, 1_000_000))
        self.last = self.length + int(self.np_random.integers(5))
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([self.slot, self.name, self.t, self.sum], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.sum += int(action)
        return self.seen(), float(action), self.t == self.last, False, {"t": self.t}


class Faulty(Counting):
    """Goes wrong at one step of one episode of one slot, in the way it is told; elsewhere it counts."""

    def __init__(self, slot: int, how: str, at: int, only: int, episode: int, folder: str = "") -> None:
        super().__init__(slot)
        self.how, self.at, self.only, self.episode, self.folder = how, at, only, episode, folder
        self.episodes = -1

    def reset(self, **rest: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**rest)
        self.episodes += 1
        if self.how == "reset" and self.due(0):
            raise RuntimeError("no way to begin")
        if self.how == "leave at once" and self.due(0):
            sys.exit(0)
        if self.how == "die" and self.due(0):
            os.kill(os.getpid(), signal.SIGKILL)
        return obs, info

    def due(self, t: int) -> bool:
        """Whether this is the step; in a process that took over, episodes are counted by a file."""
        if self.slot != self.only or t != self.at:
            return False
        if not self.folder:
            return self.episodes == self.episode
        flag = os.path.join(self.folder, "failed")
        if os.path.exists(flag):
            return False
        if self.episodes != self.episode:
            return False
        with open(flag, "w"):
            return True

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        if not self.due(self.t):
            return obs, reward, *rest
        match self.how:
            case "raise":
                raise RuntimeError("out of order")
            case "leave":
                sys.exit(0)
            case "no text":
                raise Unreadable
            case "interrupt":
                raise KeyboardInterrupt
            case "nan reward":
                return obs, float("nan"), *rest
            case "nan":
                return obs * np.float32("nan"), reward, *rest
            case "inf":
                return obs + np.float32("inf"), reward, *rest
            case "shape":
                return obs[:1], reward, *rest
            case "dtype":
                return obs.astype(str), reward, *rest
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(3600)
            case "leak":
                HOARD.append(bytearray(os.urandom(1)) * 300_000_000)
        return obs, reward, *rest


class Unreadable(BaseException):
    """An exception whose text fails, too."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unclosable(Counting):
    def close(self) -> None:
        raise RuntimeError("stays open")


def unclosable(slot: int) -> Unclosable:
    return Unclosable(slot)


class Doomed(Counting):
    """Ends its process at step 5 of an episode, whichever process that is; the first slots do not."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.slot >= 2 and self.t == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class TwoSizes(Counting):
    """Slots of different shapes: refused."""

    def __init__(self, slot: int = 0) -> None:
        super().__init__(slot)
        self.observation_space = spaces.Box(-1, 1, (4 + slot % 2,), np.float32)


def counting(slot: int, length: int = 20) -> Counting:
    return Counting(slot, length)


def faulty(slot: int, **rest: Any) -> Faulty:
    return Faulty(slot, **rest)


def doomed(slot: int) -> Doomed:
    return Doomed(slot)


def stillborn(slot: int) -> Counting:
    os.kill(os.getpid(), signal.SIGKILL)
    return Counting(slot)


def two_sizes(slot: int) -> TwoSizes:
    return TwoSizes(slot)


class Sometimes(Counting):
    """Raises at step 7 of every episode, if it is told to."""

    def __init__(self, how: str = "never") -> None:
        super().__init__()
        self.how = how

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = super().step(action)
        if self.t == 7 and self.how == "raise":
            raise RuntimeError("sometimes")
        return taken


class Endless(Counting):
    """Never ends by itself; the first of them to reach step `at` of an episode sends its own process a signal."""

    made, rang = 0, False

    def __init__(self, number: int = 0, at: int = -1) -> None:
        super().__init__(length=10**9)
        self.number, self.at = number, at
        Endless.made += 1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == self.at and not Endless.rang:
            Endless.rang = True
            signal.raise_signal(self.number)
        return super().step(action)


class Wrong(Counting):
    """Shows less than its space promises."""

    def seen(self) -> Any:
        return super().seen()[:3]


def wrong(slot: int) -> Wrong:
    return Wrong(slot)
