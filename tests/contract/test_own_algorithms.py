"""Algorithms of one's own: eager, compiled, batched over runs, through a broker and resumed like the shipped ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
import tests.contract.own_algorithms  # noqa: F401  registers them
from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Row
from ganglion.fast import Compiled
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine
from ganglion.runtime.run import Run
from ganglion.runtime.seeds import Seeds
from ganglion.runtime.trainer import Trainer
from tests.contract.worlds import one_graph

KINDS = ["noisy-q", "slow-q", "drifting-q", "phased"]
REST = ["env={kind: torch, id: cartpole, slots: 4}", "train.budget=400 steps", "eval={every: 200 steps, episodes: 2}",
        "save={every: 150 steps}", "log={every: 200 steps, writers: [jsonl]}", "run.device=cpu"]  # fmt: skip
each = pytest.mark.parametrize("kind", KINDS)


def config(kind: str, *more: str) -> RunConfig:
    whole = (
        ["train.budget=36 updates"] if kind == "phased" else []
    )  # compiled, its rollouts are walked in larger blocks
    return ganglion.load_config(None, [f"algo={kind}", *REST, *whole, "run.fast=eager", *more])


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


def test_what_slots_carry_begins_anew_with_each_episode() -> None:
    """Kept from action to action beside the rows; the first drift of an episode is one draw, away from nothing."""
    made = build(config("drifting-q", "train.budget=300 steps"))
    seen: list[Row] = []
    inner = made.learner.push
    made.source.seats[0].sink.push = lambda rows, ahead, at: (seen.append(rows), inner(rows, ahead, at))  # type: ignore[attr-defined]
    trained(made)
    rows = ops.concat(seen)
    drift, again = rows.extras["drift"], torch.zeros_like(rows.extras["drift"][0])
    assert rows.start[1:].any() and not rows.start.all()
    for t in range(len(drift)):
        again = torch.where(rows.start[t, :, None], torch.zeros_like(again), again)
        shock = (drift[t] - 0.9 * again) / 0.3
        assert (shock.abs() < 6).all()  # a normal number, not a jump
        again = drift[t]
    assert drift[5:].std() > 0.4  # it adds up: one draw alone has 0.3


def test_phases_of_two_kinds() -> None:
    """Two updates of the policy after each rollout, two of the values after every other one."""
    made = build(config("phased", "train.budget=256 steps"))
    kinds = ["values" if "value_loss" in log.metrics else "policy" for log in made() if log.kind == "learn"]
    made.close()
    assert kinds[:12] == ["policy"] * 4 + ["values"] * 2 + ["policy"] * 4 + ["values"] * 2


def test_compiled_it_may_remember_with_any_strides() -> None:
    """A graph is called with what it returned: a memory with other strides than its first ended long runs."""
    one, two = (build(config("strided-q"), Engine(torch.device("cpu"), wrap)) for wrap in (None, Compiled))
    for _ in range(12):
        one.run_collect(), two.run_collect()
    (a,), (b,) = (made.source.seats[0].past.memory for made in (one, two))
    assert a.shape == (1, 4, 4) and a.is_contiguous() and a.any()
    torch.testing.assert_close(a, b)
