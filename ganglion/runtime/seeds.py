"""Several runs that train together, as one model: each is an ordinary run in a folder of its own.

Every run walks by itself, in a greenlet, and knows nothing of the others. Only its Engine is another one: where a run
calls a function of its algorithm it is left waiting, until all that can have come to the same function; then that is
computed for all of them at once, on stacked arguments and with stacked parameters, and each goes on with its part.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from math import sqrt
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet

from ganglion import ops, registry
from ganglion.config import RunConfig
from ganglion.core import LogData, Stop
from ganglion.errors import DivergedError, UserError
from ganglion.fast import Compiler
from ganglion.fast.direct import Fn
from ganglion.nn.vmapped import Inner, Stack, side_by_side
from ganglion.runtime.build import build, build_engine
from ganglion.runtime.engine import Engine
from ganglion.runtime.evaluator import deviation
from ganglion.runtime.run import Run
from ganglion.runtime.trainer import Trainer

MOST = 1_024  # runs that train together
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
     2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
LEARNS = ("update", "late", "phase")  # functions that change what they read


class Request(NamedTuple):
    """A function that a run waits for."""

    name: str
    args: tuple[Any, ...]


class OneOfMany(Engine):
    """The engine of one of several runs: its functions are computed for all at once, whatever form they would have had;
    in which that would have been follows from its own counters, and decides how long its blocks are."""

    def __init__(self, alone: Engine) -> None:
        fuse = alone.fuse if alone.whole else None
        super().__init__(alone.device, alone.fast, alone.since, alone.least, alone.able, fuse)
        self.alone = alone
        self.spent = self.resumed = 0.0  # seconds of its own, and when it was last taken up

    def wrap(self, fn: Fn, name: str) -> Fn:
        def call(*args: Any) -> Any:
            grad = torch.is_grad_enabled()
            torch.set_grad_enabled(True)  # as it is for whoever runs next
            try:
                return getcurrent().parent.switch(Request(name, args))
            finally:
                torch.set_grad_enabled(grad)

        return call

    def wrap_own(self, fn: Fn) -> Fn:
        return self.alone.wrap_own(fn)

    def attach(self, compiler: Compiler) -> None:
        """What is compiled is compiled for all."""

    @property
    def walks(self) -> bool:
        return True

    def clock(self) -> float:
        return self.spent + perf_counter() - self.resumed


class Template(Engine):
    """The engine of a trainer that stands for all: it tells its functions, and runs none."""

    def __init__(self, alone: Engine) -> None:
        self.functions: dict[str, Fn] = {}
        self.inner: list[Inner] = []
        super().__init__(alone.device, None, fuse=self.part if alone.whole else None)

    def wrap(self, fn: Fn, name: str) -> Fn:
        self.functions[name] = fn
        return fn

    def part(self, fn: Fn) -> Fn:
        self.inner.append(Inner(fn))
        return self.inner[-1]


class Batch:
    """The functions of K trainers as one: eager, as plain operations (`auto`), compiled, or captured."""

    def __init__(self, template: Trainer, trainers: Sequence[Trainer], cfg: RunConfig) -> None:
        self.count, engine = len(trainers), template.learner.agent.engine
        assert isinstance(engine, Template)
        self.mode = "graph" if engine.device.type == "cuda" and cfg.run.fast != "eager" else cfg.run.fast
        self.stack = Stack([[a.algo for a in t.agents] for t in trainers], [a.algo for a in template.agents])
        self.functions = {name: self.form(self.stack.all(fn)) for name, fn in engine.functions.items()}
        for inner in engine.inner:
            part = self.stack.all(inner.fn)
            inner.batch(self.traced(part) if self.mode == "graph" else part, self.count)
        self.given: dict[str, list[Any]] = {}  # by function: the arguments of each, those of before where it is idle

    def form(self, fn: Fn) -> Fn:
        """A function of [K, ...] in the form that was chosen."""
        if self.mode == "graph":
            from ganglion.fast.capture import Captured

            return Captured(fn)
        return fn if self.mode == "eager" else self.traced(fn)

    def traced(self, fn: Fn) -> Fn:
        """The same as plain operations, compiled unless `auto`: many models share the cost of each."""
        from ganglion.fast.trace import Traced

        return Traced(fn, partial(self.stack.sparing, range(self.count)), plain=self.mode == "auto")

    def __call__(self, name: str, asked: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """What comes of a function for those that ask for it."""
        some = next(iter(asked.values()))
        given = self.given.setdefault(name, [some] * self.count)
        for k, args in asked.items():
            given[k] = args
        idle = [k for k in range(self.count) if k not in asked] if name.split("/")[1] in LEARNS else []
        stacked = side_by_side(given)
        if idle:
            with self.stack.sparing(idle):
                gave = self.functions[name](*stacked)
        else:
            gave = self.functions[name](*stacked)
        parts = ops.unstack(gave)
        return {k: parts[k] for k in asked}


class Told(NamedTuple):
    """An event of one of the runs."""

    run: int
    log: LogData


class SeedRun:
    """One of the trainers: its greenlet, and what it waits for."""

    def __init__(self, events: Generator[LogData, Any, Any], engine: OneOfMany) -> None:
        self.engine = engine
        self.green = greenlet(partial(follow, events))
        self.waits: Request | None = None
        self.answer: Any = None  # to what it waited for
        self.stop: Stop | None = None
        self.last: float | None = None  # score
        self.lost: DivergedError | None = None  # why it ended before the others

    @property
    def over(self) -> bool:
        return self.green.dead

    def go_on(self) -> LogData | None:
        """Its next event; None where it waits for a function, or is over."""
        told, self.answer = self.answer, None
        self.engine.resumed = perf_counter()
        try:
            came = self.green.switch(told)
        except DivergedError as error:  # the others go on
            came, self.lost = None, error
        self.engine.spent += perf_counter() - self.engine.resumed
        if isinstance(came, Request):
            self.waits = came
            return None
        if came is not None:
            self.answer, self.stop = self.stop, None
            if came.kind == "evaluate":
                self.last = came.metrics["eval/return_mean"]
        log: LogData | None = came
        return log


def follow(events: Generator[LogData, Any, Any], _: object) -> None:
    """Hands the events of a stream to whoever moves all, and the stream what is said to them."""
    told = None
    try:
        while True:
            told = getcurrent().parent.switch(events.send(told))
    except StopIteration:
        return
    finally:
        events.close()


class Together:
    """Moves K trainers so that they compute as one."""

    def __init__(self, members: Sequence[SeedRun], batch: Batch, learn_first: bool) -> None:
        self.members, self.batch, self.learn_first = members, batch, learn_first

    def stream(self) -> Generator[Told, Stop | None, None]:
        """All that happens until each is over. `send` takes a Stop, meant for all."""
        members = self.members
        try:
            while not all(member.over for member in members):
                for k, member in enumerate(members):
                    while member.waits is None and not member.over:
                        event = member.go_on()
                        stop = None if event is None else (yield Told(k, event))
                        if stop is not None:
                            for each in members:
                                each.stop = stop
                            member.answer = stop
                self.compute()
        finally:
            for member in members:
                member.green.throw()

    def compute(self) -> None:
        """One function, for those that wait for it.

        Rollouts stay in step where nobody explores before all have learned; with replays those that owe an update wait
        for the others: then all learn at once, though endings shift each one's count of steps.
        """
        waiting = {k: member.waits for k, member in enumerate(self.members) if member.waits is not None}
        names = {request.name for request in waiting.values()}
        if not names:
            return
        learning = {name for name in names if "walk/" not in name and not name.endswith("/explore")}
        name = min((learning if self.learn_first else names - learning) or names)
        asked = {k: request.args for k, request in waiting.items() if request.name == name}
        began = perf_counter()
        answers = self.batch(name, asked)
        share = (perf_counter() - began) / len(asked)
        for k, answer in answers.items():
            member = self.members[k]
            member.waits, member.answer = None, answer
            member.engine.spent += share


class Seeds:
    """K runs that differ in seeds, or in numbers of the algorithm, trained in one process as one batched model."""

    def __init__(self, configs: Sequence[RunConfig]) -> None:
        if not 2 <= len(configs) <= MOST:
            raise UserError(f"{len(configs)} runs cannot train together. Accepted: 2 to {MOST}.")
        check_alike(configs)
        if configs[0].algo.library != "torch":
            raise UserError(f"algo.kind: {configs[0].algo.kind} trains one run at a time: leave out --together.")
        configs = [alone(cfg) for cfg in configs]
        rehearse(configs)  # before anything is written
        engines = [OneOfMany(build_engine(cfg)) for cfg in configs]
        self.runs = [Run.create(cfg, engine) for cfg, engine in zip(configs, engines, strict=True)]
        for run in self.runs:
            run.without = ("console",)  # one screen cannot show several
        trainers = [run.trainer for run in self.runs]
        batch = Batch(template_of(self.runs[0].cfg), trainers, self.runs[0].cfg)
        self.members = [SeedRun(run.stream(), engine) for run, engine in zip(self.runs, engines, strict=True)]
        self.together = Together(self.members, batch, trainers[0].learner.buffer.fresh)

    def stream(self) -> Generator[Told, Stop | None, None]:
        """All that happens in all runs until each has spent its budget. `send` takes a Stop, meant for all."""
        return self.together.stream()

    def scores(self) -> dict[str, list[float]]:
        """The last and the best evaluation of each run that has any."""
        best = [run.evaluated.best for run in self.runs]
        last = [member.last for member in self.members]
        return {"Last": [x for x in last if x is not None], "Best": [x for x in best if x is not None]}

    def close(self) -> None:
        for run in self.runs:
            run.close()


def template_of(cfg: RunConfig) -> Trainer:
    """One more trainer, that stands for all."""
    return build(cfg, Template(build_engine(cfg)))


def rehearse(configs: Sequence[RunConfig]) -> None:
    """Acts and learns once for two throw-away trainers: what cannot be computed for several is refused here."""
    plain = [cfg.model_copy(update={"run": cfg.run.model_copy(update={"fast": "eager"})}) for cfg in configs[:2]]
    engines = [OneOfMany(build_engine(cfg)) for cfg in plain]
    trainers = [build(cfg, engine) for cfg, engine in zip(plain, engines, strict=True)]
    batch = Batch(template_of(plain[0]), trainers, plain[0])
    members = [SeedRun(once(trainer), engine) for trainer, engine in zip(trainers, engines, strict=True)]
    try:
        for _ in Together(members, batch, trainers[0].learner.buffer.fresh).stream():
            pass
    except RuntimeError as error:
        why = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"algo.kind: {configs[0].algo.kind} with these settings cannot train several runs together ({why}). "
            "Train them one after the other."
        ) from error
    finally:
        for trainer in trainers:
            trainer.close()


def once(trainer: Trainer) -> Generator[LogData, None, None]:
    """Each function of an algorithm, for the first time."""
    while not all(learner.buffer.ready() for learner in trainer.learners):
        yield trainer.run_collect()
    for learner in trainer.learners:
        for _ in range(1 + learner.agent.algo.late_every):
            yield trainer.taught(learner)


def alone(cfg: RunConfig) -> RunConfig:
    """The config with its environments in this process, unless workers were asked for: each run would have its own."""
    auto = cfg.env.plain().get("workers") == "auto"
    return cfg.model_copy(update={"env": cfg.env.model_copy(update={"workers": 0})}) if auto else cfg


def check_alike(configs: Sequence[RunConfig]) -> None:
    """Refuses runs that differ in more than seeds and numbers of the algorithm: their shapes or steps would differ."""
    free = ("run.seed", "run.name", "run.dir", "eval.seed")
    if configs[0].fleet.learners > 1:
        raise UserError("fleet.learners: several cannot train several runs together. Accepted: 1.")
    if not registry.lookup("mode", configs[0].run.mode).together:
        raise UserError(f"run.mode: {configs[0].run.mode} cannot train several runs together. Accepted: local.")
    first = ops.flatten_names(configs[0].plain())
    for cfg in configs[1:]:
        other = ops.flatten_names(cfg.plain())
        for path in sorted({*first, *other}):
            a, b = first.get(path), other.get(path)
            name = path.replace("/", ".")
            number = isinstance(a, float) and isinstance(b, float) and name.startswith("algo.")
            if a != b and name not in free and (not number or name.startswith("algo.processor.")):
                raise UserError(
                    f"{name}: runs that train together may differ in run.seed and in numbers of the algorithm "
                    f"(algo.lr, algo.gamma, ...), not in this: {a} and {b}. Train them one after the other."
                )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by Student's t: from the spread between runs, their scores taken as normal."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    freedom = len(values) - 1
    half = (T[freedom - 1] if freedom <= len(T) else 1.96) * deviation(list(values), lost=1) / sqrt(len(values))
    return mean, mean - half, mean + half
