"""DAgger: an expert labels what others see."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ganglion
from ganglion import ops
from ganglion.buffers.demonstrated import LABEL
from ganglion.core import Acted, Past, Step
from ganglion.data.labels import LabelledConfig
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.run import Run, load_agents
from tests.contract.test_own_algorithms import close
from tests.data.test_offline import ENV, REST, recorded

INNER = "{kind: bc, net: {hidden: [16]}, replay: {batch: 16}, limiter: {opt_interval: 4, warmup: 16}}"
MEMORY = "algo={kind: dqn, net: {hidden: [16], memory: gru, memory_size: 8}, replay: {batch: 4, sequence: 4}}"


@pytest.fixture(scope="module", params=["dqn", "recurrent"])
def expert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("expert")
    algo = MEMORY if request.param == "recurrent" else "algo={kind: dqn, net: {hidden: [16]}}"
    cfg = ganglion.load_config(None, [algo, ENV, "train.budget=80 steps", "eval=never", "run.device=cpu",
                                      "run.fast=eager", f"run.dir={folder}", "log=[jsonl]"])  # fmt: skip
    run = Run.create(cfg)
    for _ in run.stream():
        pass
    run.close()
    return folder


def config(expert: Path, *more: str) -> ganglion.RunConfig:
    algo = f"algo={{kind: dagger, expert: {expert}, inner: {INNER}}}"
    return ganglion.load_config(None, [algo, ENV, *REST, "train.budget=120 steps", "save.every=40 steps", *more])


def test_rows_are_labelled_by_the_expert(expert: Path) -> None:
    trainer = build(config(expert))
    agent = load_agents(str(expert), "best")[1][0][1]
    rows = LabelledConfig(expert=str(expert)).build(trainer.source.spec, torch.device("cpu"))
    past, labels = agent.start(4), []
    obs, start = torch.randn(5, 4, 4), torch.zeros(5, 4, dtype=torch.bool)
    start[0], start[3, 1] = True, True
    for t in range(5):
        acted = agent.predict(obs[t], past._replace(start=start[t][None]))
        labels.append(acted.action)
        past = Past(acted.memory, past.start, acted.carried)
    off = torch.zeros(5, 4, dtype=torch.bool)
    step = Step(obs, torch.zeros(5, 4), off, off, ~off)
    row = rows(step, Past((), start), Acted(torch.zeros(5, 4, dtype=torch.int64), {}, ()), step)
    assert torch.equal(row.extras[LABEL], ops.stack(labels)) and row.action.sum() == 0
    assert rows.state().tensors.keys() == ({"expert/memory/0"} if agent.algo.model.recurrent else set())


def test_resumed_exactly(expert: Path, tmp_path: Path) -> None:
    whole = Run.create(config(expert, f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(config(expert, f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps >= 80:
            break
    left.close()
    again = Run.open(tmp_path / "left")
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)
    assert again.trainer.at.opt_steps > 10


def test_a_dataset_is_labelled_as_well(expert: Path, tmp_path: Path) -> None:
    data = recorded(tmp_path / "data", ENV, episodes=4)
    trainer = build(config(expert, f"data.path={data}", "data.pretrain=5", "train.budget=60 steps"))
    for _ in trainer():
        pass
    assert trainer.at.opt_steps > 5


def test_what_does_not_go_together(expert: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"algo\.expert: its observations are"):
        build(config(expert, "env={kind: torch, id: acrobot, slots: 4}"))
    with pytest.raises(UserError, match="should name the folder of a run, whose agent labels"):
        trainer = build(config(expert, "algo.expert=''"))
        for _ in trainer():
            pass
