"""A run: one folder that holds all of it, from config to checkpoints, and the stream of what happens."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from ganglion import registry
from ganglion.config import RunConfig
from ganglion.config.files import dump, load, modules
from ganglion.core import Command, EnvSpec, Episode, Json, LogData, Progress, State, Stop, join, read_count, under
from ganglion.errors import (
    AlgorithmError,
    ClusterLostError,
    DiskError,
    EnvError,
    FolderLostError,
    LearnerLostError,
    UserError,
)  # fmt: skip
from ganglion.fast import Compiler
from ganglion.fast.profile import Profile
from ganglion.record.atomic_write import recover, write_file
from ganglion.record.checkpoint import Checkpoints, beside_training, check_matches, disk_error, not_finite, read_meta
from ganglion.record.checkpoint import load as load_checkpoint
from ganglion.record.health import HealthWatch
from ganglion.record.lock import held
from ganglion.record.manifest import foreign
from ganglion.record.mirror import Mirror
from ganglion.record.run_folder import CONFIG, check_unused, made, open_folder
from ganglion.record.stages import CallbackStage, Evaluated, Recorded, Saved, Stopped, compose, diverged
from ganglion.record.stores import StoreError, Where, located
from ganglion.record.writers import RunInfo
from ganglion.runtime.agent import Agent
from ganglion.runtime.algorithm_errors import Forgotten, beyond_draws, told
from ganglion.runtime.build import build, build_agents, build_env, build_evaluator, light, pick_device
from ganglion.runtime.engine import Engine
from ganglion.runtime.evaluator import deviation, never
from ganglion.runtime.failures import Failed
from ganglion.runtime.initial_weights import take_over
from ganglion.runtime.players import Player, Table, check_scored
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer, named
from ganglion.timers import TIMERS

log = logging.getLogger(__name__)


class Run:
    """A Trainer with its stages, writers and checkpoints."""

    def __init__(self, cfg: RunConfig, folder: Where, trainer: Trainer) -> None:
        self.cfg, self.folder, self.mirror = cfg, folder, Mirror(folder)
        self.guard: Callable[[], None] = unlocked  # refuses to go on where the folder is not this run's any more
        self.claim = ExitStack()  # its lock
        self.asked = never  # whether it is to stop, where that cannot wait for an event
        self.why = ""  # what was chosen for this machine when the run began, and why
        self.checkpoints = Checkpoints(folder / "checkpoints", cfg.save.keep)
        self.trainer = trainer
        self.profile = Profile(self.trainer)
        self.offset: int | None = None  # of metrics.jsonl, where a resumed run goes on
        self.changed = False  # settings, which are to be written down
        self.without: tuple[str, ...] = ()  # writers that are not opened
        now = lambda: self.trainer.at  # noqa: E731
        self.writers: list[Any] = []
        self.evaluated = self.judge(now)
        self.stopped = Stopped(cfg.train.target)
        stops = cfg.train.on_nan == "stop"
        self.failed = Failed(self.trainer, self.mirror.path, str(folder), stops)
        algo = trainer.learner.agent.algo
        self.forgotten: Forgotten | None = Forgotten(algo)  # until it has been asked
        self.metrics: dict[str, Callable[[Run], float]] = {}  # of the user's, read for each record
        self.callbacks: list[Callable[[LogData], Command | None]] = []  # told every event
        self.recorded = Recorded(self.writers, cfg.log.every, now, self.extra, stops, type(algo).__name__)
        self.saved = Saved(self.save, self.save_best, cfg.save.every, now)

    def judge(self, now: Callable[[], Progress]) -> Evaluated:
        """The stage that evaluates: here, or where the trainer has it done."""
        if self.trainer.scored is not None and self.cfg.fleet.evaluator:
            stage: Evaluated = self.trainer.scored(now, self.sound)
            return stage
        return Evaluated(self.evaluate, self.cfg.eval.every, now, self.sound)

    # ------------------------------------------------------------ beginning

    @classmethod
    def create(cls, cfg: RunConfig, engine: Engine | None = None) -> Run:
        """A new run in a new folder, on a disk or in a store. The folder is made when the parts of the run are, and
        locked before anything is written. An engine of the caller's is used where one is given."""
        folder = None if cfg.run.dir is None else located(cfg.run.dir, "run.dir")
        if folder is not None:
            check_unused(folder)
        cfg, why = settled(cfg)
        trainer = build(cfg, engine)
        with ExitStack() as undo:
            undo.callback(trainer.close)
            run = cls(cfg, folder or made(cfg.title), trainer)
            undo.callback(run.mirror.close)
            chosen = f"Chosen: {cfg.run.chosen}" if cfg.run.chosen else ""
            run.why = "\n".join(filter(None, (chosen, why)))
            run.start()
            run.begin()
            undo.pop_all()
        return run

    def start(self) -> None:
        """From weights of another run, where the settings name one."""
        init = self.cfg.init
        if init.run is None:
            return
        folder = open_folder(init.run, "init.run")
        state, path = beside_training(lambda: chosen(folder, Checkpoints(folder / "checkpoints", 1), init.which))
        with taking(path):
            told = [take_over(agent, state, init.parts, str(path)) for agent in self.trainer.agents]
        self.why = "\n".join(filter(None, (self.why, *told)))

    def begin(self) -> None:
        """Takes an unused folder, and writes down what the run is."""
        with ExitStack() as claim:
            try:
                if isinstance(self.folder, Path):
                    self.folder.mkdir(parents=True, exist_ok=True)
                guard = claim.enter_context(held(self.folder))
                check_unused(self.folder)  # by nobody else meanwhile
                self.write_about()
            except StoreError as error:  # what could be listed, or is not there at all, and cannot be written
                raise UserError(f"run.dir: {error}.") from error
            self.guard = guard
            self.claim.push(claim.pop_all())

    def write_about(self) -> None:
        """The config and where it comes from, both or none: a folder with half of it could not be used again."""
        told = {CONFIG: dump(self.cfg), "run.json": json.dumps(about(self.cfg, self.folder), indent=2) + "\n"}
        recover(self.mirror.path)
        try:
            for name, text in told.items():
                write_file(self.mirror.path / name, [text.encode()])
            self.mirror.send()
        except BaseException:
            for name in told:
                with suppress(OSError):
                    (self.mirror.path / name).unlink()
            raise

    @classmethod
    def open(cls, folder: Where | str, overrides: Iterable[str] = (), cfg: RunConfig | None = None) -> Run:
        """A run as its newest checkpoint left it; from the start where there is none. `cfg`: in place of its own."""
        folder, overrides = open_folder(folder, "resume"), list(overrides)
        now, why = settled(load_config(folder, overrides) if cfg is None else cfg)
        run = cls(now, folder, build(now))
        run.why, run.changed = why, bool(overrides) or cfg is not None
        run.mirror.fetch()
        newest = run.checkpoints.newest(finite=now.train.on_nan == "stop")
        if newest is None:
            run.offset = 0
            run.start()
        else:
            run.take_up(newest)
        return run

    def take_up(self, checkpoint: Where) -> None:
        """Continues from a checkpoint."""
        state, meta = self.checkpoints.load(checkpoint)
        varying = ("trainer/source", "trainer/learner", "trainer/learners", "evaluated", "failed", "recorded", "saved")
        check_matches(self.state(), state, varying, str(checkpoint))
        with taking(checkpoint):
            before, self.offset, _ = dict(meta["environment"]), read_count(meta["metrics"]), Progress.read(meta["at"])
            self.restore(state)
        for name, now in environment(self.cfg).items():
            if before.get(name) != now:
                was = str(before.get(name))[:80]
                log.warning("%s was %s, now %s: the run continues, but not bit for bit", name, was, now)
        self.trainer.resumed(str(checkpoint.absolute() if isinstance(checkpoint, Path) else checkpoint))

    # ------------------------------------------------------------ running

    def stream(self) -> Generator[LogData, Command | None, Stop]:
        """All that happens until the budget is spent. Left early and called again, it continues."""
        with self.claim:
            if self.guard is unlocked:
                self.guard = self.claim.enter_context(held(self.folder))
            self.claim.callback(setattr, self, "guard", unlocked)  # with the lock
            if self.changed:  # what was changed stays changed the next time
                write_file(self.mirror.path / CONFIG, [dump(self.cfg).encode()])
                self.mirror.send()
                self.changed = False
            if not self.writers:
                self.open_writers()
            engine = self.trainer.learner.agent.engine
            engine.attach(Compiler(self.mirror.path / CONFIG, modules(self.cfg)))
            stages = [self.evaluated, self.stopped, self.failed, self.recorded, self.saved]
            events = compose(self.trainer(), *stages, *([CallbackStage(self.callbacks)] if self.callbacks else []))
            try:
                stop = yield from events
                self.failed.check(stop)
                self.guard()
                return stop
            except ClusterLostError:  # explorers have gone with it: what they brought is here
                if self.cfg.save.every.unit != "never":
                    self.save()
                raise
            except (UserError, LearnerLostError, OSError):
                raise
            except Exception as error:
                raise self.broken(error) from error
            finally:
                engine.detach()
                for writer in self.writers:
                    writer.close()
                self.offset = self.written()
                self.writers.clear()
                if self.mirror.private:
                    self.guard()
                    self.mirror.send()

    def broken(self, error: Exception) -> UserError:
        """What to say of an exception that is no message yet, an algorithm's as a rule: the run is saved as it is."""
        beyond = beyond_draws(error)
        if beyond is not None:
            return UserError(f"{beyond}: {told(error)}.")
        if self.cfg.save.every.unit == "never" or self.trainer.at == Progress():
            return AlgorithmError(f"{told(error)}.")
        try:
            return AlgorithmError(f"{told(error)}. Saved as it was then: {self.save()}.")
        except Exception as another:
            return AlgorithmError(f"{told(error)}. It could not be saved: {told(another)}.")

    def open_writers(self) -> None:
        TIMERS.lap()  # what was measured before is not of this run
        at, budget = self.trainer.at, self.cfg.train.budget
        info = RunInfo(self.cfg.title, self.mirror.path, self.cfg.plain(), budget, at, self.offset)
        self.writers.extend(one.build(info) for one in self.cfg.log.writers if one.kind not in self.without)
        if self.cfg.log.health and self.writers:
            self.writers.append(HealthWatch(self.cfg.plain()))

    def __iter__(self) -> Iterator[LogData]:
        return iter(self.stream())

    def evaluate(self) -> tuple[list[Episode], Mapping[str, float]]:
        """The agent's score. Training is as it was, and saved, where the environments of the evaluation fail."""
        try:
            return self.trainer.run_evaluate(self.asked)
        except EnvError:
            if self.cfg.save.every.unit != "never":
                self.save()
            raise

    def sound(self) -> bool:
        """Whether everything about the agent is finite; ends the run where it is not, unless that is to go on."""
        self.recorded.settle()
        self.recorded.check()
        lost = not_finite(join(self.trainer.agents_state()))
        if lost and self.recorded.stops:
            raise diverged(f"{lost} is not finite after update {self.trainer.at.opt_steps:,}")
        return lost is None

    def extra(self) -> Mapping[str, float]:
        """What is recorded beside averages: the state of the buffer, the knobs, and where the time went."""
        numbers: dict[str, float] = {}
        for learner in self.trainer.learners:
            whose = "" if len(self.trainer.learners) == 1 else f"{learner.agent.player}/"
            knobs = learner.agent.settings(self.trainer.seen(learner))  # a run just resumed has used none yet
            numbers |= {f"buffer/{whose}{name}": value for name, value in learner.buffer.metrics().items()}
            numbers |= {f"knob/{whose}{name}": value for name, value in knobs.items()}
        own = {name: float(of(self)) for name, of in self.metrics.items()}
        return {**numbers, **self.trainer.source.numbers(), **self.profile.lap(), **TIMERS.lap(), **own}

    def needs(self) -> int:
        """Bytes on disk that the run will need in the end."""
        every, slots = self.cfg.save.every, self.trainer.source.spec.slots
        rows = int(every.count // slots) if every.unit == "steps" else 0
        return self.checkpoints.estimate(self.state(), rows)

    def summary(self) -> Mapping[str, str]:
        at, best = self.trainer.at, self.evaluated.best
        took = f"{at.env_steps:,} env steps, {at.opt_steps:,} updates, {at.seconds:.1f} s of training"
        source, faults = self.trainer.source, self.trainer.source.faults
        failed = {"Failures": faults.summary()} if faults.count else {}
        speed = {"Speed": self.profile.line()} if self.profile.steps else {}
        score = "not evaluated" if best is None else f"{best:.2f} mean return"
        return {"Trained": took, **speed, "Best": score, **failed, **source.summary()}

    def close(self) -> None:
        """Ends what the environments hold: worker processes, windows. The run cannot go on after it."""
        self.evaluated.close()
        self.trainer.close()
        self.mirror.close()
        self.claim.close()

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
        finite, state = self.sound(), self.state()
        self.check_parts()
        at, meta = self.trainer.at, {**self.settle(), "finite": finite}
        return str(self.checkpoints.save(state, at.env_steps, meta, at.opt_steps))

    def check_parts(self) -> None:
        """Says, at the first save after an update, what changes and is not saved."""
        if self.trainer.at.opt_steps and self.forgotten is not None:
            owner, names, self.forgotten = self.trainer.learner.agent.algo, self.forgotten.names(), None
            for name in names:
                text = "%s.%s changes and is not saved: a resumed run starts it anew. Name it in parts()."
                log.warning(text, type(owner).__name__, name)

    def save_best(self) -> str:
        judged = self.evaluated.judged  # by now the agent may be another
        agents, at = ({"agent": judged.agent}, judged.at) if judged else (self.trainer.agents_state(), self.trainer.at)
        agent = join({"trainer": join(agents)})
        return str(self.checkpoints.save_best(agent, at.env_steps, {**self.settle(), "at": list(at)}))

    def settle(self) -> dict[str, Json]:
        """What a checkpoint says of the run; metrics so far are where it will be, and nobody else writes there."""
        try:
            self.stay()
            self.mirror.send()
            return {"environment": environment(self.cfg), "metrics": self.written(), "at": list(self.trainer.at)}
        except OSError as error:
            raise disk_error(error, self.folder, "Nothing was saved; what was saved before is intact.") from error

    def stay(self) -> None:
        """The folder is this run's; one that was removed or moved away is made anew, so that the run can be saved."""
        try:
            self.guard()
        except FolderLostError as lost:
            try:
                self.begin()
            except (UserError, OSError) as error:
                raise DiskError(f"{lost} It cannot be made anew: {error}") from error
            log.warning("%s It is made anew, and the run goes on there; what was saved before is gone from it.", lost)

    def written(self) -> int:
        """Bytes of metrics that belong to this state."""
        file = self.mirror.path / "metrics.jsonl"
        return file.stat().st_size if file.exists() else 0


def unlocked() -> None:
    """Between a run's streams its folder is anybody's."""


def settled(cfg: RunConfig) -> tuple[RunConfig, str]:
    """The config with every choice made that is left to the machine, as resuming will find it, and why."""
    for writer in cfg.log.writers:
        writer.check()
    env, why = (cfg.env if cfg.run.mode == "local" else light(cfg.env)).settled()
    if cfg.run.mode == "files":
        why = f"{why} Explorers join with: ganglion explore {cfg.fleet.path}".strip()
    return cfg.model_copy(update={"env": env}), why


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
    made = {"ganglion": registry.version(), "command": sys.argv, "git": state, "resume": f"ganglion resume {folder}"}
    return {**made, **environment(cfg), **system}


# ------------------------------------------------------------ saved agents


@contextmanager
def taking(checkpoint: Where) -> Iterator[None]:
    """Parts take what a checkpoint says, a user's own parts too. Its file may come from anywhere: what a part cannot
    take is the file's fault, and one message."""
    try:
        yield
    except (UserError, LearnerLostError, OSError):
        raise
    except Exception as error:
        raise foreign(checkpoint, f"{type(error).__name__}: {error}") from error


def load_config(folder: Where, overrides: Iterable[str] = ()) -> RunConfig:
    """The config that a run was left with."""
    file = folder / CONFIG
    return load(file if isinstance(file, Path) else file.read_text(), overrides)


class TrainedAgents(NamedTuple):
    """The agents of a run, and the world they were trained in."""

    cfg: RunConfig
    made: list[tuple[Player, Agent]]
    path: str  # of the checkpoint
    at: Progress
    spec: EnvSpec
    outside: Any  # its spaces in gymnasium's words, see `core.Env.outside`


def load_agents(
    folder: Where | str, which: str, overrides: Iterable[str] = ()
) -> tuple[RunConfig, list[tuple[Player, Agent]], str]:
    """The agents of a run's best or newest checkpoint, and where they came from."""
    return load_trained(folder, which, overrides)[:3]


def load_trained(folder: Where | str, which: str, overrides: Iterable[str] = ()) -> TrainedAgents:
    folder = open_folder(folder, "the run")
    cfg = load_config(folder, overrides)

    def found() -> tuple[State, Where, Any]:
        state, path = chosen(folder, Checkpoints(folder / "checkpoints", cfg.save.keep), which)
        return state, path, read_meta(path)["at"]  # while it is there

    state, path, counters = beside_training(found)
    torch.set_num_threads(cfg.run.threads)
    env = build_env(cfg)
    made = build_agents(cfg, env.spec)
    env.close()
    for _, agent in made:
        own = under(state, named("agent", agent))
        check_matches(agent.state(), own, (), str(path))
        with taking(path):
            agent.restore(own)
    with taking(path):
        at = Progress.read(counters)
    return TrainedAgents(cfg, made, str(path), at, env.spec, env.outside)


def chosen(folder: Where, checkpoints: Checkpoints, which: str) -> tuple[State, Where]:
    """The trainer's state in the best, the newest or a named checkpoint, and which that is."""
    path = (checkpoints.best() if which == "best" else None) or checkpoints.newest()
    if which not in ("best", "last"):
        path = checkpoints.named(which)
    if path is None:
        raise UserError(
            f"{folder} has no checkpoint yet: it was stopped before the first save. Train it: ganglion resume {folder}"
        )
    return under(load_checkpoint(path, rings=False)[0], "trainer"), path


def evaluate(
    run: Run | Where | str, episodes: int = 100, seed: int = 0, which: str = "best", overrides: Iterable[str] = ()
) -> Mapping[str, Any]:
    """The deterministic score of a saved agent, of a run or its folder: mean, median and the 95 % interval of the mean.
    `overrides`: settings of the run that are others here."""
    match run:
        case Run():
            run = run.folder
    cfg, made, path = load_agents(run, which, overrides)
    evaluator = build_evaluator(cfg, made, episodes, derive(seed, "test"))
    played, _ = evaluator.run()
    evaluator.close()
    first = played[0].player  # of several
    totals = [episode.total for episode in played if episode.player == first]
    half = 1.96 * deviation(totals, lost=1) / len(totals) ** 0.5 if len(totals) > 1 else 0.0
    mean = fmean(totals)
    middle = {"mean": mean, "median": median(totals), "interval": (mean - half, mean + half)}
    return {**middle, "episodes": len(totals), "seed": seed, "checkpoint": path, "returns": totals}


def frames(folder: Where | str, episodes: int, seed: int, which: str = "best") -> Iterator[Any]:
    """What a saved agent's episodes look like, frame by frame."""
    cfg, made, _ = load_agents(folder, which)
    slots = sum(len(player.agents) for player, _ in made)
    env = (cfg.eval.env or cfg.env).whole(slots=slots, device=str(made[0][1].device), render=True)
    check_scored(env.spec, made[0][0].world)
    step, table = env.reset(derive(seed, "test")), Table([(agent, p.place(env.spec)) for p, agent in made], slots)
    while episodes:
        yield env.render()
        step = env.step(table.act(step))
        episodes -= sum(episode.slot == 0 for episode in env.episodes())
    yield env.render()
    env.close()
