"""What a worker does: trains the runs of a job side by side, tells their scores, and stops when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ganglion.config import RunConfig
from ganglion.config.files import import_module, load
from ganglion.core import LogData, Stop, under
from ganglion.errors import UserError
from ganglion.record.checkpoint import check_matches
from ganglion.record.checkpoint import load as load_checkpoint
from ganglion.record.run_folder import CONFIG
from ganglion.runtime.run import Run
from ganglion.runtime.seeds import Seeds, Told
from ganglion.runtime.trainer import named

TOGETHER = 4  # runs from which one batched model is quicker than several (docs/speed.md)
QUIET = ("console",)  # writers of one run; many share a terminal here


@dataclass(frozen=True)
class Job:
    """Runs that differ in their seeds, as plain values: what is sent to a worker."""

    number: int
    configs: Sequence[str]  # YAML, each with a `run.dir`
    imports: Sequence[str] = ()
    until: float | None = None  # env steps after whose evaluation it pauses, saved; None: to the end
    heir: str | None = None  # a checkpoint of another run, whose agent goes on here
    since: int = 0  # env steps of this run when that was decided: one that is further has it already

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class JobOutcome:
    """How a job ended: finished, paused, stopped or failed."""

    how: str
    steps: int = 0
    scores: list[list[float]] = field(default_factory=list)  # of each run, one for each evaluation
    places: list[float] = field(default_factory=list)  # env steps of the evaluations
    folders: list[str] = field(default_factory=list)
    checkpoint: str | None = None  # of the first run
    why: str = ""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


Tell = Callable[[dict[str, Any]], None]


def perform(job: Job, tell: Tell, stopping: Callable[[], bool]) -> JobOutcome:
    """Trains all runs of a job; every time that each has been evaluated once more, their mean is told."""
    for module in job.imports:
        import_module(module)
    configs = [load(text + "\n") for text in job.configs]
    out = JobOutcome("failed", scores=[[] for _ in configs])
    try:
        runs, stream = begun(job, configs)
        out.folders = [str(run.folder) for run in runs]
        tell({"number": job.number, "event": "began", "folders": out.folders})
        try:
            again = scored_again(runs, job.until)
            for told in again:
                note(job, told, out, tell)
            out.how = "paused" if again else follow(job, stream, out, tell, stopping)
        finally:
            for run in runs:
                run.close()
        out.steps = runs[0].trainer.at.env_steps
        newest = runs[0].checkpoints.newest()
        out.checkpoint = None if newest is None else str(newest)
    except UserError as error:
        out.why = str(error)
    except Exception as error:  # of a user's environment, or a machine without room: one job's, not the worker's
        out.why = f"{type(error).__name__}: {error}"
    return out


Stream = Generator[Told, Stop | None, None]


def begun(job: Job, configs: Sequence[RunConfig]) -> tuple[list[Run], Stream]:
    """The runs, made or taken up again, and all that happens in them."""
    if len(configs) >= TOGETHER:
        try:
            together = Seeds(configs)
            return together.runs, together.stream()
        except UserError:  # what cannot be batched is trained in turns
            pass
    runs = [opened(cfg) for cfg in configs]
    for run in runs:
        run.without = QUIET
        if job.heir is not None and run.trainer.at.env_steps <= job.since:
            inherit(run, job.heir)
    return runs, in_turns(runs)


def opened(cfg: RunConfig) -> Run:
    """A run where its folder says it was, with the settings of now; a new one where there is none."""
    folder = None if cfg.run.dir is None else Path(cfg.run.dir)
    if folder is None or not (folder / CONFIG).exists():
        return Run.create(cfg)
    return Run.open(folder, cfg=cfg)


def inherit(run: Run, checkpoint: str) -> None:
    """Takes over the agent of another run: weights, optimiser, normalisers. Rows, counters and worlds stay its own."""
    state = under(load_checkpoint(Path(checkpoint), rings=False)[0], "trainer")
    for agent in run.trainer.agents:
        saved = under(state, named("agent", agent))
        check_matches(agent.state(), saved, (), checkpoint)
        agent.restore(saved)


class RunTurn:
    """One of several runs of this process, and what it has been told."""

    def __init__(self, run: Run) -> None:
        self.stream, self.begun, self.stopped = run.stream(), False, False

    def event(self, stop: Stop | None) -> LogData | None:
        """Its next event, None at its end; a stop is told once, and not before it has begun."""
        command = stop if self.begun and not self.stopped else None
        self.begun, self.stopped = True, self.stopped or command is not None
        try:
            return self.stream.send(command)
        except StopIteration:
            return None


def in_turns(runs: Sequence[Run]) -> Stream:
    """Each goes on until it has been evaluated, then the next: all are about equally far."""
    turns = {k: RunTurn(run) for k, run in enumerate(runs)}
    stop: Stop | None = None
    try:
        while turns:
            for k, turn in list(turns.items()):
                while (log := turn.event(stop)) is not None:
                    stop = (yield Told(k, log)) or stop
                    if log.kind == "evaluate" and stop is None:
                        break
                else:
                    del turns[k]
    finally:
        for turn in turns.values():
            turn.stream.close()


def scored_again(runs: Sequence[Run], until: float | None) -> list[Told]:
    """The scores of runs that have come as far before, of which nobody was told."""
    if until is None or any(run.trainer.at.env_steps < until for run in runs):
        return []
    return [Told(k, LogData("evaluate", run.trainer.at, run.evaluate()[1])) for k, run in enumerate(runs)]


def follow(job: Job, stream: Stream, out: JobOutcome, tell: Tell, stopping: Callable[[], bool]) -> str:
    """Takes events to the end, and says how it came."""
    how, stop = "finished", None
    try:
        while True:
            told = stream.send(stop)
            stop = None
            if told.log.kind == "evaluate":
                note(job, told, out, tell)
                if job.until is not None and told.log.at.env_steps >= job.until and told.log.at.fraction < 1:
                    how, stop = "paused", Stop("paused")
            if how == "finished" and stopping():
                how, stop = "stopped", Stop("stopped")
    except StopIteration:
        return how


def note(job: Job, told: Told, out: JobOutcome, tell: Tell) -> None:
    """Keeps a score; where all runs have one more, their mean is told."""
    out.scores[told.run].append(float(told.log.metrics["eval/return_mean"]))
    rounds = len(out.places)
    if min(map(len, out.scores)) > rounds:
        steps = told.log.at.env_steps
        out.places.append(steps)
        score = fmean(one[rounds] for one in out.scores)
        tell({"number": job.number, "event": "score", "steps": steps, "score": score})
