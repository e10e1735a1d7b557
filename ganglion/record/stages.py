"""Stages: everything beside training, each a wrapper of the stream of log data.

    stream = compose(trainer(), evaluated, stopped, recorded, saved)

What a stage does follows from counters, and its state is saved with the run: a resumed stream continues as if it had
never ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from ganglion.config import Every
from ganglion.core import (
    Command,
    Episode,
    Evaluate,
    LogData,
    Progress,
    Save,
    State,
    Stop,
    Writer,
    join,
    read_count,
    read_number,
    under,
)
from ganglion.errors import DiskError, DivergedError, EvaluationStoppedError, UserError


class Due:
    """Remembers how many intervals had passed when it was last due."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self.passed = 0

    def due(self, at: Progress) -> bool:
        """True once whenever at least one more interval has passed, and marks it."""
        if not self.passes(at):
            return False
        self.passed = int(self.every.measure(at) // self.every.count)
        return True

    def passes(self, at: Progress) -> bool:
        """Whether one more interval has passed, unmarked."""
        return self.every.measure(at) >= (self.passed + 1) * self.every.count

    def state(self) -> State:
        return State(scalars={"passed": self.passed})

    def restore(self, state: State, at: Progress) -> None:
        """`at`: where the run goes on. Of longer intervals than it was saved with, fewer have passed."""
        self.passed = min(read_count(state.scalars["passed"]), int(self.every.measure(at) // self.every.count))


logger = logging.getLogger(__name__)

AGAIN = 10.0  # seconds until a save is tried again for which there was no room
MOST_WAITING = 10_000  # numbers of one name left on the device, however rare records are
LogStream = Generator[LogData, Command | None, Stop]
Now = Callable[[], Progress]


class Stage:
    """A wrapper of a stream that adds events of its own and passes commands on."""

    def __call__(self, stream: LogStream) -> LogStream:
        waiting: list[Command] = []  # told and not yet passed on: the stream takes one per event, none before its first
        begun, quiet, blind = False, type(self).before is Stage.before, type(self).seen is Stage.seen
        try:
            while True:
                for own in () if quiet else self.before():
                    waiting += self.passed((yield own))
                if waiting and not begun:
                    stop = next((told for told in waiting if isinstance(told, Stop)), None)
                    if stop is not None:
                        yield from self.after(stop)
                        return stop
                try:
                    log = stream.send(waiting.pop(0) if waiting and begun else None)
                except StopIteration as end:
                    yield from self.after(end.value)
                    return end.value
                begun, wish = True, None if blind else self.seen(log)
                told = yield log
                if told is not None or wish is not None:  # almost never: this is passed by every event
                    waiting += self.passed(told, wish)
        finally:
            stream.close()

    def passed(self, *commands: Command | None) -> list[Command]:
        """The commands that are not meant for this stage."""
        return [told for told in map(self.take, commands) if told is not None]

    def before(self) -> Iterable[LogData]:
        """What is due by the counters, before the stream goes on."""
        return ()

    def seen(self, log: LogData) -> Command | None:
        """Looks at what passes; a command it returns goes to the stream, after the caller's own."""
        return None

    def take(self, command: Command | None) -> Command | None:
        """Keeps the commands meant for this stage."""
        return command

    def after(self, stop: Stop) -> Iterator[LogData]:
        """What is left to do when the stream has ended."""
        return iter(())

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        """A stage without state has nothing to restore."""


def compose(stream: LogStream, *stages: Stage) -> LogStream:
    """The stream through all stages, the first one innermost."""
    for stage in stages:
        stream = stage(stream)
    return stream


class Evaluated(Stage):
    """Scores the agent at an interval and at the end; says whether it is the best so far, by strict improvement."""

    def __init__(
        self,
        run: Callable[[], tuple[Sequence[Episode], Mapping[str, float]]],
        every: Every,
        now: Now,
        sound: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sound`: whether all weights are finite; the score of others is no best."""
        self.run, self.due, self.now, self.sound = run, Due(every), now, sound
        self.best: float | None = None
        self.last = -1  # opt steps at the last evaluation
        self.asked = False
        self.judged: Any = None  # whose score came last, where that is not the agent of now

    def close(self) -> None:
        """Ends what evaluates in another process."""

    def before(self) -> Iterable[LogData]:
        now, passed, asked = self.now(), self.due.passed, self.asked
        due = self.due.due(now) and now.fraction < 1  # what is due at the end waits for the last updates
        if not (due or asked):
            return ()
        self.asked = False
        try:
            return (self.evaluate(),)
        except EvaluationStoppedError:
            self.due.passed, self.asked = passed, asked
            return (LogData("interrupted", now, {}),)  # here the run can be stopped before it goes on

    def after(self, stop: Stop) -> Iterator[LogData]:
        if stop.finished and self.due.every.unit != "never" and self.last != self.now().opt_steps:
            with suppress(EvaluationStoppedError):
                yield self.evaluate()

    def evaluate(self) -> LogData:
        sound = self.sound()
        episodes, metrics = self.run()
        better = self.improves(metrics["eval/return_mean"], sound)
        self.last = self.now().opt_steps
        return LogData("evaluate", self.now(), {**metrics, "eval/best": float(better)}, tuple(episodes))

    def improves(self, mean: float, sound: bool) -> bool:
        """Whether a score is the best so far, and from now on the one to beat."""
        better = sound and isfinite(mean) and (self.best is None or mean > self.best)
        if better:
            self.best = mean
        return better

    def take(self, command: Command | None) -> Command | None:
        if not isinstance(command, Evaluate):
            return command
        self.asked = True
        return None

    def state(self) -> State:
        return join({"due": self.due.state(), "own": State({}, {"best": self.best, "last": self.last})})

    def restore(self, state: State) -> None:
        self.due.restore(under(state, "due"), self.now())
        own = under(state, "own").scalars
        self.best = None if own["best"] is None else read_number(own["best"])
        self.last = read_count(own["last"] + 1) - 1


class Stopped(Stage):
    """Ends the run when an evaluation reaches the target."""

    def __init__(self, target: float | None) -> None:
        self.target = target

    def seen(self, log: LogData) -> Command | None:
        if self.target is None or log.kind != "evaluate":
            return None
        reached = log.metrics["eval/return_mean"] >= self.target  # false for NaN
        return Stop("target", finished=True) if reached else None


class Recorded(Stage):
    """Averages what happened between two records and writes it; updates are never waited for in between.

    Ends the run, unless told otherwise, at the first number of an update that is not finite: at once where it is on the
    CPU, else when it is read for a record, an evaluation or a save.
    """

    def __init__(
        self,
        writers: Sequence[Writer],
        every: Every,
        now: Now,
        extra: Callable[[], Mapping[str, float]],
        stops: bool = False,
        algo: str = "",
    ) -> None:
        """`algo`: whose metrics they are."""
        self.algo = algo
        self.writers, self.due, self.now, self.extra, self.stops = writers, Due(every), now, extra, stops
        self.waiting: dict[str, list[tuple[Tensor | float, int, int]]] = {}  # not yet read, how often, at which update
        self.lost: tuple[str, float, int] | None = None  # the first that is not finite: name, value, update
        self.sums: dict[str, list[float]] = {}  # name -> sum, count
        self.since = Progress()
        self.warned = False

    def seen(self, log: LogData) -> Command | None:
        if log.kind == "evaluate":
            self.write(log)
            return None
        for name, value in log.metrics.items():
            self.wait(f"{log.kind}/{name}", value, 1, log.at.opt_steps)
        for episode in log.episodes:
            numbers = {"return": episode.total, "length": float(episode.length), **episode.info}
            for name, value in numbers.items():
                self.wait(f"episode/{name}", value, episode.many, log.at.opt_steps)
        if self.lost is not None:
            self.record()
        return None

    def wait(self, name: str, value: Tensor | float, count: int, update: int) -> None:
        try:
            if isinstance(value, Tensor) and value.is_cpu:  # kept, it would split the memory that an update uses again
                value = value.item()
            if not isinstance(value, Tensor):
                self.look(name, value, update)
            elif value.dim():
                raise TypeError
        except (TypeError, RuntimeError) as error:
            what = f"a tensor {list(value.shape)}" if torch.is_tensor(value) else repr(value)[:80]
            who = f"{self.algo}: " if name.startswith("learn/") else ""
            raise UserError(f"{who}metric {name} should be a number or a tensor without axes, got {what}.") from error
        values = self.waiting.setdefault(name, [])
        values.append((value, count, update))
        if len(values) >= MOST_WAITING:
            self.settle()

    def look(self, name: str, value: float, update: int) -> None:
        """Remembers the first number of an update that is not finite."""
        if isfinite(value) or not self.stops or not name.startswith("learn/"):
            return
        if self.lost is None or update < self.lost[2]:
            self.lost = name, value, update

    def check(self) -> None:
        """Refuses to go on with numbers that are not finite."""
        if self.lost is not None:
            name, value, update = self.lost
            raise diverged(f"{name} is {value} at update {update:,}")

    def before(self) -> Iterable[LogData]:
        return (self.record(),) if self.due.due(self.now()) else ()

    def after(self, stop: Stop) -> Iterator[LogData]:
        if stop.finished and self.now() != self.since:
            yield self.record()

    def record(self) -> LogData:
        self.settle()
        at, since = self.now(), self.since
        seconds = max(at.seconds - since.seconds, 1e-9)
        speed = {
            "speed/env_steps_per_s": (at.env_steps - since.env_steps) / seconds,
            "speed/opt_steps_per_s": (at.opt_steps - since.opt_steps) / seconds,
        }
        means = {name: total / count for name, (total, count) in self.sums.items()}
        log = LogData("record", at, {**means, **self.extra(), **speed})
        self.sums, self.since = {}, at
        self.warn(means, at)
        self.write(log)
        self.check()
        return log

    def warn(self, means: Mapping[str, float], at: Progress) -> None:
        """Says once that numbers are lost: nothing else would, for training goes on without an error."""
        lost = [name for name, value in means.items() if not isfinite(value)]
        if lost and not self.warned and self.lost is None:
            self.warned = True
            warning = "%s not finite at %d env steps; parameters that have become nan stay so. Look at the rewards and "
            logger.warning(warning + "observations, or try a lower learning rate.", ", ".join(lost), at.env_steps)

    def settle(self) -> None:
        """Reads waiting numbers from the device at once, and adds them up one by one: the order of the additions, and
        so the last bit of a mean, does not depend on when this is called."""
        for name, values in self.waiting.items():
            tensors = [v for v, *_ in values if isinstance(v, Tensor)]
            read = iter(torch.stack(tensors).tolist() if tensors else ())
            total = self.sums.setdefault(name, [0.0, 0.0])
            for value, count, update in values:
                if isinstance(value, Tensor):
                    value = next(read)
                    self.look(name, value, update)
                total[0] += value * count
                total[1] += count
        self.waiting = {}

    def write(self, log: LogData) -> None:
        for writer in self.writers:
            writer.write(log)

    def state(self) -> State:
        self.settle()
        self.check()
        own = State({}, {"sums": self.sums, "since": list(self.since)})
        return join({"due": self.due.state(), "own": own})

    def restore(self, state: State) -> None:
        self.due.restore(under(state, "due"), self.now())
        own = under(state, "own").scalars
        self.waiting, self.lost = {}, None
        self.sums = {name: [read_number(total), read_number(times)] for name, (total, times) in own["sums"].items()}
        self.since = Progress.read(own["since"])


def diverged(how: str) -> DivergedError:
    """Why a run was ended, and what may help."""
    advice = "Look at the rewards and observations, or try a lower learning rate; train.on_nan=go would train on."
    return DivergedError(f"training diverged: {how}. Nothing was saved since then. {advice}")


class CallbackStage(Stage):
    """Functions of one's own, each told every event; a command that one returns (Stop, Evaluate, ...) is obeyed."""

    def __init__(self, callbacks: Sequence[Callable[[LogData], Command | None]]) -> None:
        self.callbacks = callbacks

    def seen(self, log: LogData) -> Command | None:
        told = [callback(log) for callback in self.callbacks]
        return next((command for command in told if command is not None), None)


class Saved(Stage):
    """Saves at an interval, on command and at the end; keeps the best. Where the disk is full, training goes on and the
    save is tried again; only the last one must succeed."""

    def __init__(self, save: Callable[[], str], save_best: Callable[[], str], every: Every, now: Now) -> None:
        self.save, self.save_best, self.due, self.now = save, save_best, Due(every), now
        self.asked = False
        self.last: Progress | None = None
        self.again: float | None = None  # when a save that found no room is tried again

    def before(self) -> Iterable[LogData]:
        late = self.again is not None and monotonic() >= self.again
        if not (self.due.due(self.now()) or self.asked or late):
            return ()
        self.asked, self.again = False, None
        try:
            return (self.log(),)
        except DiskError as error:
            self.again = monotonic() + AGAIN
            logger.warning("%s Training goes on, and it is tried again within %d seconds.", error, AGAIN)
            return ()

    def seen(self, log: LogData) -> Command | None:
        if log.kind == "evaluate" and log.metrics["eval/best"] and self.due.every.unit != "never":
            try:
                self.save_best()
            except DiskError as error:
                logger.warning("%s Training goes on; the best checkpoint is the one before.", error)
        return None

    def after(self, stop: Stop) -> Iterator[LogData]:
        if self.due.every.unit != "never" and self.last != self.now():
            yield self.log()

    def log(self) -> LogData:
        log = LogData("save", self.now(), {"path": self.save()})
        self.last = self.now()
        return log

    def take(self, command: Command | None) -> Command | None:
        if not isinstance(command, Save):
            return command
        self.asked = True
        return None

    def state(self) -> State:
        return self.due.state()

    def restore(self, state: State) -> None:
        self.due.restore(state, self.now())
        self.last = self.now()
