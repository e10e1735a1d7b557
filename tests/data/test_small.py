"""The small datasets in tests/data/small, made by `python -m benchmarks.offline make` and `small`."""

from __future__ import annotations

from pathlib import Path

import pytest

import ganglion
from ganglion.data import files
from ganglion.data.check_data import check_data
from ganglion.runtime.build import build

SMALL = Path(__file__).parent / "small"
KINDS = ("random", "medium", "expert", "medium-replay", "mixed")
TASKS = {task: f"env={{kind: torch, id: {task}, slots: 4}}" for task in ("pendulum", "cartpole")}


def mean(name: str) -> float:
    return float(files.read(SMALL / name).returns().mean())


@pytest.mark.parametrize("task", TASKS)
def test_they_are_what_they_are_called(task: str) -> None:
    random, medium, expert, replay, mixed = (mean(f"{task}-{kind}") for kind in KINDS)
    assert random < medium < expert and random < replay < expert and random < mixed < expert
    assert sum(path.stat().st_size for path in SMALL.rglob("*") if path.is_file()) <= 2 << 20


@pytest.mark.parametrize("name", [f"{task}-{kind}" for task in TASKS for kind in KINDS])
def test_each_is_sound_and_says_where_it_came_from(name: str) -> None:
    found = check_data(SMALL / name)
    assert found.passed, found.of("fail")
    sources = files.read_manifest(SMALL / name).sources
    assert all("env" in source and "ganglion" in source and "/" not in str(source.get("run")) for source in sources)


@pytest.mark.learning
def test_ten_episodes_of_an_expert_are_copied() -> None:
    cfg = ganglion.load_config(None, [
        "algo={kind: bc, net: {hidden: [64, 64]}, lr: 1e-3, replay: {batch: 128}}", TASKS["cartpole"],
        "run.mode=offline", f"data.path={SMALL / 'cartpole-expert'}", "train.budget=600 updates",
        "eval={every: never, episodes: 10}", "run.device=cpu", "run.fast=eager"])  # fmt: skip
    trainer = build(cfg)
    for _ in trainer():
        pass
    assert trainer.run_evaluate()[1]["eval/return_mean"] >= 0.9 * mean("cartpole-expert")
