"""A study: the question, its trials and their answers, in a folder of plain files from which it goes on.

`study.yaml` is the question, `trials.jsonl` one line per trial that has ended, `runs/` their runs, `winner.yaml` the
config that won.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from ganglion.config import RunConfig, text
from ganglion.config.files import dump, explain
from ganglion.config.model import Config
from ganglion.config.values import Every
from ganglion.errors import UserError
from ganglion.record.atomic_write import write_file
from ganglion.tuning.space import OneOf, Range, asked, changed

QUESTION, TRIALS, WINNER = "study.yaml", "trials.jsonl", "winner.yaml"
Method = Literal["tpe", "random", "pbt", "pb2"]
Settings = Mapping[str, Any]  # path -> value


class StudyConfig(Config):
    """What is searched, how, and how much of it."""

    method: Method = "tpe"
    trials: int = Field(default=20, ge=1, le=100_000)  # of PBT and PB2: members
    seeds: int = Field(default=1, ge=1, le=64)  # runs of each trial
    score: Literal["last", "best", "mean"] = "last"  # of a run's evaluations
    prune: bool = True  # trials that fall behind the median end early
    confirm: int = Field(default=5, ge=0, le=64)  # fresh seeds on which the winner is trained again
    space: tuple[str, ...] = ()  # PATH=LOW..HIGH, PATH=[A, B], PATH; none: the numbers of the algorithm
    interval: Every | None = None  # PBT, PB2: env steps between two generations; None: a tenth of the budget
    top: float = Field(default=0.25, gt=0, le=0.5)  # PBT, PB2: the share that is copied, by as many of the last
    resample: float = Field(default=0.25, ge=0, le=1)  # PBT: how often a copied setting is drawn anew
    perturb: float = Field(default=0.2, gt=0, lt=1)  # PBT: else it is multiplied by 1 plus or minus this
    base: RunConfig  # what everything else is taken from; its seed is that of the search, too

    @property
    def population(self) -> bool:
        return self.method in ("pbt", "pb2")

    def searched(self) -> dict[str, Range | OneOf]:
        """The space. A population changes its settings while it trains: counts, which are shapes, are not changed
        unless they are named."""
        found = asked(self.base, list(self.space))
        if self.population and not self.space:
            found = {path: one for path, one in found.items() if not one.whole}
        if not found:
            raise UserError(f"--space: {self.base.algo.kind} has no numbers of its own. Accepted: PATH=LOW..HIGH.")
        return found


@dataclass
class StudyTrial:
    """Settings, and what came of them."""

    number: int
    settings: dict[str, Any]
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    score: float | None = None
    scores: list[float] = field(default_factory=list)  # of each seed
    curve: list[float] = field(default_factory=list)  # means over seeds, one per evaluation
    places: list[float] = field(default_factory=list)  # env steps of these
    steps: int = 0  # of each seed
    why: str = ""


class Study:
    """A question and its trials so far."""

    def __init__(self, folder: Path, cfg: StudyConfig, trials: list[StudyTrial]) -> None:
        self.folder, self.cfg, self.trials, self.space = folder, cfg, trials, cfg.searched()

    @classmethod
    def create(cls, cfg: StudyConfig, folder: Path | None = None) -> Study:
        check(cfg)
        study = cls(folder or new_folder(cfg.base.title), cfg, [])
        if (study.folder / QUESTION).exists() or (study.folder.is_dir() and any(study.folder.iterdir())):
            raise UserError(f"--study: {study.folder} is there already. Continue it: ganglion tune {study.folder}")
        study.folder.mkdir(parents=True, exist_ok=True)
        write_file(study.folder / QUESTION, [dump(cfg).encode()])
        return study

    @classmethod
    def open(cls, folder: Path, more: Mapping[str, Any]) -> Study:
        """As it was left, with other numbers where they are given: more trials, for one."""
        raw = text.read((folder / QUESTION).read_text(encoding="utf-8"), str(folder / QUESTION))
        cfg = question({**raw, **more}, str(folder / QUESTION))
        file = folder / TRIALS
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        try:
            trials = [StudyTrial(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged: {error}. What it lists is in {folder}/runs.") from error
        study = cls(folder, cfg, trials)
        write_file(folder / QUESTION, [dump(cfg).encode()])
        return study

    def keep(self, trial: StudyTrial) -> None:
        """One more that has ended: written whole, so that a crash leaves the lines before."""
        self.trials.append(trial)
        self.trials.sort(key=lambda one: one.number)
        write_file(self.folder / TRIALS, [(json.dumps(asdict(one)) + "\n").encode() for one in self.trials])

    def config(self, settings: Settings, where: str, seed: int, keeps: bool = False) -> RunConfig:
        """The config of one run; runs of trials leave no checkpoints, unless they are to be kept."""
        own = {"run.seed": seed, "run.dir": str(self.folder / "runs" / where), "run.name": None, "log": ["jsonl"]}
        return changed(self.cfg.base, {**settings, **own, **({} if keeps else {"save.every": "never"})})

    def seeds(self, fresh: bool = False) -> list[int]:
        """Of trials, or of runs that confirm: no run of the search has had these."""
        first, count = self.cfg.base.run.seed, self.cfg.seeds
        return [first + count + k for k in range(self.cfg.confirm)] if fresh else [first + k for k in range(count)]

    def score_of(self, scores: Sequence[float]) -> float:
        """One number of a run's evaluations."""
        if self.cfg.score == "last":
            return scores[-1]
        return max(scores) if self.cfg.score == "best" else fmean(scores)

    def ranked(self) -> list[StudyTrial]:
        """Finished ones, the best first; then those that ended early, by how far they came."""
        state = {"finished": 0, "pruned": 1, "failed": 2, "running": 3}
        least = float("-inf")
        key = lambda one: (state[one.state], -(least if one.score is None else one.score), one.number)  # noqa: E731
        return sorted(self.trials, key=key)

    def best(self) -> StudyTrial | None:
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].state == "finished" else None

    def write_winner(self, settings: Settings) -> Path:
        """The config of the winner, for `ganglion train`."""
        file = self.folder / WINNER
        write_file(file, [dump(changed(self.cfg.base, settings)).encode()])
        return file


def question(raw: Mapping[str, Any], where: str) -> StudyConfig:
    from pydantic import ValidationError

    try:
        return StudyConfig.model_validate(raw)
    except ValidationError as error:
        raise UserError(explain(error, where)) from None


def check(cfg: StudyConfig) -> None:
    """Refuses what cannot be searched, before anything is made."""
    base, budget = cfg.base, cfg.base.train.budget
    if base.eval.every.unit == "never":
        raise UserError("eval.every: 'never', and trials are told apart by their evaluations. Accepted: 5k steps, ...")
    if base.run.mode != "local" or base.league is not None:
        raise UserError(f"run.mode: {base.run.mode} cannot be tuned. Accepted: local, one player, no league.")
    if not cfg.population:
        return
    if budget.unit != "steps" or (cfg.interval is not None and cfg.interval.unit != "steps"):
        raise UserError(f"train.budget and --interval: a population counts env steps, got {budget}, {cfg.interval}.")
    if cfg.trials < 4:
        raise UserError(f"--members: a population has at least 4, got {cfg.trials}.")


def new_folder(title: str) -> Path:
    base = Path(f"studies/{title}-{datetime.now():%Y%m%d-%H%M%S}")
    return next(one for k in count(1) if not (one := base if k == 1 else base.with_name(f"{base.name}-{k}")).exists())
