"""Population based training (Jaderberg et al. 2017): members train beside each other; after each generation the last
take over an agent of the first, weights and optimiser, and go on with its settings changed a little.

PB2 (Parker-Holder et al. 2020) chooses those settings by a model of what they have brought so far: a Gaussian process
over time and settings, and its upper confidence bound.

A member is an ordinary run in a folder of its own, and what is taken over is a checkpoint: a population is stopped and
continued like a run. All members finish a generation before the next: what comes out does not depend on how many
workers there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

import numpy as np

from ganglion.config.files import IMPORTED, dump
from ganglion.config.values import Every
from ganglion.errors import UserError
from ganglion.record.atomic_write import write_file
from ganglion.runtime.randomness import derive
from ganglion.tuning.gaussian_process import best_candidate
from ganglion.tuning.jobs import Job, JobOutcome
from ganglion.tuning.pool import TrainingPool, run_all
from ganglion.tuning.search import drawn
from ganglion.tuning.space import SearchSpace, values_of
from ganglion.tuning.study import Study, StudyConfig

FILE = "population.jsonl"
WORST = float("-inf")
KEEP = 4  # checkpoints of a member: the one that others may take over stays while it trains on, and through a stop


@dataclass
class Member:
    """A member in one generation."""

    generation: int
    member: int
    settings: dict[str, Any]
    parent: int  # whose agent it began the generation with: itself, as a rule
    score: float | None = None  # at the end of the generation
    steps: int = 0
    checkpoint: str | None = None
    why: str = ""

    @property
    def rank(self) -> tuple[float, int]:
        return (WORST if self.score is None else self.score), -self.member


@dataclass
class Population:
    """All generations of a study so far."""

    study: Study
    lived: list[Member] = field(default_factory=list)

    @classmethod
    def open(cls, study: Study) -> Population:
        file = study.folder / FILE
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        try:
            return cls(study, [Member(**json.loads(line)) for line in lines])
        except (ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged: {error}.") from error

    @property
    def interval(self) -> int:
        """Env steps of a generation."""
        cfg = self.study.cfg
        every = cfg.interval or Every(max(1.0, cfg.base.train.budget.count // 10), "steps")
        return int(every.count)

    @property
    def generations(self) -> int:
        return ceil(self.study.cfg.base.train.budget.count / self.interval)

    def of(self, generation: int) -> list[Member]:
        """Its members, in order."""
        return sorted((one for one in self.lived if one.generation == generation), key=lambda one: one.member)

    def best(self) -> Member | None:
        """Of the newest generation that is whole."""
        whole = [g for g in range(self.generations) if len(self.of(g)) == self.study.cfg.trials]
        return max(self.of(whole[-1]), key=lambda one: one.rank) if whole else None

    def lineage(self, member: Member) -> list[Member]:
        """Where its agent comes from, generation by generation."""
        line = [member]
        while line[-1].generation:
            before = {one.member: one for one in self.of(line[-1].generation - 1)}
            line.append(before[line[-1].parent])
        return line[::-1]

    # ------------------------------------------------------------ living

    def run(self, pool: TrainingPool, say: Callable[[list[Member]], None], asked: Callable[[], bool]) -> None:
        """All generations that have not been."""
        for generation in range(self.generations):
            missing = self.missing(generation)
            if not missing:
                continue
            self.live(missing, pool, asked)
            now = self.of(generation)
            if len(now) < self.study.cfg.trials:
                return  # stopped
            if all(one.score is None for one in now):
                raise UserError(f"no member of generation {generation} could be scored: {now[0].why}")
            say(now)

    def missing(self, generation: int) -> list[Member]:
        """The members of a generation that have yet to train, with their settings."""
        members = first(self.study) if generation == 0 else self.born(generation)
        there = {one.member for one in self.of(generation)}
        return [one for one in members if one.member not in there]

    def born(self, generation: int) -> list[Member]:
        """The last take over agents of the first, with settings of their own; the others go on."""
        cfg, before = self.study.cfg, self.of(generation - 1)
        dice = np.random.default_rng(derive(cfg.base.run.seed, f"generation/{generation}"))
        ranked = sorted(before, key=lambda one: one.rank, reverse=True)
        count = max(1, int(cfg.top * len(ranked)))
        leaders = [one for one in ranked[:count] if one.checkpoint is not None]
        members = {one.member: Member(generation, one.member, one.settings, one.member) for one in before}
        chosen: list[dict[str, Any]] = []
        for loser in ranked[-count:]:
            if not leaders or loser in leaders:
                continue
            parent = leaders[int(dice.integers(len(leaders)))]
            settings = self.explored(parent, generation, dice, chosen)
            chosen.append(settings)
            members[loser.member] = Member(generation, loser.member, settings, parent.member)
        return [members[number] for number in sorted(members)]

    def explored(
        self, parent: Member, generation: int, dice: np.random.Generator, chosen: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        if self.study.cfg.method == "pbt":
            return perturbed(self.study.cfg, self.study.space, parent.settings, dice)
        return self.modelled(parent, generation, dice, chosen)

    def modelled(
        self, parent: Member, generation: int, dice: np.random.Generator, chosen: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """PB2: numbers by the model, choices as in PBT."""
        space = self.study.space
        numbers = [path for path, one in space.items() if not one.options]

        def where(settings: dict[str, Any]) -> list[float]:
            return [space[path].unit(settings[path]) for path in numbers]

        seen = [(one.generation, where(one.settings), gain) for one, gain in self.gains()]
        others = perturbed(self.study.cfg, space, parent.settings, dice)
        if not numbers or len(seen) < 2:
            return others
        pending = [where(settings) for settings in chosen]
        units = best_candidate(seen, generation, where(parent.settings), pending, dice)
        return others | {path: space[path].value(float(unit)) for path, unit in zip(numbers, units, strict=True)}

    def gains(self) -> list[tuple[Member, float]]:
        """By how much each member's score rose in each generation."""
        scores = {(one.generation, one.member): one.score for one in self.lived}
        found = []
        for one in self.lived:
            before = 0.0 if one.generation == 0 else scores.get((one.generation - 1, one.parent))
            if one.score is not None and before is not None and one.generation:
                found.append((one, one.score - before))
        return found

    def live(self, members: Sequence[Member], pool: TrainingPool, asked: Callable[[], bool]) -> None:
        """Trains members to the end of their generation; each is written down when it has come there."""
        jobs = [self.job(one) for one in members]
        by_number = {one.member: one for one in members}

        def on(told: dict[str, Any]) -> None:
            if told["event"] != "ended":
                return
            member, outcome = by_number[told["number"]], told["outcome"]
            if outcome.how != "stopped":
                self.keep(ended(member, outcome))

        run_all(pool, jobs, on, asked)

    def job(self, member: Member) -> Job:
        study, last = self.study, member.generation == self.generations - 1
        before = {one.member: one for one in self.of(member.generation - 1)}
        seed = study.cfg.base.run.seed + member.member
        paced = {"eval.every": f"{self.interval} steps", "save.every": str(study.cfg.base.train.budget)}
        settings = {**member.settings, **paced, "save.keep": KEEP}
        cfg = study.config(settings, f"member-{member.member:02d}", seed, keeps=True)
        heir = before[member.parent].checkpoint if member.parent != member.member else None
        since = before[member.member].steps if before else 0
        until = None if last else float((member.generation + 1) * self.interval)
        return Job(member.member, [dump(cfg)], list(IMPORTED), until, heir, since)

    def keep(self, member: Member) -> None:
        self.lived.append(member)
        self.lived.sort(key=lambda one: (one.generation, one.member))
        write_file(self.study.folder / FILE, [(json.dumps(asdict(one)) + "\n").encode() for one in self.lived])


def first(study: Study) -> list[Member]:
    """The config as it is, and settings drawn from the space."""
    dice = np.random.default_rng(derive(study.cfg.base.run.seed, "generation/0"))
    settings = [values_of(study.cfg.base, study.space)]
    settings += [drawn(study.space, dice) for _ in range(study.cfg.trials - 1)]
    return [Member(0, number, one, number) for number, one in enumerate(settings)]


def ended(member: Member, outcome: JobOutcome) -> Member:
    scores = outcome.scores[0] if outcome.scores else []
    score = scores[-1] if scores and outcome.how != "failed" else None
    member.score = score if score is not None and np.isfinite(score) else None
    member.steps, member.checkpoint, member.why = outcome.steps, outcome.checkpoint, outcome.why
    return member


def perturbed(
    cfg: StudyConfig, space: SearchSpace, settings: dict[str, Any], dice: np.random.Generator
) -> dict[str, Any]:
    """Each setting drawn anew, or multiplied by 1 + or - `perturb`; a choice moves to a neighbour."""
    found = {}
    for path, one in space.items():
        anew, up, unit = dice.random() < cfg.resample, dice.random() < 0.5, float(dice.random())
        if anew:
            found[path] = one.value(unit)
        else:
            found[path] = one.moved(settings[path], 1 + (cfg.perturb if up else -cfg.perturb))
    return found
