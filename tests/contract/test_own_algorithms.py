"""Algorithms of one's own: eager, compiled, batched over runs, through a broker and resumed like the shipped ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
import tests.contract.own_algorithms  # noqa: F401  registers them
from ganglion.config import RunConfig
from ganglion.fast import Compiled
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine
from ganglion.runtime.run import Run
from ganglion.runtime.seeds import Seeds
from ganglion.runtime.trainer import Trainer
from tests.contract.worlds import one_graph

KINDS = ["noisy-q", "slow-q"]
REST = ["env={kind: torch, id: cartpole, slots: 4}", "train.budget=400 steps", "eval={every: 200 steps, episodes: 2}",
        "save={every: 150 steps}", "log={every: 200 steps, writers: [jsonl]}", "run.device=cpu"]  # fmt: skip
each = pytest.mark.parametrize("kind", KINDS)


def config(kind: str, *more: str) -> RunConfig:
    return ganglion.load_config(None, [f"algo={kind}", *REST, "run.fast=eager", *more])


def trained(made: Trainer) -> dict[str, torch.Tensor]:
    for _ in made():
        pass
    made.close()
    assert made.at.opt_steps > 20
    return {name: tensor.clone() for name, tensor in made.learner.agent.state().tensors.items()}


def close(one: dict[str, Any], other: dict[str, Any], exactly: bool = True) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if exactly:
            assert torch.equal(tensor, other[name]), name
        else:
            torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@each
def test_through_a_broker(kind: str) -> None:
    """What acts in an explorer is what the learner has, and numbers are drawn in the same order."""
    close(trained(build(config(kind))), trained(build(config(kind, "run.mode=sync"))))


@each
def test_as_one_graph(kind: str) -> None:
    torch._dynamo.reset()
    compiled = build(config(kind), Engine(torch.device("cpu"), one_graph))
    close(trained(build(config(kind))), trained(compiled), exactly=False)


@each
def test_resumed(kind: str, tmp_path: Path) -> None:
    whole = Run.create(config(kind, f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(config(kind, f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps > 250:
            break
    left.close()
    again = Run.open(tmp_path / "left")
    assert 250 < again.trainer.at.env_steps < 400
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)


@each
def test_batched_over_runs(kind: str, tmp_path: Path) -> None:
    folders = [f"run.dir={tmp_path / str(k)}" for k in range(2)]
    seeds = Seeds([config(kind, folder, f"run.seed={k}") for k, folder in enumerate(folders)])
    for _ in seeds.stream():
        pass
    for k, run in enumerate(seeds.runs):
        alone = trained(build(config(kind, f"run.seed={k}")))
        close(alone, dict(run.trainer.learner.agent.state().tensors), exactly=False)


def test_evaluation_is_not_shaken() -> None:
    made = build(config("noisy-q"))
    (one, _), (two, _) = made.run_evaluate(), made.run_evaluate()
    assert [episode.total for episode in one] == [episode.total for episode in two]
    assert all(not noise.any() for noise in (made.learner.agent.algo.neutral(torch.zeros(1, 4)).normal,))


def test_compiled_it_may_remember_with_any_strides() -> None:
    """A graph is called with what it returned: a memory with other strides than its first ended long runs."""
    one, two = (build(config("strided-q"), Engine(torch.device("cpu"), wrap)) for wrap in (None, Compiled))
    for _ in range(12):
        one.run_collect(), two.run_collect()
    (a,), (b,) = (made.source.seats[0].past.memory for made in (one, two))
    assert a.shape == (1, 4, 4) and a.is_contiguous() and a.any()
    torch.testing.assert_close(a, b)
