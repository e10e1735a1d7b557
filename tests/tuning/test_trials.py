"""Trials: searched, pruned, written down, gone on with, and the winner trained again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ganglion.errors import UserError
from ganglion.tuning.search import OptunaSearch, RandomSearch, searching
from ganglion.tuning.study import Study, StudyConfig, StudyTrial
from ganglion.tuning.trials import confirm, run_trials
from tests.tuning.inline import base, pool

pytest.importorskip("optuna")


def config(**more: object) -> StudyConfig:
    asked = {"trials": 4, "confirm": 2, "space": ("algo.lr.start", "algo.gamma=[0.9, 0.99]"), "base": base()}
    return StudyConfig.model_validate({**asked, **more})


def train(study: Study) -> list[int]:
    workers, _ = pool()
    seen: list[int] = []
    run_trials(study, workers, lambda trial: seen.append(trial.number), lambda: False)
    workers.close()
    return seen


def test_a_study_and_its_winner(tmp_path: Path) -> None:
    study = Study.create(config(seeds=2, prune=False), tmp_path / "study")
    assert train(study) == [0, 1, 2, 3]
    assert study.trials[0].settings == {"algo.lr.start": 2.5e-4, "algo.gamma": 0.99}  # the config's own
    assert all(trial.state == "finished" and len(trial.scores) == 2 for trial in study.trials)
    assert all(len(trial.curve) == 4 and trial.steps >= 64 for trial in study.trials)
    best = study.best()
    assert best is not None and best.score == max(trial.score for trial in study.trials if trial.score is not None)
    workers, made = pool()
    found = confirm(study, workers, best, lambda: False)
    assert {seed for job in made[0].jobs for seed in [next(w for w in job.configs[0].split() if "seed=" in w)]}
    assert all(len(one.scores) == 2 for one in found)
    trained = {path.name for path in (study.folder / "runs").glob("winner-*/*")}
    assert trained == {"seed=2", "seed=3"}  # of which the search knew nothing
    assert len(made[0].jobs) == 2 * len(found)
    again = confirm(study, workers, best, lambda: False)  # read, not trained again
    assert [one.scores for one in again] == [one.scores for one in found]
    assert study.write_winner(best.settings).read_text().startswith("algo:")


def test_a_study_goes_on(tmp_path: Path) -> None:
    """After it was left, and for more trials; what was tried is known, and not drawn again."""
    study = Study.create(config(trials=2), tmp_path / "study")
    train(study)
    more = Study.open(tmp_path / "study", {"trials": 4})
    assert [trial.number for trial in more.trials] == [0, 1]
    assert train(more) == [2, 3]
    found = Study.open(tmp_path / "study", {})
    assert found.cfg.trials == 4 and len({str(trial.settings) for trial in found.trials}) == 4


def test_an_interrupted_trial_is_made_again(tmp_path: Path) -> None:
    study = Study.create(config(), tmp_path / "study")
    workers, _ = pool()
    counts = iter([False, False, True, True, True, True, True, True, True, True, True, True])
    run_trials(study, workers, lambda trial: None, lambda: next(counts, True))
    before = len(study.trials)
    assert before < 4
    assert train(study) == list(range(before, 4))


def test_random_trials_do_not_depend_on_their_order() -> None:
    cfg = config(method="random")
    first, second = (RandomSearch(cfg, cfg.searched()) for _ in range(2))
    assert [first.ask(k) for k in (0, 1, 2)] == [second.ask(k) for k in (2, 1, 0)][::-1]
    assert not first.prunes(StudyTrial(1, {}, curve=[0.0]))


def test_the_search_finds_a_peak() -> None:
    """A score that peaks at lr = 3e-3: thirty trials come within a factor of two."""
    cfg = config(space=("algo.lr.start",), trials=30)
    search = searching(cfg, cfg.searched(), [])
    from math import log10

    trials = []
    for number in range(30):
        trial = StudyTrial(number, search.ask(number))
        trial.state, trial.score = "finished", -((log10(trial.settings["algo.lr.start"]) - log10(3e-3)) ** 2)
        search.tell(trial)
        trials.append(trial)
    best = max(trials, key=lambda one: one.score or -9e9)
    assert 1.5e-3 < best.settings["algo.lr.start"] < 6e-3
    assert isinstance(search, OptunaSearch)
    later = searching(cfg, cfg.searched(), trials)  # of what was written down
    assert len(later.study.trials) == 30 and later.study.best_value == best.score  # type: ignore[attr-defined]


def test_what_falls_behind_is_pruned_and_what_failed_counts_as_worst() -> None:
    cfg = config(space=("algo.lr.start",), trials=20)
    search = searching(cfg, cfg.searched(), [])
    pruned = []
    for number in range(8):
        trial = StudyTrial(number, search.ask(number))
        for step in range(5):
            trial.curve.append(float(10 * (number != 6) * (step + 1)))
            if search.prunes(trial):
                trial.state = "pruned"
                pruned.append((number, step))
                break
        else:
            trial.state, trial.score = ("failed", None) if number == 3 else ("finished", trial.curve[-1])
        search.tell(trial)
    assert pruned == [(6, 2)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"base": base("eval=never")}, "eval.every: 'never'"),
        ({"base": base("run.mode=sync")}, "run.mode: sync cannot be tuned"),
        ({"method": "pbt", "trials": 3}, "at least 4"),
        ({"method": "pbt", "base": base("train.budget=10 s")}, "counts env steps"),
    ],
)
def test_refusals(more: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        Study.create(config(**more), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_damaged_study_says_so(tmp_path: Path) -> None:
    Study.create(config(), tmp_path / "study")
    (tmp_path / "study" / "trials.jsonl").write_text('{"number": 0')
    with pytest.raises(UserError, match="damaged"):
        Study.open(tmp_path / "study", {})
