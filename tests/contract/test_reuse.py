"""Parts already in use take another state up as new ones would; phases and records stay within bounds."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from ganglion.config import RunConfig, every
from ganglion.core import LogData, Progress, State
from ganglion.record.stages import MOST_WAITING, Recorded
from ganglion.runtime.build import build
from ganglion.runtime.trainer import Trainer
from tests.contract.worlds import DQN, PPO, TWO, Bench, Case, over
from tests.equal.runs import SORTS, fingerprint


def trainer(sort: str) -> Trainer:
    settings: dict[str, Any] = {**SORTS[sort], "train": {"budget": "400 steps"}}
    return build(RunConfig.model_validate(settings))


def copied(state: State) -> State:
    rings = {k: r._replace(arrays={n: a.clone() for n, a in r.arrays.items()}) for k, r in state.rings.items()}
    return State({k: v.clone() for k, v in state.tensors.items()}, deepcopy(dict(state.scalars)), rings)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("events", [0, 7])
def test_a_state_put_back_into_a_trainer_in_use(sort: str, events: int):
    one = trainer(sort)
    stream = one()
    for _ in range(events):
        next(stream)
    state = copied(one.state())
    for _ in range(83):  # some of them end inside a learning phase
        next(stream)
    stream.close()
    one.restore(copied(state))
    other = trainer(sort)
    other.restore(copied(state))
    for used in (one, other):
        for _ in used():
            pass
    assert fingerprint(one.state()) == fingerprint(other.state())


@pytest.mark.parametrize("minibatches", [1, 2, 3, 4, 7])
def test_enough_is_asked_at_the_end_of_each_pass(minibatches: int):
    """Also where the minibatches do not divide the ten rows."""
    settings = over(PPO, horizon=5, epochs=3, minibatches=minibatches, max_kl=1e9)
    bench, asked = Bench(Case("passes", "ppo", TWO, settings=settings, slots=2)), []
    bench.algo.enough = lambda update: asked.append(bench.learner.position)
    bench.train(3 * minibatches, Progress())
    assert asked == [minibatches, 2 * minibatches]


def test_a_phase_goes_on_under_another_number_of_passes():
    one, two = (Bench(Case("more", "ppo", TWO, settings=over(PPO, epochs=n, max_kl=1e9))) for n in (2, 50))
    at = one.train(1, Progress())
    two.learner.restore(one.learner.state())
    two.learner.step(at)


def test_numbers_wait_for_a_record_in_bounded_memory():
    stage, count = Recorded([], every("never"), Progress, dict), 2 * MOST_WAITING + 5
    for k in range(count):
        stage.seen(LogData("learn", Progress(opt_steps=k), {"loss": torch.tensor(1.0)}))
        assert len(stage.waiting.get("learn/loss", ())) <= MOST_WAITING
    stage.settle()
    assert stage.sums["learn/loss"] == [count, count]


def test_a_restored_recorder_forgets_what_it_was_waiting_for():
    stage = Recorded([], every("10 steps"), Progress, dict)
    fresh = stage.state()
    stage.seen(LogData("learn", Progress(), {"loss": torch.tensor(1.0)}))
    stage.restore(fresh)
    stage.settle()
    assert stage.sums == {}


def test_numbers_that_are_lost_are_said_once(caplog: pytest.LogCaptureFixture):
    stage = Recorded([], every("10 steps"), Progress, dict)
    for loss in (1.0, float("nan"), float("nan")):
        stage.seen(LogData("learn", Progress(), {"loss": torch.tensor(loss), "q": torch.tensor(1.0)}))
        stage.record()
    assert [r.message for r in caplog.records if "learn/loss not finite" in r.message] == [caplog.records[0].message]


def test_a_buffer_is_asked_only_when_an_update_is_due():
    """Asking a prioritised one waits for the device."""
    settings = over(DQN, replay={"kind": "prioritised"})
    bench, asked, at = Bench(Case("due", "dqn", TWO, settings=settings)), [], Progress()
    ready = bench.learner.buffer.ready
    bench.learner.buffer.ready = lambda: asked.append(at.env_steps) or ready()
    while at.env_steps < 50:
        assert not bench.learner.owes(at)
        at = bench.explorer.step(at).at
    assert not asked
    bench.train(3, at)
    assert asked
