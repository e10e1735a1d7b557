"""Several steps as one event: the same rows, episodes and parameters as one by one, also resumed and with faults."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from ganglion import load_config, ops
from ganglion.buffers.processors import Rows, RowsConfig
from ganglion.core import Acted, Past, Row, State, Step
from ganglion.fast.profile import Profile
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine, as_it_is
from ganglion.runtime.explorer import MOST, Explorer
from ganglion.runtime.trainer import Trainer

WORDS = ["algo=ppo", "env={kind: gym, id: CartPole-v1, slots: 3, workers: 0}", "algo.horizon=48", "algo.minibatches=2",
         "algo.epochs=2", "algo.net.hidden=[8]", "eval=never", "train.budget=100k steps"]  # fmt: skip


REPLAY = ["algo=dqn", *WORDS[1:2], "algo.net.hidden=[8]", "algo.epsilon=0.2", "algo.target_every=3",
          "algo.limiter={opt_interval: 17, warmup: 40}", "eval=never", "train.budget=100k steps"]  # fmt: skip


def trainer_of(*words: str, most: int = 16, given: list[str] = WORDS) -> Trainer:
    """Compiled in name alone: what is looked at here is how steps are taken."""
    cfg = load_config(None, [*given, *words, "run.device=cpu"])
    trainer = build(cfg, Engine(torch.device("cpu"), as_it_is))
    assert isinstance(trainer.source, Explorer) and trainer.source.most == MOST
    trainer.source.most = most
    return trainer


def advance(trainer: Trainer, opts: int) -> list[Any]:
    """The episodes that ended until so many updates were made."""
    episodes: list[Any] = []
    for log in trainer():
        episodes += log.episodes
        if trainer.at.opt_steps >= opts:
            break
    return episodes


def same(one: Trainer, two: Trainer) -> bool:
    mine, theirs = one.state().tensors, two.state().tensors
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


VECTOR = "env={kind: gym, id: CartPole-v1, slots: 3, vector: true}"


@pytest.mark.parametrize("words", [(), ("algo.net.memory=gru", "algo.net.memory_size=4"), (VECTOR,),
                                   (VECTOR, "algo.processor.reward_scale=0.5"),
                                   (VECTOR, "algo.net.memory=gru", "algo.net.memory_size=4")])  # fmt: skip
def test_the_same_as_one_by_one(words: tuple[str, ...]) -> None:
    words = (*words, "algo.lr=1e-3")  # knobs stay for a block: a schedule would differ
    blocks, single = trainer_of(*words), trainer_of(*words, most=1)
    assert advance(blocks, 12) == advance(single, 12)
    assert blocks.at[:3] == single.at[:3]
    ours, theirs = (ops.leaves(trainer.learner.buffer.ring.rows) for trainer in (blocks, single))
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    assert same(blocks, single)


@pytest.mark.parametrize("words", [("algo.replay={capacity: 150, batch: 8}",),
                                   ("algo.replay={kind: prioritised, capacity: 150, batch: 8}", "algo.n_step=2"),
                                   ("algo.net.memory=gru", "algo.net.memory_size=4")])  # fmt: skip
def test_between_the_updates_of_a_replay(words: tuple[str, ...]) -> None:
    blocks, single = trainer_of(*words, given=REPLAY), trainer_of(*words, given=REPLAY, most=1)
    assert max(blocks.source.count(blocks.at), 1) == 14  # 40 steps and one more, three slots at a time
    assert advance(blocks, 20) == advance(single, 20)
    assert blocks.at[:3] == single.at[:3]
    assert same(blocks, single)


def test_no_block_where_what_is_seen_changes_the_next_action() -> None:
    trainer = trainer_of("algo.net.normalise=true", given=REPLAY)
    assert trainer.source.count(trainer.at) == 1


@pytest.mark.parametrize("words", [(), (VECTOR,)])
def test_resumed_in_the_middle_of_a_rollout(words: tuple[str, ...]) -> None:
    whole, first, second = (trainer_of(*words) for _ in range(3))
    advance(whole, 16)
    events = first()
    for _ in range(6):
        next(events)
    while not 0 < first.learner.buffer.room() < 48:
        next(events)
    second.restore(first.state())
    advance(second, 16)
    assert same(whole, second)


class Frail(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in the seventh step of every episode."""

    steps = 0

    def reset(self, **given: Any) -> Any:
        self.steps = 0
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 7:
            raise RuntimeError("frail")
        return super().step(action)


def test_a_lost_step_is_not_learned_from() -> None:
    gymnasium.register("Frail-v0", lambda **_: Frail(gymnasium.make("CartPole-v1")))
    try:
        blocks, single = (trainer_of("env.id=Frail-v0", "env.max_failures=1000", most=n) for n in (16, 1))
        for trainer in (blocks, single):
            advance(trainer, 1)
        ours, theirs = blocks.learner.buffer.rows(), single.learner.buffer.rows()
        assert torch.equal(ours.valid, theirs.valid) and not ours.valid.all()
        assert blocks.at.env_steps == single.at.env_steps
    finally:
        del gymnasium.registry["Frail-v0"]


class Counting(Rows):
    """A processor of one's own with a state: how many decisions it has seen, which each reward is told."""

    def __init__(self) -> None:
        super().__init__(RowsConfig())
        self.seen = 0

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        assert before.valid.dim() == 2 and past.start.shape == before.valid.shape  # [T, B], however many steps
        row = super().__call__(before, past, acted, after)
        counts = self.seen + before.valid.flatten().cumsum(0).view_as(before.valid)
        self.seen += int(before.valid.sum())
        return row._replace(reward=row.reward + 1e-3 * counts)

    def state(self) -> State:
        return State({}, {"seen": self.seen})

    def restore(self, state: State) -> None:
        self.seen = int(state.scalars["seen"])


def with_counting(most: int) -> Trainer:
    trainer = trainer_of(VECTOR, most=most)
    trainer.source.seats[0].processor = Counting()
    return trainer


def test_a_processor_with_a_state_is_given_blocks_and_saved() -> None:
    blocks, single, resumed = with_counting(16), with_counting(1), with_counting(16)
    assert advance(blocks, 8) == advance(single, 8)
    assert same(blocks, single)
    assert blocks.source.seats[0].processor.seen == single.source.seats[0].processor.seen > 0
    resumed.restore(blocks.state())
    for trainer in (blocks, resumed):
        advance(trainer, 16)
    assert same(blocks, resumed)


@pytest.mark.parametrize("words", [(), (VECTOR,)])
def test_their_time_is_told_apart(words: tuple[str, ...]) -> None:
    trainer = trainer_of(*words)
    profile = Profile(trainer)
    advance(trainer, 4)
    assert profile.timers["act"].calls == 48
    assert profile.timers["env"].calls == 49  # one is the reset
    assert 0 < profile.shares().act < 1
