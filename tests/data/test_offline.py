"""Training from a dataset alone: any algorithm with a replay, resumed exactly, batched over runs, compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion.config import RunConfig
from ganglion.data import files
from ganglion.data.record import record_random, record_run
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine
from ganglion.runtime.run import Run
from ganglion.runtime.seeds import Seeds
from tests.contract.test_own_algorithms import close, trained
from tests.contract.worlds import one_graph

ENV = "env={kind: torch, id: cartpole, slots: 4}"
REAL = "env={kind: torch, id: pendulum, slots: 4}"
DQN = "algo={kind: dqn, replay: {batch: 16}, net: {hidden: [16]}}"
REST = ["train.budget=60 updates", "eval={every: 30 updates, episodes: 2, max_steps: 40}", "save.every=20 updates",
        "log={every: 20 updates, writers: [jsonl]}", "run.device=cpu", "run.fast=eager"]  # fmt: skip


def config(data: Path | str, *more: str, algo: str = DQN, env: str = ENV) -> RunConfig:
    return ganglion.load_config(None, [algo, env, "run.mode=offline", f"data.path={data}", *REST, *more])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("data") / "cartpole", ENV)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("data") / "pendulum", REAL, episodes=4)


def recorded(folder: Path, env: str, episodes: int = 12) -> Path:
    cfg = ganglion.load_config(None, ["algo=ppo", env, "eval.max_steps=60", "run.device=cpu"])
    files.write(folder, record_random(cfg, episodes, 0))
    return folder


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["algo.n_step=3", "algo.replay={kind: prioritised, batch: 16}"],
        ["algo.net={memory: gru, memory_size: 8, hidden: [16]}", "algo.replay={sequence: 4, burn_in: 1, batch: 8}"],
        ["algo.net={normalise: true, hidden: [16]}"],
    ],
    ids=["uniform", "prioritised", "recurrent", "normalised"],
)
def test_resumed_exactly(more: list[str], data: Path, tmp_path: Path) -> None:
    whole = Run.create(config(data, *more, f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(config(data, *more, f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.opt_steps >= 40:
            break
    left.close()
    assert [p.name for p in sorted((tmp_path / "left" / "checkpoints").glob("0-*"))] == ["0-20", "0-40"]
    again = Run.open(tmp_path / "left")
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)
    assert again.trainer.at.opt_steps == 60 and again.trainer.at.env_steps == 0
    assert "steps in 12 episodes" in again.summary()["Data"]


@pytest.mark.parametrize("kind", ["sac", "td3", "flashsac", "ddpg", "tqc"])
def test_algorithms_of_control_need_no_change(kind: str, real: Path) -> None:
    algo = f"algo={{kind: {kind}, replay: {{batch: 16}}, net: {{hidden: [16]}}}}"
    trainer = build(config(real, "train.budget=24 updates", algo=algo, env=REAL))
    trained(trainer)
    assert trainer.at.opt_steps == 24


def test_as_one_graph(data: Path) -> None:
    torch._dynamo.reset()
    compiled = build(config(data), Engine(torch.device("cpu"), one_graph))
    close(trained(build(config(data))), trained(compiled), exactly=False)


def test_batched_over_runs(data: Path, tmp_path: Path) -> None:
    seeds = Seeds([config(data, f"run.dir={tmp_path / str(k)}", f"run.seed={k}") for k in range(2)])
    for _ in seeds.stream():
        pass
    for k, run in enumerate(seeds.runs):
        alone = trained(build(config(data, f"run.seed={k}")))
        close(alone, dict(run.trainer.learner.agent.state().tensors), exactly=False)


def test_rewards_are_shaped_by_the_algorithms_processor(data: Path) -> None:
    trainer: Any = build(config(data, "algo.processor={reward_scale: 0.5}"))
    next(trainer())
    ring = trainer.learner.buffer.replay.ring.held
    assert ring.reward.max() == 0.5


def test_every_row_can_be_drawn(data: Path) -> None:
    trainer: Any = build(config(data))
    next(trainer())
    kept, rows = trainer.learner.buffer.replay, files.read(data).rows
    assert kept.ring.pushed == len(rows.reward) <= kept.ring.length
    assert trainer.learner.buffer.metrics()["rows"] == len(rows.reward)


# ------------------------------------------------------------ recording


def test_agents_are_recorded_with_where_they_came_from(data: Path, tmp_path: Path) -> None:
    run = Run.create(config(data, f"run.dir={tmp_path / 'run'}"))
    for _ in run.stream():
        pass
    run.close()
    one = record_run(str(tmp_path / "run"), 3, seed=5, deterministic=True)
    assert len(one.lengths()) == 3 and one.about[0]["actions"] == "deterministic" and one.about[0]["seed"] == 5
    same = record_run(str(tmp_path / "run"), 3, seed=5, deterministic=True)
    assert files.fingerprint(one.rows) == files.fingerprint(same.rows)
    mixed = record_run(str(tmp_path / "run"), 3, seed=5, which="0-20", epsilon=0.5)
    assert mixed.about[0]["checkpoint"].endswith("0-20") and mixed.about[0]["epsilon"] == 0.5
    with pytest.raises(UserError, match=r"no checkpoint '0-21'. Accepted: best, last, .*0-20.*Did you mean '0-20'"):
        record_run(str(tmp_path / "run"), 3, seed=5, which="0-21")


# ------------------------------------------------------------ what is refused


def test_another_dataset_does_not_go_on(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    files.write(folder, files.read(data))
    run = Run.create(config(folder, f"run.dir={tmp_path / 'run'}"))
    for log in run.stream():
        if log.kind == "save":
            break
    run.close()
    files.write(folder, files.read(data))
    with pytest.raises(UserError, match="not the one that the run was trained on"):
        Run.open(tmp_path / "run")


def test_what_does_not_go_together(data: Path, real: Path) -> None:
    with pytest.raises(UserError, match=r"needs data\.path"):
        ganglion.load_config(None, [DQN, ENV, "run.mode=offline"])
    with pytest.raises(UserError, match=r"needs run\.mode offline or local"):
        ganglion.load_config(None, [DQN, ENV, f"data.path={data}", "run.mode=threads"])
    with pytest.raises(UserError, match="ppo learns from what it has just done"):
        build(config(data, algo="algo=ppo"))
    with pytest.raises(UserError, match="its observations are"):
        build(config(real))
    with pytest.raises(UserError, match=r"nowhere is not there. Accepted: a folder"):
        build(config("nowhere"))


def test_steps_are_counted_in_updates(data: Path) -> None:
    cfg = config(data, "train.budget=50 steps", "eval.every=never")
    assert str(cfg.train.budget) == "50 updates" and str(cfg.eval.every) == "never"
