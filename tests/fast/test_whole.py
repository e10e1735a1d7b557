"""Whole rollouts and whole learning phases: the numbers of one step and one update at a time."""

from __future__ import annotations

import pytest
import torch

import ganglion
from ganglion import ops
from ganglion.core import Acted, LogData, Noise, Past
from ganglion.runtime.agent import enter
from ganglion.runtime.build import build
from ganglion.runtime.trainer import Trainer
from ganglion.runtime.whole import Phase, Strider

WORLD = ["algo=ppo", "env={kind: torch, id: cartpole, slots: 6}", "algo.horizon=16", "algo.minibatches=2",
         "algo.epochs=2", "algo.net.hidden=[16, 16]", "train.budget=100k steps", "eval=never"]  # fmt: skip
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def trainer(*more: str, fast: str = "auto") -> Trainer:
    return build(ganglion.load_config(None, [*WORLD, f"run.fast={fast}", *more]))


def plain(device: str = "cpu") -> Trainer:
    """In strides, with nothing wrapped."""
    made = trainer(f"run.device={device}")
    explorer, learner = made.explorer, made.learner
    assert isinstance(explorer, Strider) and isinstance(learner, Phase)
    explorer.fast_walk, explorer.fast_turn, explorer.stride = explorer.walk, explorer.turn, 16
    learner.fast_phase, learner.agent.swap.on = learner.phase, True
    agent = learner.agent
    agent.fast_learn, agent.fast_explore, agent.fast_prepare = agent.update, agent.explore, agent.algo.prepare
    learner.fast_update = agent.update
    return made


def test_a_walk_is_so_many_steps():
    one, many = plain(), plain()
    for made in (one, many):
        made.learner.agent.swap.on = False  # both begin with two single steps
        for _ in range(2):
            made.run_collect()
    walker = many.explorer
    noise = walker.stream.noise(walker.agent.draws.explore, 30, 6)
    before, past = walker.now
    with torch.no_grad():
        walked = walker.walk(walker.env.now(), before, past, walker.agent.knobs(many.at), noise)
    rows, episodes, steps = [], [], 0
    for t in range(30):
        before, past = one.explorer.now
        acted = one.explorer.agent.sample(
            before.obs, past, Noise(noise.uniform[t : t + 1], noise.normal[t : t + 1]), one.at
        )
        after = one.explorer.env.step(acted.action)
        told = Acted(enter(acted.action), enter(acted.extras), acted.memory)
        rows.append(one.explorer.processor(enter(before), past, told, enter(after)))
        one.explorer.now = after, Past(acted.memory, ~before.valid[None])
        episodes += one.explorer.env.episodes()
        steps += int(before.valid.sum())
    for a, b in zip(ops.leaves(ops.concat(rows)), ops.leaves(walked.rows), strict=True):
        assert torch.equal(a, b)
    assert episodes and walked.ended.tolist() == [
        len(episodes),
        sum(e.total for e in episodes),
        sum(e.length for e in episodes),
    ]
    assert int(walked.valid) == steps
    for a, b in zip(one.explorer.env.now(), walked.world, strict=True):
        assert torch.equal(a, b)


def until(made: Trainer, updates: int) -> list[LogData]:
    events = []
    while made.at.opt_steps < updates:
        events.append(made.run_train() if made.learner.owes(made.at) else made.run_collect())
    return events


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_phase_is_its_updates(device: str):
    one, many = plain(device), plain(device)
    one.learner.fast_phase = None
    events = {id(made): until(made, 12) for made in (one, many)}
    assert one.at._replace(seconds=0.0) == many.at._replace(seconds=0.0) and one.at.opt_steps == 12
    for name, value in one.learner.agent.state().tensors.items():
        assert torch.equal(value, many.learner.agent.state().tensors[name]), name
    last, phase = events[id(one)][-4:], events[id(many)][-1]
    for name, value in phase.metrics.items():
        assert torch.allclose(value, torch.stack([log.metrics[name] for log in last]).mean()), name
