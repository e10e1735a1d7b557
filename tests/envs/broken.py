"""A zoo of environments, each with one fault, and the verdict that should name it; a worker has them without torch."""

from __future__ import annotations

import random
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Result = tuple[Any, dict[str, Any]]


class Sound(gymnasium.Env[Any, Any]):
    """A walk on a line that ends beyond 3; nothing is wrong with it."""

    observation_space: spaces.Space[Any] = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Result:
        super().reset(seed=seed)
        self.at, self.t = float(self.np_random.uniform(-0.5, 0.5)), 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.at += (1 if action else -1) * float(self.np_random.uniform(0.2, 0.6))
        self.t += 1
        return self.seen(), self.worth(), self.over(), self.t == 100, self.told()

    def seen(self) -> Any:
        return np.array([self.at, 1.0], np.float32)

    def worth(self) -> Any:
        return 1.0

    def over(self) -> bool:
        return abs(self.at) > 3

    def told(self) -> dict[Any, Any]:
        return {"at": self.at}


# ------------------------------------------------------------ spaces and calls


class NoSpace(Sound):
    observation_space = None  # type: ignore[assignment]


class StrangeSpace(Sound):
    observation_space = spaces.Text(5)


class EndlessBounds(Sound):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


class WideActions(EndlessBounds):
    action_space = spaces.Box(-1000.0, 1000.0, (1,), np.float32)


class OldReset(Sound):
    def reset(self, **rest: Any) -> Any:
        return super().reset(**rest)[0]


class OldStep(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class NoSeedArgument(Sound):
    def reset(self) -> Result:  # type: ignore[override]
        return super().reset()


class Raises(Sound):
    def worth(self) -> Any:
        return 1.0 / (self.t - 17)


class BadConstructor(Sound):
    def __init__(self) -> None:
        raise FileNotFoundError("no track.xml")


class NotAnEnv:
    observation_space, action_space = Sound.observation_space, Sound.action_space


# ------------------------------------------------------------ rows


class WrongShape(Sound):
    def seen(self) -> Any:
        return np.zeros(3, np.float32)


class OutOfBounds(Sound):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class OutOfDiscrete(Sound):
    observation_space = spaces.Discrete(5)

    def seen(self) -> Any:
        return 5


class WrongDtype(Sound):
    def seen(self) -> Any:
        return np.array([self.at, 1.0])  # float64


class NanObservation(Sound):
    def seen(self) -> Any:
        return np.array([self.at, np.nan if self.t > 5 else 0.0], np.float32)


class NanReward(Sound):
    def worth(self) -> Any:
        return float("nan") if self.t == 4 else 0.0


class ArrayReward(Sound):
    def worth(self) -> Any:
        return np.array([1.0])


class NoReward(Sound):
    def worth(self) -> Any:
        return None


class HugeReward(Sound):
    def worth(self) -> Any:
        return 1e5 * self.at


class TinyReward(Sound):
    def worth(self) -> Any:
        return 1e-6 * self.at


class HugeObservation(Sound):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def seen(self) -> Any:
        return np.array([self.at, 1e4], np.float32)


class FloatImages(Sound):
    observation_space = spaces.Box(0, 255, (4, 4, 3), np.float32)

    def seen(self) -> Any:
        return np.full((4, 4, 3), 7.0, np.float32)


# ------------------------------------------------------------ endings


class Endless(Sound):
    def step(self, action: Any) -> Any:
        self.at = float(self.np_random.uniform(-1, 1))
        return self.seen(), 1.0, False, False, {}


class LimitAsTermination(Endless):
    def step(self, action: Any) -> Any:
        self.t += 1
        return *super().step(action)[:2], self.t == 25, False, {}


class ResetsItself(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return self.reset()[0] if terminated or truncated else obs, reward, terminated, truncated, info


# ------------------------------------------------------------ repeating


class GlobalRandom(Sound):
    def seen(self) -> Any:
        return np.array([self.at, np.random.uniform()], np.float32)


class GlobalRandomSeeded(Sound):
    """Repeats, as long as it is alone in its process."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Result:
        random.seed(seed)
        return super().reset(seed=seed)

    def seen(self) -> Any:
        return np.array([self.at, random.random()], np.float32)


class OwnUnseeded(Sound):
    def __init__(self) -> None:
        self.dice = np.random.default_rng()

    def seen(self) -> Any:
        return np.array([self.at, self.dice.uniform()], np.float32)


class SharedByCopies(Sound):
    count = [0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Result:
        self.count[0] = 0
        return super().reset(seed=seed)

    def seen(self) -> Any:
        self.count[0] += 1
        return np.array([self.at, self.count[0] % 7], np.float32)


class ForgetsToClear(Sound):
    tired = 0.0

    def seen(self) -> Any:
        self.tired += 0.001
        return np.array([self.at, self.tired], np.float32)


class SeedUnused(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Result:
        return super().reset(seed=7)


class SeedUnreached(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Result:
        self.dice = np.random.RandomState(1)
        super().reset(seed=seed)
        self._np_random = np.random.default_rng(3)
        self.at, self.t = 0.0, 0
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([self.at, self.dice.uniform()], np.float32)


# ------------------------------------------------------------ memory of others


class Buffered(Sound):
    """Returns its own buffer, which it goes on changing."""

    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.float32)

    def seen(self) -> Any:
        self.buffer[:] = self.at, 1.0
        return self.buffer


class StateReturned(Sound):
    """Returns the array it goes on computing from."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Result:
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-0.5, 0.5), 0.0], np.float32)
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.state = self.state + np.array([0.3 if action else -0.3, 0.01], np.float32)
        return self.state, 1.0, bool(abs(self.state[0]) > 3), False, {}


class SpoilsAction(Sound):
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(int(action[0] > 0))


class SameInfo(Sound):
    box: dict[str, Any]

    def told(self) -> dict[Any, Any]:
        self.box = getattr(self, "box", {})
        self.box["t"] = self.t
        return self.box


class NumberedInfo(Sound):
    def told(self) -> dict[Any, Any]:
        return {3: 1.0}


class Leaks(Sound):
    def __init__(self) -> None:
        self.history: list[Any] = []

    def seen(self) -> Any:
        self.history.append(np.full(1024, self.at))  # 8 kB a step
        return super().seen()


# ------------------------------------------------------------ masks


class Masked(Sound):
    def reset(self, **rest: Any) -> Result:
        obs, _ = super().reset(**rest)
        return obs, self.told()

    def told(self) -> dict[Any, Any]:
        return {"action_mask": self.mask()}

    def mask(self) -> Any:
        return np.array([True, self.at < 2])


class ShortMask(Masked):
    def mask(self) -> Any:
        return np.array([True])


class EmptyMask(Masked):
    def mask(self) -> Any:
        return np.array([self.t != 5, self.t != 5])


class CountsInMask(Masked):
    def mask(self) -> Any:
        return np.array([1, 3])


class LostMask(Masked):
    def told(self) -> dict[Any, Any]:
        return {"action_mask": self.mask()} if self.t % 3 == 0 else {}


class OtherInWorkers(Sound):
    """Knows where it is: what is drawn from a process's own is drawn otherwise by each."""

    def seen(self) -> Any:
        return super().seen() / (2 if sys.argv[0].endswith("worker.py") else 1)


class NotInWorkers(Sound):
    def __init__(self) -> None:
        if sys.argv[0].endswith("worker.py"):
            raise OSError("one licence, one process")


# Each with the finding that should name it and a word of what should be said.
BROKEN: list[tuple[Any, str, str, str]] = [
    (NoSpace, "fail", "spaces", "observation_space is NoneType"),
    (StrangeSpace, "fail", "spaces", "Text"),
    (EndlessBounds, "warn", "spaces", "no finite bounds"),
    (WideActions, "warn", "spaces", "beyond 10"),
    (OldReset, "fail", "calls", "reset() should give (obs, info)"),
    (OldStep, "fail", "calls", "old gym"),
    (NoSeedArgument, "fail", "calls", "reset(seed=...) is refused"),
    (Raises, "fail", "calls", "ZeroDivisionError"),
    (BadConstructor, "fail", "construct", "no track.xml"),
    (NotAnEnv, "fail", "construct", "no gymnasium.Env"),
    (WrongShape, "fail", "observation", "shape (2,) was expected, got (3,)"),
    (OutOfBounds, "fail", "observation", "outside its bounds [-1, 1]"),
    (OutOfDiscrete, "fail", "observation", "outside its bounds [0, 4]"),
    (WrongDtype, "warn", "observation", "float64 where the space says float32"),
    (NanObservation, "fail", "finite", "nan or inf in"),
    (NanReward, "fail", "finite", "rewards"),
    (ArrayReward, "fail", "reward", "ndarray"),
    (NoReward, "fail", "reward", "NoneType"),
    (HugeReward, "warn", "reward", "large"),
    (TinyReward, "warn", "reward", "small"),
    (HugeObservation, "warn", "scale", "element 1 is typically 10,000"),
    (FloatImages, "warn", "spaces", "images as reals"),
    (Endless, "warn", "endings", "no time limit"),
    (LimitAsTermination, "warn", "endings", "exactly 25 steps"),
    (ResetsItself, "warn", "endings", "resets itself"),
    (GlobalRandom, "fail", "repeats", "global numpy.random"),
    (GlobalRandomSeeded, "fail", "repeats", "global random"),
    (OwnUnseeded, "fail", "repeats", "give other results"),
    (SharedByCopies, "fail", "repeats", "disturb each other"),
    (ForgetsToClear, "fail", "repeats", "after use, reset(seed) starts otherwise"),
    (SeedUnused, "warn", "seed", "does not take the seed"),
    (SeedUnreached, "warn", "seed", "self.dice is drawn from"),
    (Buffered, "warn", "aliasing", "changes at the next call"),
    (StateReturned, "warn", "aliasing", "writing into a returned observation"),
    (SpoilsAction, "warn", "aliasing", "changes the action"),
    (SameInfo, "warn", "info", "the same dict"),
    (NumberedInfo, "fail", "info", "no text: 3"),
    (Leaks, "fail", "memory", "grows by"),
    (ShortMask, "fail", "mask", "1 entries for Discrete(2)"),
    (EmptyMask, "fail", "mask", "allow no action"),
    (CountsInMask, "fail", "mask", "other than 0 and 1"),
    (LostMask, "fail", "mask", "have none"),
    (OtherInWorkers, "fail", "workers", "not those of this process at step 0"),
    (NotInWorkers, "fail", "workers", "OSError: one licence, one process"),
]
