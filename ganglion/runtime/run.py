"""A run: one folder that holds all of it, from config to checkpoints, and the stream of what happens."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from ganglion.config import RunConfig, dump, load
from ganglion.core import Command, Episode, Json, LogData, Past, State, Stop, join, under
from ganglion.errors import ClusterLostError, DiskError, EnvError, UserError
from ganglion.fast import Compiler
from ganglion.fast.profile import Profile
from ganglion.record.atomic import write_file
from ganglion.record.checkpoint import Checkpoints
from ganglion.record.checkpoint import load as load_checkpoint
from ganglion.record.desk import Desk
from ganglion.record.lock import held
from ganglion.record.matches import check_matches
from ganglion.record.stages import Evaluated, Recorded, Saved, Stopped, compose
from ganglion.record.stores import StoreError, Where, located, names, reached
from ganglion.record.writers import RunInfo
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build, build_agent, build_env, build_evaluator, pick_device
from ganglion.runtime.evaluator import deviation
from ganglion.runtime.failures import Failed
from ganglion.runtime.fleet.coordinator import Coordinator
from ganglion.runtime.fleet.judge import Beside
from ganglion.runtime.fleet.receiver import Receiver
from ganglion.runtime.fleet.station import light, modules
from ganglion.runtime.streams import derive

log = logging.getLogger(__name__)


class Run:
    """A Trainer with its stages, writers and checkpoints."""

    def __init__(self, cfg: RunConfig, folder: Where) -> None:
        self.cfg, self.folder, self.desk = cfg, folder, Desk(folder)
        self.guard: Callable[[], None] = lambda: None  # refuses to go on where another process has taken over
        self.why = ""  # what was chosen for this machine when the run began, and why
        self.checkpoints = Checkpoints(folder / "checkpoints", cfg.save.keep)
        self.trainer = build(cfg)
        self.received = self.trainer.explorer if isinstance(self.trainer.explorer, Receiver) else None
        self.profile = Profile(self.trainer)
        self.offset: int | None = None  # of metrics.jsonl, where a resumed run goes on
        self.changed = False  # settings, which are to be written down
        self.without: tuple[str, ...] = ()  # writers that are not opened
        now = lambda: self.trainer.at  # noqa: E731
        self.writers: list[Any] = []
        self.beside = self.judge()
        self.evaluated = self.beside or Evaluated(self.evaluate, cfg.eval.every, now)
        self.stopped = Stopped(cfg.train.target)
        self.failed = Failed(self.trainer, self.desk.path, str(folder))
        self.recorded = Recorded(self.writers, cfg.log.every, now, self.extra)
        self.saved = Saved(self.save, self.save_best, cfg.save.every, now)

    def judge(self) -> Beside | None:
        """Evaluation beside training, where explorers are actors."""
        fleet = self.received and self.received.fleet
        if not isinstance(fleet, Coordinator) or not self.cfg.fleet.evaluator:
            return None
        return Beside(fleet, self.trainer.learner.agent, self.cfg.eval.every, lambda: self.trainer.at)

    # ------------------------------------------------------------ beginning

    @classmethod
    def create(cls, cfg: RunConfig) -> Run:
        """A new run in a new folder, on a disk or in a store."""
        folder = new_folder(cfg)
        cfg, why = settled(cfg)
        run = cls(cfg, folder)
        run.why = why
        desk = run.desk.path
        desk.mkdir(parents=True, exist_ok=True)
        write_file(desk / "config.yaml", [dump(cfg).encode()])
        (desk / "run.json").write_text(json.dumps(about(cfg, folder), indent=2) + "\n")
        try:
            run.desk.send()
        except StoreError as error:  # what could be listed, or is not there at all, and cannot be written
            run.close()
            raise UserError(f"run.dir: {error}.") from error
        return run

    @classmethod
    def open(cls, folder: Where | str, overrides: Iterable[str] = ()) -> Run:
        """A run as its newest checkpoint left it; from the start where there is none."""
        folder, overrides = located(folder, "resume"), list(overrides)
        cfg, why = settled(load_config(folder, overrides))
        run = cls(cfg, folder)
        run.why = why
        run.desk.fetch()
        newest = run.checkpoints.newest()
        if newest is None:
            run.offset = 0
        else:
            run.take_up(newest)
        run.changed = bool(overrides)
        return run

    def take_up(self, checkpoint: Where) -> None:
        """Continues from a checkpoint."""
        state, meta = self.checkpoints.load(checkpoint)
        varying = ("trainer/explorer", "trainer/learner", "evaluated", "failed", "recorded", "saved")
        check_matches(self.state(), state, varying, str(checkpoint))
        before = meta["environment"]
        for name, now in environment(self.cfg).items():
            if before.get(name) != now:
                log.warning("%s was %s, now %s: the run continues, but not bit for bit", name, before.get(name), now)
        self.restore(state)
        self.offset = int(meta["metrics"])
        if self.cfg.fleet.learners > 1:
            from ganglion.runtime.fleet.several import lead

            lead(self.trainer).checkpoint = str(checkpoint.absolute() if isinstance(checkpoint, Path) else checkpoint)

    # ------------------------------------------------------------ running

    def stream(self) -> Generator[LogData, Command | None, Stop]:
        """All that happens until the budget is spent. Left early and called again, it continues."""
        with held(self.folder) as self.guard:
            if self.changed:  # what was changed stays changed the next time
                write_file(self.desk.path / "config.yaml", [dump(self.cfg).encode()])
                self.desk.send()
                self.changed = False
            if not self.writers:
                self.open_writers()
            swap = self.trainer.learner.agent.swap
            swap.compiler = Compiler(self.desk.path / "config.yaml", modules(self.cfg))
            events = compose(self.trainer(), self.evaluated, self.stopped, self.failed, self.recorded, self.saved)
            try:
                stop = yield from events
                self.failed.check(stop)
                return stop
            except ClusterLostError:  # explorers have gone with it: what they brought is here
                if self.cfg.save.every.unit != "never":
                    self.save()
                raise
            finally:
                swap.compiler.stop()
                for writer in self.writers:
                    writer.close()
                self.offset = self.written()
                self.writers.clear()
                self.guard()
                self.desk.send()

    def open_writers(self) -> None:
        at, budget = self.trainer.at, self.cfg.train.budget
        info = RunInfo(self.cfg.title, self.desk.path, self.cfg.plain(), budget, at, self.offset)
        self.writers.extend(one.build(info) for one in self.cfg.log.writers if one.kind not in self.without)

    def __iter__(self) -> Iterator[LogData]:
        return iter(self.stream())

    def evaluate(self) -> tuple[list[Episode], Mapping[str, float]]:
        """The agent's score. Training is as it was, and saved, where the environments of the evaluation fail."""
        try:
            return self.trainer.run_evaluate()
        except EnvError:
            if self.cfg.save.every.unit != "never":
                self.save()
            raise

    def extra(self) -> Mapping[str, float]:
        """What is recorded beside averages: the state of the buffer, the knobs, and where the time went."""
        learner = self.trainer.learner
        buffer = {f"buffer/{name}": value for name, value in learner.buffer.metrics().items()}
        knobs = learner.agent.settings(self.trainer.at)  # of these counters: a run just resumed has used none yet
        walked = self.received.numbers() if self.received else self.trainer.explorer.faults.numbers()
        return {**buffer, **{f"knob/{name}": value for name, value in knobs.items()}, **walked, **self.profile.lap()}

    def needs(self) -> int:
        """Bytes on disk that the run will need in the end."""
        every, slots = self.cfg.save.every, self.trainer.explorer.env.spec.slots
        rows = int(every.count // slots) if every.unit == "steps" else 0
        return self.checkpoints.estimate(self.state(), rows)

    def summary(self) -> Mapping[str, str]:
        at, best = self.trainer.at, self.evaluated.best
        took = f"{at.env_steps:,} env steps, {at.opt_steps:,} updates, {at.seconds:.1f} s of training"
        faults = self.trainer.explorer.faults
        failed = {"Failures": faults.summary()} if faults.count else {}
        speed = {"Speed": self.profile.line()} if self.profile.steps else {}
        score = "not evaluated" if best is None else f"{best:.2f} mean return"
        fleet = {"Items": self.received.line()} if self.received else {}
        return {"Trained": took, **speed, "Best": score, **failed, **fleet}

    def close(self) -> None:
        """Ends what the environments hold: worker processes, windows. The run cannot go on after it."""
        if self.beside:
            self.beside.close()
        self.trainer.close()
        self.desk.close()

    # ------------------------------------------------------------ state

    def state(self) -> State:
        stages = {"evaluated": self.evaluated.state(), "recorded": self.recorded.state(), "saved": self.saved.state()}
        return join({"trainer": self.trainer.state(), "failed": self.failed.state(), **stages})

    def restore(self, state: State) -> None:
        self.trainer.restore(under(state, "trainer"))
        self.evaluated.restore(under(state, "evaluated"))
        self.failed.restore(under(state, "failed"))
        self.recorded.restore(under(state, "recorded"))
        self.saved.restore(under(state, "saved"))

    def save(self) -> str:
        state = self.state()
        return str(self.checkpoints.save(state, self.trainer.at.env_steps, self.settle()))

    def save_best(self) -> str:
        judged = self.beside and self.beside.judged  # by now the agent may be another
        state, at = (judged.agent, judged.at) if judged else (self.trainer.learner.agent.state(), self.trainer.at)
        agent = join({"trainer": join({"agent": state})})
        return str(self.checkpoints.save_best(agent, at.env_steps, {**self.settle(), "at": list(at)}))

    def settle(self) -> dict[str, Json]:
        """What a checkpoint says of the run; metrics so far are where it will be, and nobody else writes there."""
        try:
            self.guard()
            self.desk.send()
        except StoreError as error:
            raise DiskError(f"{error}. Nothing was saved; what was saved before is intact.") from error
        return {"environment": environment(self.cfg), "metrics": self.written(), "at": list(self.trainer.at)}

    def written(self) -> int:
        """Bytes of metrics that belong to this state."""
        file = self.desk.path / "metrics.jsonl"
        return file.stat().st_size if file.exists() else 0


def settled(cfg: RunConfig) -> tuple[RunConfig, str]:
    """The config with every choice made that is left to the machine, as resuming will find it, and why."""
    env, why = (cfg.env if cfg.run.mode == "local" else light(cfg.env)).settled()
    if cfg.run.mode == "files":
        why = f"{why} Explorers join with: ganglion explore {cfg.fleet.path}".strip()
    return cfg.model_copy(update={"env": env}), why


def new_folder(cfg: RunConfig) -> Where:
    """Where a new run will be: where nothing is yet."""
    folder = located(cfg.run.dir, "run.dir") if cfg.run.dir else unused(cfg.title)
    if taken(folder):
        raise UserError(f"run.dir: {folder} is there already. Choose another, or continue it: ganglion resume {folder}")
    return folder


def taken(folder: Where) -> bool:
    """Whether something is there already."""
    if isinstance(folder, Path):
        return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    return bool(names(reached(folder, "run.dir")))


def unused(title: str) -> Path:
    """A folder named by now, numbered where another run of the same second has it."""
    folder = Path(f"runs/{title}-{datetime.now():%Y%m%d-%H%M%S}")
    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(name for name in names if not name.exists())


def environment(cfg: RunConfig) -> dict[str, Json]:
    """What bit-exact repetition depends on beside config and seed."""
    names = ("torch", "numpy", "gymnasium")
    device = str(pick_device(cfg.run.device))
    return {
        **{name: version(name) for name in names},
        "threads": cfg.run.threads,
        "device": device,
        "fast": cfg.run.fast,
    }


def about(cfg: RunConfig, folder: Where) -> dict[str, Json]:
    """Where a run comes from: versions, machine, git state, and the command that resumes it."""
    git = ["git", "describe", "--always", "--dirty"]
    try:
        state = subprocess.run(git, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        state = ""
    system = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    made = {"ganglion": version("ganglion"), "command": sys.argv, "git": state, "resume": f"ganglion resume {folder}"}
    return {**made, **environment(cfg), **system}


# ------------------------------------------------------------ saved agents


def load_config(folder: Where, overrides: Iterable[str] = ()) -> RunConfig:
    """The config that a run was left with."""
    file = folder / "config.yaml"
    return load(file if isinstance(file, Path) else file.read_text(), overrides)


def load_agent(folder: Where | str, which: str) -> tuple[RunConfig, Agent, str]:
    """The agent of a run's best or newest checkpoint, and where it came from."""
    folder = located(folder, "the run")
    cfg = load_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", cfg.save.keep)
    path = (checkpoints.best() if which == "best" else None) or checkpoints.newest()
    if path is None:
        raise UserError(
            f"{folder} has no checkpoint yet: it was stopped before the first save. Train it: ganglion resume {folder}"
        )
    torch.set_num_threads(cfg.run.threads)
    env = build_env(cfg)
    agent = build_agent(cfg, env.spec)
    env.close()
    state = under(load_checkpoint(path)[0], "trainer/agent")
    check_matches(agent.state(), state, (), str(path))
    agent.restore(state)
    return cfg, agent, str(path)


def evaluate(folder: Where | str, episodes: int, seed: int, which: str = "best") -> Mapping[str, Any]:
    """The deterministic score of a saved agent: mean, median and the 95 % interval of the mean."""
    cfg, agent, path = load_agent(folder, which)
    evaluator = build_evaluator(cfg, agent, episodes, derive(seed, "test"))
    played, _ = evaluator.run()
    evaluator.close()
    totals = [episode.total for episode in played]
    half = 1.96 * deviation(totals, lost=1) / len(totals) ** 0.5 if len(totals) > 1 else 0.0
    mean = fmean(totals)
    middle = {"mean": mean, "median": median(totals), "interval": (mean - half, mean + half)}
    return {**middle, "episodes": len(totals), "seed": seed, "checkpoint": path, "returns": totals}


def frames(folder: Where | str, episodes: int, seed: int, which: str = "best") -> Iterator[Any]:
    """What a saved agent's episodes look like, frame by frame."""
    cfg, agent, _ = load_agent(folder, which)
    env = cfg.env.build(slots=1, device=str(agent.device), render=True)
    step, past = env.reset(derive(seed, "test")), agent.start(1)
    while episodes:
        yield env.render()
        acted = agent.predict(step.obs, past)
        past = Past(acted.memory, ~step.valid.to(agent.device)[None])
        step = env.step(acted.action)
        episodes -= len(env.episodes())
    yield env.render()
    env.close()
