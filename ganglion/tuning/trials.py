"""Runs the trials of a study, and trains the winner once more on fresh seeds."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

from ganglion.config.files import IMPORTED, dump
from ganglion.runtime.seeds import interval
from ganglion.tuning.jobs import Job, JobOutcome
from ganglion.tuning.pool import TrainingPool, run_all
from ganglion.tuning.search import searching
from ganglion.tuning.space import values_of
from ganglion.tuning.study import Settings, Study, StudyTrial

Say = Callable[[StudyTrial], None]
Asked = Callable[[], bool]


def run_trials(study: Study, pool: TrainingPool, say: Say, asked: Asked) -> None:
    """All trials that are not there yet, as many at a time as there are workers."""
    search = searching(study.cfg, study.space, study.trials)
    ended = {trial.number for trial in study.trials}
    waiting = [number for number in range(study.cfg.trials) if number not in ended]
    running: dict[int, StudyTrial] = {}
    stopped = False
    while (waiting and not stopped) or pool.busy:
        while waiting and not stopped and pool.free:
            number = waiting.pop(0)
            running[number] = StudyTrial(number, search.ask(number))
            pool.start(job(study, running[number]))
        told = pool.wait()
        if asked() and not stopped:
            stopped = True
            pool.stop_all()
        if told is None:
            continue
        trial = running.get(told["number"])
        if trial is None:
            continue
        if told["event"] == "score" and trial.state == "running":
            trial.curve.append(told["score"])
            trial.places.append(told["steps"])
            if search.prunes(trial):
                trial.state = "pruned"
                pool.stop(trial.number)
        elif told["event"] == "ended":
            running.pop(trial.number)
            if judged(study, trial, told["outcome"]):
                search.tell(trial)
                study.keep(trial)
                say(trial)


def job(study: Study, trial: StudyTrial) -> Job:
    """A trial's runs, in folders that no try before has used."""
    where, tries = f"trial-{trial.number:03d}", 1
    while (study.folder / "runs" / where).exists():
        tries += 1
        where = f"trial-{trial.number:03d}-{tries}"
    configs = [study.config(trial.settings, f"{where}/seed={seed}", seed) for seed in study.seeds()]
    return Job(trial.number, [dump(cfg) for cfg in configs], list(IMPORTED))


def judged(study: Study, trial: StudyTrial, outcome: JobOutcome) -> bool:
    """Writes down how a trial ended; false where it was only interrupted, and is to be made again."""
    trial.steps, trial.why = outcome.steps, outcome.why
    if outcome.how == "failed":
        trial.state = "failed"
        return True
    if trial.state != "pruned" and outcome.how == "stopped":
        return False
    if trial.state == "running":
        trial.state = "finished"
    trial.scores = [study.score_of(scores) for scores in outcome.scores if scores]
    trial.score = fmean(trial.scores) if trial.scores else None
    return True


# ------------------------------------------------------------ the winner again


class Confirmed(NamedTuple):
    """Scores on fresh seeds: mean and 95 % interval."""

    name: str
    scores: list[float]

    @property
    def interval(self) -> tuple[float, float, float]:
        return interval(self.scores)


def confirm(study: Study, pool: TrainingPool, winner: StudyTrial, asked: Asked) -> list[Confirmed]:
    """The winner, and the config as it was, trained on seeds of which the search knew nothing. Runs that are there
    already are read, not trained again."""
    own = values_of(study.cfg.base, study.space)
    sides: dict[str, Settings] = {f"winner-{winner.number:03d}": winner.settings}
    if winner.settings != own:
        sides["before"] = own
    found: dict[str, dict[int, float]] = {name: {} for name in sides}
    jobs, of = list[Job](), dict[int, tuple[str, int]]()
    for name, settings in sides.items():
        for seed in study.seeds(fresh=True):
            cfg = study.config(settings, f"{name}/seed={seed}", seed, keeps=True)
            of[len(jobs)] = name, seed
            jobs.append(Job(len(jobs), [dump(cfg)], list(IMPORTED)))

    def on(told: dict[str, Any]) -> None:
        if told["event"] == "ended" and told["outcome"].how == "finished":
            name, seed = of[told["number"]]
            found[name][seed] = study.score_of(scores_of(told["outcome"]))

    run_all(pool, jobs, on, asked)
    return [Confirmed(name, list(scores.values())) for name, scores in found.items() if scores]


def scores_of(outcome: JobOutcome) -> list[float]:
    """All evaluations of the first run, those of before it was taken up again included."""
    from ganglion.analysis.runs import EVAL, read_run

    return read_run(outcome.folders[0]).curve(EVAL)[1] or outcome.scores[0]
