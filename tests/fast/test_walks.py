"""Whole rollouts and whole learning phases: the numbers of one step and one update at a time."""

from __future__ import annotations

import pytest
import torch

import ganglion
from ganglion import ops
from ganglion.core import LogData, Noise, Past
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine, as_it_is
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.trainer import Trainer

WORLD = ["algo=ppo", "env={kind: torch, id: cartpole, slots: 6}", "algo.horizon=16", "algo.minibatches=2",
         "algo.epochs=2", "algo.net.hidden=[16, 16]", "train.budget=100k steps", "eval=never"]  # fmt: skip
REPLAY = ["algo={kind: dqn, epsilon: 0.2, limiter: {opt_interval: 120, warmup: 200}, net: {hidden: [16, 16]}}"]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def plain(device: str = "cpu", stride: int = 16, whole: bool = True) -> Trainer:
    """In strides, with nothing wrapped; `whole`: also phases."""
    engine = Engine(torch.device(device), as_it_is, fuse=as_it_is if whole else None)
    made = build(ganglion.load_config(None, [*WORLD, f"run.device={device}"]), engine)
    assert isinstance(made.source, Explorer) and made.source.stride == (16 if whole else 8)
    return made


def test_a_walk_is_so_many_steps():
    one, many = plain(), plain()
    for made in (one, many):
        made.learner.agent.engine.switch(False)  # both begin with two single steps
        for _ in range(2):
            made.run_collect()
    explorer_process = many.source
    seat = explorer_process.seats[0]
    noise = seat.stream.noise(seat.agent.draws.explore, 30, 6)
    given = explorer_process.now, (seat.past,), (seat.agent.knobs(many.at),), (noise,)
    walk = explorer_process.walks[16].fast
    walked = walk(explorer_process.env.now(), *given)
    rows, episodes, steps = [], [], 0
    seat, env, before = one.source.seats[0], one.source.env, one.source.now
    for t in range(30):
        dice = Noise(noise.uniform[t : t + 1], noise.normal[t : t + 1])
        acted = seat.agent.sample(before.obs, seat.past, dice, one.at)
        after = env.step(acted.action)
        rows.append((before, acted.action, acted.extras))
        seat.past = Past(acted.memory, ~before.valid[None])
        episodes += env.episodes()
        steps += int(before.valid.sum())
        before = after
    seen, action, extras = ops.stack(rows)
    walked_rows = ops.map_tree(lambda x: x[:-1], walked.seen), walked.acted[0].action, walked.acted[0].extras
    for a, b in zip(ops.leaves((seen, action, extras)), ops.leaves(walked_rows), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(ops.leaves(before), ops.leaves(ops.select(walked.seen, -1)), strict=True):
        assert torch.equal(a, b)
    assert episodes and walked.ended.tolist() == [
        [len(episodes), sum(e.total for e in episodes), sum(e.length for e in episodes)]
    ]
    assert int(walked.seen.valid[:-1].sum()) == steps
    for a, b in zip(env.now(), walked.world, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "more",
    [[], ["algo.net.memory=gru"], ["env.keep=[0, 2]", "env.clip_obs=1.0"], ["env.frame_stack=3"]],
    ids=["plain", "memory", "shown", "stacked"],
)
@pytest.mark.parametrize("algo", [[], REPLAY], ids=["rollout", "replay"])
def test_strides_are_single_steps(more: list[str], algo: list[str]):
    """Wrapped worlds stay pure, and replays take whole walks, too: the same rows, parameters and counters."""
    words, fuse = [*WORLD, *more, *algo, "algo.lr=1e-3"], as_it_is if algo else None
    engines = [Engine(torch.device("cpu"), as_it_is, fuse=fuse) for _ in range(2)]
    one, many = (build(ganglion.load_config(None, words), engine) for engine in engines)
    one.source.stride, one.source.walks[1] = 1, one.source.walks[8]
    assert many.source.pure is not None and many.source.stride == 8
    events = [len([log for log in until(made, 12) if log.kind == "collect"]) for made in (one, many)]
    assert events[1] < 0.5 * events[0]
    assert one.at[:3] == many.at[:3]
    mine, theirs = one.state().tensors, many.state().tensors
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


def test_what_a_slot_holds_is_held_in_strides():
    """`hold` keeps a slot's random numbers for several steps, in strides as in single steps."""
    words = [*WORLD, *REPLAY, "algo.lr=1e-3", "algo.hold=3.0"]
    one, many = (
        build(ganglion.load_config(None, words), Engine(torch.device("cpu"), as_it_is, fuse=as_it_is)) for _ in range(2)
    )
    one.source.stride, one.source.walks[1] = 1, one.source.walks[8]
    for made in (one, many):
        until(made, 5)
    for name, value in one.state().tensors.items():
        assert torch.equal(value, many.state().tensors[name]), name


def until(made: Trainer, updates: int) -> list[LogData]:
    events = []
    while made.at.opt_steps < updates:
        events.append(made.run_train() if made.learner.owes(made.at) else made.run_collect())
    return events


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_phase_is_its_updates(device: str):
    one, many = plain(device), plain(device)
    one.learner._phase = None
    events = {id(made): until(made, 12) for made in (one, many)}
    assert one.at._replace(seconds=0.0) == many.at._replace(seconds=0.0) and one.at.opt_steps == 12
    for name, value in one.learner.agent.state().tensors.items():
        assert torch.equal(value, many.learner.agent.state().tensors[name]), name
    last, phase = events[id(one)][-4:], events[id(many)][-1]
    for name, value in phase.metrics.items():
        assert torch.allclose(value, torch.stack([log.metrics[name] for log in last]).mean()), name
