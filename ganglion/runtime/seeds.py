"""Several runs that train together, as one model: each is an ordinary run in a folder of its own."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import sqrt
from statistics import fmean
from time import perf_counter
from typing import NamedTuple

from ganglion.config import RunConfig
from ganglion.core import Command, LogData, Progress, SetKnob, Stop
from ganglion.envs.world import TorchEnv
from ganglion.errors import UserError
from ganglion.runtime.evaluator import deviation
from ganglion.runtime.joint import Joint, JointSamples, build_template, check_alike
from ganglion.runtime.joint_rollouts import JointActing, JointPhases, JointWalk
from ganglion.runtime.run import Run
from ganglion.runtime.trainer import Trainer, spent

MOST = 1_024  # runs that train together
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
     2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


class Waiting(Trainer):
    """A Trainer that does not move by itself: before each turn it waits for whoever moves all."""

    brought: tuple[LogData, float] | None = None  # by a turn that its stages have not seen yet, and how long it took

    @classmethod
    def like(cls, trainer: Trainer) -> Waiting:
        made = cls(trainer.explorer, trainer.learner, trainer.evaluator, trainer.budget)
        made.at = trainer.at
        return made

    def __call__(self) -> Generator[LogData, Command | None, Stop]:
        stop: Stop | None = None
        while True:
            if self.brought is not None:  # even where it is to stop: what was learned counts
                log = self.moved(*self.brought)
            elif stop is not None or self.finished():
                return stop or Stop("budget", finished=True)
            else:
                log = LogData("wait", self.at, {})
            command = yield log
            stop = command if isinstance(command, Stop) else stop
            if isinstance(command, SetKnob):
                self.learner.agent.pin(command)

    def moved(self, log: LogData, seconds: float) -> LogData:
        """Counts a turn, not before its stages hear of it."""
        at = Progress(*log.at[:3], self.at.seconds + seconds)
        self.at, self.brought = Progress(*at[:4], spent(self.budget, at)), None
        return LogData(log.kind, self.at, log.metrics, log.episodes)


class Told(NamedTuple):
    """An event of one of the runs."""

    run: int
    log: LogData


class Member:
    """One of the runs: its stream, and where it stands."""

    def __init__(self, run: Run) -> None:
        self.run, self.trainer = run, Waiting.like(run.trainer)
        run.trainer, run.without = self.trainer, ("console",)  # one screen cannot show several
        self.stream = run.stream()
        self.told: Stop | None = None
        self.begun = self.waits = self.over = False
        self.last: float | None = None  # score

    def next(self) -> LogData | None:
        """Its next event; None where it waits for its turn, or is over."""
        told, self.told = (self.told, None) if self.begun else (None, self.told)
        self.begun = True
        try:
            event = self.stream.send(told)
        except StopIteration:
            self.over = True
            return None
        turned = event.kind in ("collect", "learn") and not self.trainer.finished() and not self.due()
        self.waits = (event.kind == "wait" or turned) and self.told is None
        if event.kind == "evaluate":
            self.last = event.metrics["eval/return_mean"]
        return None if event.kind == "wait" else event

    def due(self) -> bool:
        """Whether a stage has something to do before the next turn; if not, nobody need be asked."""
        at, stages = self.trainer.at, (self.run.evaluated.due, self.run.recorded.due, self.run.saved.due)
        return any(due.passes(at) for due in stages)

    def stop(self, told: Stop) -> None:
        self.told, self.waits = told, False


class Seeds:
    """K runs that differ in seeds, or in numbers of the algorithm, trained in one process as one batched model."""

    def __init__(self, configs: Sequence[RunConfig]) -> None:
        if not 2 <= len(configs) <= MOST:
            raise UserError(f"{len(configs)} runs cannot train together. Accepted: 2 to {MOST}.")
        check_alike(configs)
        template = build_template(alone(configs[0]))  # before anything is written
        self.members = [Member(Run.create(alone(cfg))) for cfg in configs]
        self.runs = [member.run for member in self.members]
        self.joint = Joint(template, [member.trainer for member in self.members], [run.cfg for run in self.runs])
        cfg, first = self.runs[0].cfg, self.members[0].trainer
        self.collecting: JointActing | JointWalk
        self.learning: JointPhases | JointSamples
        self.rollouts = first.learner.buffer.fresh
        self.learning = phases = JointPhases(self.joint, cfg) if self.rollouts else JointSamples(self.joint)
        if isinstance(first.explorer.env, TorchEnv) and isinstance(phases, JointPhases):
            self.collecting = JointWalk(self.joint, cfg, phases)
        else:
            self.collecting = JointActing(self.joint)

    def stream(self) -> Generator[Told, Stop | None, None]:
        """All that happens in all runs until each has spent its budget. `send` takes a Stop, meant for all."""
        members = self.members
        try:
            while not all(member.over for member in members):
                for k, member in enumerate(members):
                    while not (member.waits or member.over):
                        event = member.next()
                        stop = None if event is None else (yield Told(k, event))
                        if stop is not None:
                            for each in members:
                                each.stop(stop)
                if ready := [k for k, member in enumerate(members) if member.waits]:
                    self.turn(ready)
        finally:
            for member in members:
                member.stream.close()

    def turn(self, ready: Sequence[int]) -> None:
        """Moves some of those that are ready: all whose turn is of one kind.

        Rollouts stay in step where nobody explores before all have learned; with replays those that owe an update wait
        for the others: then all learn at once, though endings shift each one's count of steps.
        """
        owing = [k for k in ready if self.members[k].trainer.learner.owes(self.members[k].trainer.at)]
        free = [k for k in ready if k not in owing]
        learn = bool(owing) and (self.rollouts or not free)
        who, began = owing if learn else free, perf_counter()
        logs = self.learning.learn(who) if learn else self.collecting.collect(who)
        share = (perf_counter() - began) / len(who)
        for k, event in zip(who, logs, strict=True):
            self.members[k].trainer.brought, self.members[k].waits = (event, share), False

    def scores(self) -> dict[str, list[float]]:
        """The last and the best evaluation of each run that has any."""
        best = [run.evaluated.best for run in self.runs]
        last = [member.last for member in self.members]
        return {"Last": [x for x in last if x is not None], "Best": [x for x in best if x is not None]}

    def close(self) -> None:
        for run in self.runs:
            run.close()


def alone(cfg: RunConfig) -> RunConfig:
    """The config with its environments in this process, unless workers were asked for: each run would have its own."""
    auto = cfg.env.plain().get("workers") == "auto"
    return cfg.model_copy(update={"env": cfg.env.model_copy(update={"workers": 0})}) if auto else cfg


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by Student's t: from the spread between runs, their scores taken as normal."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    freedom = len(values) - 1
    half = (T[freedom - 1] if freedom <= len(T) else 1.96) * deviation(list(values), lost=1) / sqrt(len(values))
    return mean, mean - half, mean + half
