"""`data.record`: every run's rows as a dataset, whole episodes alone, also where it was stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion.data import files, recorder
from ganglion.data.dataset import Dataset
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.run import Run

ENV = "env={kind: torch, id: cartpole, slots: 3}"
PPO = "algo={kind: ppo, horizon: 16, minibatches: 2, epochs: 1, net: {hidden: [8]}, processor: {reward_scale: 0.5}}"
REST = ["train.budget=960 steps", "eval=never", "save.every=240 steps", "log={every: 240 steps, writers: [jsonl]}",
        "run.device=cpu", "run.fast=eager"]  # fmt: skip


def run(folder: Path, data: Path, *more: str) -> Run:
    cfg = ganglion.load_config(None, [PPO, ENV, *REST, f"data.record={data}", f"run.dir={folder}", *more])
    return Run.create(cfg)


def episodes(data: Dataset) -> set[tuple[int, float]]:
    """What each episode was, whatever their order."""
    return {(len(part.reward), float(part.obs.double().sum())) for part in data.episodes()}


def test_a_run_writes_its_rows(tmp_path: Path) -> None:
    whole = run(tmp_path / "run", tmp_path / "data")
    scores = [e.total for log in whole.stream() if log.kind == "collect" for e in log.episodes]
    whole.close()
    data = files.read(tmp_path / "data")
    assert sorted(data.returns().tolist()) == sorted(scores), "rewards as the environment gave them"
    assert data.about[0]["algo"]["kind"] == "ppo" and data.about[0]["seed"] == 0
    logp = data.rows.extras["logp"][data.rows.valid]
    assert (logp < 0).all() and logp.std() > 0
    # the observation after a step is the next row's: a cart moves by its velocity
    for part in data.episodes():
        moved = part.obs[:-1, 0, 0] + 0.02 * part.obs[:-1, 0, 1]
        torch.testing.assert_close(part.obs[1:, 0, 0], moved, atol=1e-6, rtol=0)


@pytest.mark.parametrize("large", [1, 8 << 20], ids=["written-at-once", "waiting"])
def test_a_resumed_run_writes_each_row_once(large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE", large)
    whole = run(tmp_path / "whole", tmp_path / "one")
    for _ in whole.stream():
        pass
    whole.close()
    left = run(tmp_path / "left", tmp_path / "two")
    for log in left.stream():
        if log.kind == "collect" and log.at.env_steps > 620:  # past the checkpoint at 480
            break
    left.trainer.source.close()  # what was written after the checkpoint is taken back
    again = Run.open(tmp_path / "left")
    for _ in again.stream():
        pass
    again.close()
    one, two = files.read(tmp_path / "one"), files.read(tmp_path / "two")
    assert episodes(one) == episodes(two) and one.steps == two.steps
    assert len(two.about) == 1


def test_episodes_that_do_not_end_are_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorder, "MAX_STEPS", 7)
    trainer: Any = build(ganglion.load_config(None, [
        "algo={kind: ppo, horizon: 8, net: {hidden: [8]}}", "env={kind: torch, id: pendulum, slots: 2}",
        "train.budget=96 steps", f"data.record={tmp_path / 'data'}", *REST[1:]]))  # fmt: skip
    for _ in trainer():
        pass
    kept = trainer.source.seats[0].processor
    kept.flush()
    kept.flush()
    data = files.read(tmp_path / "data")
    assert set(data.lengths()) == {8} and not data.rows.terminated.any()


def test_each_player_has_a_dataset_of_its_own(tmp_path: Path) -> None:
    cfg = ganglion.load_config(None, [
        "algo={kind: ppo, horizon: 8, net: {hidden: [8]}}", "env={kind: matrix, id: zero_sum, rounds: 4, slots: 4}",
        "players={a: {agents: [first]}, b: {agents: [second]}}", "train.budget=64 steps",
        f"data.record={tmp_path / 'data'}", *REST[1:]])  # fmt: skip
    trainer = build(cfg)
    for _ in trainer():
        pass
    trainer.close()
    assert files.read(tmp_path / "data" / "a").steps == files.read(tmp_path / "data" / "b").steps > 0


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.record: an offline run has no rows of its own"):
        ganglion.load_config(None, [PPO, ENV, "run.mode=offline", "data.path=x", "data.record=y"])
    with pytest.raises(UserError, match=r"data\.record: .* is a game of turns"):
        build(ganglion.load_config(None, ["algo=ppo", "env=kuhn", "data.record=y"]))
