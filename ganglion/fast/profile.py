"""Where the time of a training run goes: named timers around the parts of a Trainer, put there from outside."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ganglion.core import LogData, Progress

Call = Callable[..., Any]


class Timer:
    """Seconds spent in calls, and how many there were; a call inside another of the same timer is a part of it."""

    __slots__ = ("calls", "inside", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self.inside = False


class Shares(NamedTuple):
    """Fractions of the training time; `store` and `sample` (the buffer's work) are parts of `other`."""

    env: float
    act: float
    learn: float
    other: float
    store: float
    sample: float


class Profile:
    """Watches a Trainer: the environment's step, acting, learning, and the buffer's work.

    Two clock readings and an addition per call; results do not change. On a GPU work is only started here and its time
    falls to whoever waits for it; `sync` waits after each part, for exact shares at the price of speed.
    """

    def __init__(self, trainer: Any, sync: bool = False) -> None:
        self.sync = sync and torch.cuda.is_available()
        self.timers = {name: Timer() for name in ("collect", "learning", "env", "act", "store", "sample")}
        self.before: dict[str, float] = {}  # what the timers said at the last lap
        self.steps = self.updates = 0
        source = trainer.source
        self.watch(getattr(source, "env", None), "env", "reset", "step", "send", "recv")
        setattr(source, "step", self.turn(source, "step", self.timers["collect"]))  # noqa: B010
        for learner in trainer.learners:
            self.watch(learner.agent, "act", "act")
            self.watch(learner, "store", "push")
            self.watch(learner.buffer, "sample", "take", "feedback")
            setattr(learner, "step", self.turn(learner, "step", self.timers["learning"]))  # noqa: B010

    def watch(self, owner: Any, name: str, *methods: str) -> None:
        """Times those of these methods that an object has."""
        for method in filter(partial(hasattr, owner), methods):
            setattr(owner, method, self.timed(owner, method, self.timers[name]))

    def timed(self, owner: Any, method: str, timer: Timer) -> Call:
        call, whose = loose(owner, method)
        sync = self.sync

        def run(*args: Any) -> Any:
            if timer.inside:
                return call(whose(), *args)
            timer.inside, began = True, perf_counter()
            try:
                result = call(whose(), *args)
                if sync:
                    torch.cuda.synchronize()
            finally:
                timer.inside = False
                timer.seconds += perf_counter() - began
            timer.calls += 1
            return result

        return run

    def turn(self, owner: Any, method: str, timer: Timer) -> Callable[[Progress], LogData]:
        """The same for a turn of the Trainer, which also says how far it came."""
        inner = self.timed(owner, method, timer)

        def run(at: Progress) -> LogData:
            log: LogData = inner(at)
            self.steps += log.at.env_steps - at.env_steps
            self.updates += log.at.opt_steps - at.opt_steps
            return log

        return run

    # ------------------------------------------------------------ what was seen

    def clear(self) -> None:
        """Forgets everything so far, such as a warm-up."""
        self.before = {}
        self.steps = self.updates = 0
        for timer in self.timers.values():
            timer.seconds, timer.calls = 0.0, 0

    @property
    def seconds(self) -> float:
        """All the time spent training."""
        return self.timers["collect"].seconds + self.timers["learning"].seconds

    def shares(self) -> Shares:
        return parted({name: timer.seconds for name, timer in self.timers.items()})

    def lap(self) -> dict[str, float]:
        """The shares since the last lap, as numbers to record; none where nothing has happened."""
        before, self.before = self.before, {name: timer.seconds for name, timer in self.timers.items()}
        since = {name: seconds - before.get(name, 0.0) for name, seconds in self.before.items()}
        if since["collect"] + since["learning"] <= 0:
            return {}
        return {f"speed/{name}_share": share for name, share in named(parted(since)).items()}

    def rates(self) -> tuple[float, float]:
        """Env steps and updates per second of training."""
        whole = max(self.seconds, 1e-12)
        return self.steps / whole, self.updates / whole

    def line(self) -> str:
        """Rates, shares and the bottleneck, in a line; empty before anything has happened."""
        if not self.steps:
            return ""
        steps, updates = self.rates()
        shares = self.shares()
        parts = ", ".join(f"{name} {share:.0%}" for name, share in named(shares).items())
        return f"{steps:,.0f} env steps/s, {updates:,.0f} updates/s: {parts}; {bottleneck(shares)}"


def loose(owner: Any, name: str) -> tuple[Call, Callable[[], Any]]:
    """A method, and what says whose it is without keeping that alive: an object that holds its own method is freed
    late, and is large."""
    method = getattr(owner, name)
    function = getattr(method, "__func__", None)
    if function is None or method.__self__ is not owner:
        return type(method).__call__, lambda: method
    return function, weakref.ref(owner)


def parted(seconds: Mapping[str, float]) -> Shares:
    """The seconds of each timer as fractions of the whole."""
    whole = max(seconds["collect"] + seconds["learning"], 1e-12)
    spent = {name: part / whole for name, part in seconds.items()}
    learn = max(spent["learning"] - spent["sample"], 0.0)
    other = max(1.0 - spent["env"] - spent["act"] - learn, 0.0)
    return Shares(spent["env"], spent["act"], learn, other, spent["store"], spent["sample"])


def named(shares: Shares) -> Mapping[str, float]:
    """The four that make up the whole."""
    return {name: getattr(shares, name) for name in ("env", "act", "learn", "other")}


REMEDIES = {
    "env": "the environment is the bottleneck",
    "act": "acting is the bottleneck: more slots would share it (env.slots)",
    "learn": "learning is the bottleneck",
    "other": "the work between is the bottleneck",
}


def bottleneck(shares: Shares) -> str:
    """What most of the time goes to."""
    parts = named(shares)
    return REMEDIES[max(parts, key=lambda name: parts[name])]
