"""The settings of a whole run: one place for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from ganglion import registry
from ganglion.config.model import AlgoConfig, Config, EnvConfig, MatchmakerConfig, WriterConfig
from ganglion.config.values import Count, Every, Positive, Real, every
from ganglion.errors import check_place, nearest


class TrainSection(Config):
    """How long to train."""

    budget: Every = every("50k steps")
    target: Real | None = None  # stop when the evaluation mean reaches it
    on_nan: Literal["stop", "go"] = "stop"  # at a loss or weight that is not finite; go: say so and train on

    @field_validator("budget")
    @classmethod
    def _finite(cls, budget: Every) -> Every:
        if budget.unit == "never":
            raise ValueError("should be an amount such as '50k steps': schedules follow its fraction")
        return budget


MAX_STEPS = 27_000  # the longest that benchmarks know: Atari's half an hour, four frames a step


class EvalSection(Config):
    """How often and how thoroughly to evaluate; `eval: never` switches it off."""

    shorthand: ClassVar[str] = "every"
    every: Every = every("5k steps")
    episodes: int = Field(default=20, ge=1, le=100_000)
    slots: int | None = Field(default=None, ge=1, le=65_536)  # None: env.slots, or episodes where they are fewer
    max_steps: int = Field(default=MAX_STEPS, ge=1, le=10**9)  # of an episode, which is then scored as it stands
    seed: int | None = Field(default=None, ge=0, lt=2**31)  # None: derived from run.seed
    env: EnvConfig | None = None  # another environment to evaluate in; None: as `env` says


class SaveSection(Config):
    """How often to save, and how many checkpoints to keep beside the best; `save: never` switches it off."""

    shorthand: ClassVar[str] = "every"
    every: Every = every("10k steps")
    keep: int = Field(default=3, ge=1, le=10_000)


class LogSection(Config):
    """How often to record, and where; `log: [console, jsonl]` names the writers alone."""

    shorthand: ClassVar[str] = "writers"
    every: Every = every("1k steps")
    writers: tuple[WriterConfig, ...] = Field(default_factory=lambda: ("console", "jsonl"))  # type: ignore[arg-type]
    health: bool = True  # says in a line what is wrong with training (`ganglion doctor` says more)

    @field_validator("writers")
    @classmethod
    def _different(cls, writers: tuple[WriterConfig, ...]) -> tuple[WriterConfig, ...]:
        if len({writer.kind for writer in writers}) < len(writers):
            raise ValueError("should name each writer once")
        return writers


class InitSection(Config):
    """Saved weights to start from: tensors of the same name and shape are taken over."""

    shorthand: ClassVar[str] = "run"
    run: str | None = Field(default=None, min_length=1, max_length=4096)  # its folder or URL; None: random weights
    which: str = Field(default="best", min_length=1, max_length=255)  # checkpoint: best, last, or by its name
    parts: tuple[str, ...] = Field(("model", "target"), min_length=1)  # of the algorithm, as checkpoints name them

    @field_validator("run")
    @classmethod
    def _place(cls, where: str | None) -> str | None:
        return where and check_place(where, "init.run")


class RunSection(Config):
    """Where and how a run runs."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    mode: str = "local"  # where experience comes from: a registered kind
    dir: str | None = Field(default=None, min_length=1, max_length=4096)  # a folder or URL; None: runs/<name>-<time>
    name: str | None = None
    threads: int = Field(default=1, ge=1, le=1024)
    fast: Literal["auto", "eager", "compile", "graph"] = "auto"  # how act and learn are run
    swap: Count = Field(default=5_000, ge=1)  # the opt step at which `auto` switches to compiled functions
    chosen: str | None = Field(default=None, max_length=1000)  # what was chosen where no algorithm was named, and why

    @field_validator("dir")
    @classmethod
    def _place(cls, where: str | None) -> str | None:
        return where and check_place(where, "run.dir")

    @field_validator("mode")
    @classmethod
    def _registered(cls, mode: str) -> str:
        known = [name for name in registry.names("mode") if name not in ("learners", "with_data")]  # which follow
        if mode not in known:
            raise ValueError(f"should be one of {', '.join(known)}.{nearest(mode, known)}")
        return mode

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
            raise ValueError("should be 'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', ...")
        return device

    @field_validator("name")
    @classmethod
    def _part_of_a_path(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=,+-]{0,199}", name):
            raise ValueError("should be at most 200 letters, digits and ._=,+- and not start with one of these")
        return name


class FleetSection(Config):
    """Distributed runs: explorers, and what lies between them and the learner; for every `run.mode` but local."""

    explorers: int = Field(default=2, ge=1, le=10_000)
    learners: int = Field(default=1, ge=1, le=1_024)  # that make each update together; also for run.mode local
    rule: Literal["broadcast", "divide", "first-served", "equal"] = "equal"  # Ray: which learner an item goes to
    queue: int | None = Field(default=None, ge=1, le=100_000)  # items waiting at most, over all; None: one each
    rows: int | None = Field(default=None, ge=1, le=65_536)  # of an item; None: a rollout, or enough for a few updates
    max_lag: Count | None = Field(default=None, ge=0)  # updates behind which an item is dropped; None: by the algorithm
    evaluator: bool = True  # Ray: evaluations by an actor of their own, while training goes on
    shared: bool = True  # Ray: shared memory carries bytes between processes of one machine
    inference: Literal["own", "central"] = "own"  # who predicts: each explorer itself, or one predictor for all
    spares: int = Field(default=1, ge=0, le=1_000)  # actors that stand by to replace one that died
    address: str | None = Field(default=None, min_length=1, max_length=255)  # of a Ray cluster to join; None: a new one
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)  # that a new one listens on
    path: str | None = Field(default=None, min_length=1, max_length=4096)  # files: the folder or URL where all meet
    silence: float = Field(default=10.0, ge=0.5, le=86_400)  # files: seconds without a sign of life that free a place
    compress: Literal["none", "zlib", "lz4", "zstd"] = "none"
    compress_above: Count = Field(default=1_048_576, ge=0)  # bytes

    @field_validator("path")
    @classmethod
    def _place(cls, where: str | None) -> str | None:
        return where and check_place(where, "fleet.path")


class DataSection(Config):
    """Rows that were collected before, and rows that are to be kept."""

    shorthand: ClassVar[str] = "path"
    path: tuple[str, ...] = ()  # folders or files; several are learned from as one
    damaged: Literal["refuse", "skip"] = "refuse"  # what to do where a block is damaged; skip: go on without it
    weights: tuple[Positive, ...] = ()  # how often rows of each dataset are drawn; none: as often as there are
    share: float = Field(default=0.5, gt=0, lt=1)  # beside an environment: of a batch that is the dataset's
    pretrain: Count = Field(default=0, ge=0)  # beside an environment: updates before its first step
    store: Literal["device", "memory", "disk"] = "device"  # where rows lie while they are learned from
    workers: int | None = Field(default=None, ge=0, le=64)  # threads that gather ahead; None: 2, on the device 0
    record: str | None = Field(default=None, min_length=1, max_length=4096)  # a folder for all rows of this run

    @field_validator("path", mode="before")
    @classmethod
    def _one(cls, path: object) -> object:
        return (path,) if type(path) is str else () if path is None else path

    @field_validator("path")
    @classmethod
    def _places(cls, path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_place(each, "data.path") for each in path)


RESERVED = ("walk", "main", "agents", "learners")  # names that parts of a run have


class PlayerSection(Config):
    """One of several players of a game: the agents it plays, and how it learns."""

    agents: tuple[str, ...] = ()  # by their names in the environment; none named: the one of the player's own name
    algo: AlgoConfig | None = None  # None: as `algo` says
    learn: bool = True  # false: it plays, and stays as it is


class RunConfig(Config):
    """All settings of a run."""

    algo: AlgoConfig
    env: EnvConfig
    players: Mapping[str, PlayerSection] = Field(default_factory=dict)  # none: one player for all agents
    league: MatchmakerConfig | None = None  # players that learn against each other
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    save: SaveSection = SaveSection()
    log: LogSection = Field(default_factory=LogSection)
    init: InitSection = InitSection()
    run: RunSection = RunSection()
    fleet: FleetSection = FleetSection()
    data: DataSection = DataSection()

    @model_validator(mode="after")
    def _target_needs_evaluation(self) -> Self:
        if self.train.target is not None and self.eval.every.unit == "never":
            raise ValueError("train.target needs evaluations: eval.every is 'never'")
        return self

    @model_validator(mode="after")
    def _learners_fit(self) -> Self:
        fleet, mode = self.fleet, self.run.mode
        if fleet.learners == 1:
            return self
        if mode not in ("local", "ray"):
            raise ValueError(f"fleet.learners: several need run.mode local or ray, not {mode!r}")
        if mode == "ray" and fleet.rule == "divide" and fleet.explorers < fleet.learners:
            raise ValueError("fleet.rule: divide needs at least as many fleet.explorers as fleet.learners")
        if self.run.fast == "graph":
            raise ValueError(
                "fleet.learners: several run eagerly or compiled: run.fast should be 'auto', 'eager' or 'compile'"
            )
        return self

    @field_validator("players")
    @classmethod
    def _names(cls, players: Mapping[str, PlayerSection]) -> Mapping[str, PlayerSection]:
        for name in players:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name in RESERVED:
                raise ValueError(f"{name[:80]!r} should be letters, digits, _ and -, and none of {', '.join(RESERVED)}")
        if players and not any(player.learn for player in players.values()):
            raise ValueError("should have one player that learns: all have learn: false")
        return players

    @model_validator(mode="after")
    def _players_fit(self) -> Self:
        if self.players and (self.run.mode not in ("local", "sync") or self.fleet.learners > 1):
            raise ValueError("players: several need run.mode local or sync, and one fleet.learners")
        if self.league and (self.run.mode not in ("local", "ray") or self.fleet.learners > 1 or self.players):
            raise ValueError("league: needs run.mode local or ray, one fleet.learners, and no `players` beside its own")
        return self

    @model_validator(mode="after")
    def _files_need_a_path(self) -> Self:
        if self.run.mode == "files" and self.fleet.path is None:
            raise ValueError("run.mode 'files' needs fleet.path: a folder or URL that learner and explorers see")
        return self

    @model_validator(mode="after")
    def _data_and_mode_go_together(self) -> Self:
        if self.run.mode == "offline" and not self.data.path:
            raise ValueError("run.mode 'offline' needs data.path: the folder or file of a dataset")
        if self.data.path and (self.run.mode not in ("offline", "local") or self.fleet.learners > 1):
            raise ValueError(f"data.path: needs run.mode offline or local, not {self.run.mode!r}, and one learner")
        if self.data.weights and len(self.data.weights) != len(self.data.path):
            raise ValueError(f"data.weights: {len(self.data.weights)} for {len(self.data.path)} datasets of data.path")
        if self.run.mode == "offline" and self.data.record:
            raise ValueError("data.record: an offline run has no rows of its own")
        if self.data.path and self.players:
            raise ValueError("players: several do not learn from data.path")
        return self

    @model_validator(mode="after")
    def _in_updates(self) -> Self:
        """An offline run makes no steps: what is given in steps is counted in updates."""
        if self.run.mode != "offline":
            return self
        changed: dict[str, Config] = {
            "train": self.train.model_copy(update={"budget": self.train.budget.in_updates()}),
            "eval": self.eval.model_copy(update={"every": self.eval.every.in_updates()}),
            "save": self.save.model_copy(update={"every": self.save.every.in_updates()}),
            "log": self.log.model_copy(update={"every": self.log.every.in_updates()}),
        }
        return self.model_copy(update=changed)

    @property
    def title(self) -> str:
        """What a run is called: its name, or its environment and algorithm."""
        world = str(self.env.plain().get("id") or self.env.kind).replace("/", "-").replace(":", "-")
        return self.run.name or f"{world}-{'league' if self.league else self.algo.kind}"
