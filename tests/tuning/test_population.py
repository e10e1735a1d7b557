"""Populations: who is copied, what is changed, and that both go on after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ganglion.analysis.runs import read_run
from ganglion.record.checkpoint import load
from ganglion.tuning.gaussian_process import NOISE, best_candidate, kernel, posterior
from ganglion.tuning.population import Member, Population, perturbed
from ganglion.tuning.space import OneOf, Range, SearchSpace
from ganglion.tuning.study import Study, StudyConfig
from tests.tuning.inline import base, pool

SPACE = ("algo.lr.start=1e-4..1e-2", "algo.lam")


def config(**more: object) -> StudyConfig:
    asked = {"method": "pbt", "trials": 4, "interval": "16 steps", "space": SPACE, "base": base()}
    return StudyConfig.model_validate({**asked, **more})


def live(study: Study, stop_after: int | None = None) -> Population:
    workers, made = pool()
    found = Population.open(study)
    found.run(workers, lambda now: None, lambda: stop_after is not None and len(made[0].jobs) > stop_after)
    workers.close()
    return found


def test_a_population_lives(tmp_path: Path) -> None:
    study = Study.create(config(), tmp_path / "study")
    found = live(study)
    assert found.generations == 4 and len(found.lived) == 16
    for generation in range(1, 4):
        now, before = found.of(generation), found.of(generation - 1)
        copied = [one for one in now if one.parent != one.member]
        assert len(copied) <= 1
        ranked = sorted(before, key=lambda one: one.rank)
        for one in copied:
            assert one.member == ranked[0].member and one.parent == ranked[-1].member
            assert one.settings != before[one.parent].settings
        assert all(one.settings == before[one.member].settings for one in now if one not in copied)
    for member in range(4):
        run = read_run(str(study.folder / "runs" / f"member-{member:02d}"))
        assert run.steps >= 64 and run.config["algo"]["lr"]["start"] == found.of(3)[member].settings["algo.lr.start"]
    best = found.best()
    assert best is not None and [one.generation for one in found.lineage(best)] == [0, 1, 2, 3]


def test_what_is_taken_over_is_the_agent(tmp_path: Path) -> None:
    """Weights and optimiser of the one, rows and counters of the other."""
    from ganglion.runtime.run import Run
    from ganglion.tuning.jobs import inherit

    runs = []
    for seed in (1, 2):
        run = Run.create(base(f"run.seed={seed}", f"run.dir={tmp_path / str(seed)}"))
        for _ in run.stream():
            pass
        runs.append(run)
    path = runs[0].checkpoints.newest()
    assert path is not None
    theirs, own = load(path)[0].tensors, runs[1].trainer.state()
    inherit(runs[1], str(path))
    now = runs[1].trainer.state()
    for name, tensor in now.tensors.items():
        source = theirs[f"trainer/{name}"] if name.startswith("agent/") else own.tensors[name]
        assert torch.equal(tensor, source), name
    assert now.scalars["counters/at"] == own.scalars["counters/at"]
    for run in runs:
        run.close()


def test_a_stopped_population_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = live(Study.create(config(), tmp_path / "whole"))
    study = Study.create(config(), tmp_path / "study")
    part = live(study, stop_after=6)
    assert 4 <= len(part.lived) < 16
    found = live(Study.open(tmp_path / "study", {}))
    strip = lambda lived: [(one.member, one.settings, one.parent, one.score, one.steps) for one in lived]  # noqa: E731
    assert strip(found.lived) == strip(whole.lived)


def test_members_that_fail_are_replaced() -> None:
    cfg = config()
    found = Population(Study(Path("nowhere"), cfg, []))
    found.lived = [
        Member(0, k, {"algo.lr.start": 1e-3, "algo.lam": 0.9}, k, None if k == 2 else float(k), 16, f"c{k}")
        for k in range(4)
    ]
    now = found.missing(1)
    assert [one.parent for one in now] == [0, 1, 3, 3]


def test_settings_are_perturbed_or_drawn_anew() -> None:
    space: SearchSpace = {"a": Range(1e-5, 1e-1, "log"), "g": Range(0.8, 0.999, "from one"), "c": OneOf((1, 2, 3))}
    before = {"a": 1e-3, "g": 0.99, "c": 2}
    dice = np.random.default_rng(0)
    near = [perturbed(config(resample=0.0), space, before, dice) for _ in range(50)]
    assert {one["a"] for one in near} == {8e-4, 1.2e-3} and {one["c"] for one in near} == {1, 3}
    assert {round(one["g"], 6) for one in near} == {0.992, 0.988}
    anew = [perturbed(config(resample=1.0), space, before, dice)["a"] for _ in range(200)]
    assert min(anew) < 1e-4 and max(anew) > 1e-2
    assert 0.2 < np.mean([a < 1e-3 for a in anew]) < 0.8


def test_the_process_is_that_of_the_textbook() -> None:
    """Mean and deviation against the joint normal distribution, conditioned by its definition."""
    dice = np.random.default_rng(0)
    places, ages, values = dice.random((6, 2)), np.arange(6.0), dice.standard_normal(6)
    asked = dice.random((3, 2))
    mean, deviation = posterior(places, ages, values, asked, 7.0, 0.4)
    together = np.concatenate([places, asked])
    when = np.append(ages, [7.0] * 3)
    joint = kernel(together, when, together, when, 0.4)
    joint[:6, :6] += NOISE * np.eye(6)
    inverse = np.linalg.inv(joint[:6, :6])
    assert np.allclose(mean, joint[6:, :6] @ inverse @ values, atol=1e-12)
    left = joint[6:, 6:] - joint[6:, :6] @ inverse @ joint[:6, 6:]
    assert np.allclose(deviation**2, np.diag(left), atol=1e-12)


def test_the_model_goes_where_it_was_good() -> None:
    dice = np.random.default_rng(1)
    seen = [(g, [x], -((x - 0.7) ** 2)) for g in range(4) for x in np.linspace(0, 1, 9)]
    assert abs(best_candidate(seen, 4, [0.2], [], dice)[0] - 0.7) < 0.15
    first = best_candidate([(0, [0.5], 1.0), (1, [0.4], 0.5)], 2, [0.5], [], dice)
    second = best_candidate([(0, [0.5], 1.0), (1, [0.4], 0.5)], 2, [0.5], [first], dice)
    assert abs(first[0] - second[0]) > 1e-3  # not all get the same


def test_pb2_lives(tmp_path: Path) -> None:
    found = live(Study.create(config(method="pb2", base=base("train.budget=80 steps")), tmp_path / "study"))
    assert len(found.lived) == 20
    for one in found.lived:
        assert 1e-4 <= one.settings["algo.lr.start"] <= 1e-2


@pytest.mark.parametrize("ends", [".png", ".svg"])
def test_pictures(ends: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ganglion.tuning.pictures import draw_lineage

    found = Population(Study(tmp_path, config(), []))
    for generation in range(3):
        for k in range(4):
            settings = {"algo.lr.start": 1e-3 * (k + 1), "algo.lam": 0.9}
            parent = 3 if k == 0 and generation else k
            found.lived.append(Member(generation, k, settings, parent, float(k), 16 * (generation + 1)))
    draw_lineage(found, str(tmp_path / f"lineage{ends}"))
    assert (tmp_path / f"lineage{ends}").stat().st_size > 5_000
