"""Several steps as one event: the same rows, episodes and parameters as one by one, also resumed and with faults."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from ganglion import load_config, ops
from ganglion.buffers.processors import Rows, RowsConfig
from ganglion.core import Acted, Past, Row, Step
from ganglion.fast.profile import Profile
from ganglion.runtime.build import STINT, build
from ganglion.runtime.stints import Stints
from ganglion.runtime.trainer import Trainer

WORDS = ["algo=ppo", "env={kind: gym, id: CartPole-v1, slots: 3, workers: 0}", "algo.horizon=48", "algo.minibatches=2",
         "algo.epochs=2", "algo.net.hidden=[8]", "eval=never", "train.budget=100k steps"]  # fmt: skip


REPLAY = ["algo=dqn", *WORDS[1:2], "algo.net.hidden=[8]", "algo.epsilon=0.2", "algo.target_every=3",
          "algo.limiter={opt_interval: 17, warmup: 40}", "eval=never", "train.budget=100k steps"]  # fmt: skip


def trainer_of(*words: str, stint: int = 16, given: list[str] = WORDS) -> Trainer:
    """Compiled in name alone: what is looked at here is how steps are taken."""
    trainer = build(load_config(None, [*given, *words, "run.fast=compile", "run.device=cpu"]))
    assert isinstance(trainer.explorer, Stints) and trainer.explorer.most == STINT
    trainer.explorer.most = stint
    agent = trainer.learner.agent
    agent.fast_explore, agent.fast_learn, agent.fast_prepare = agent.explore, agent.update, agent.algo.prepare
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
    words = (*words, "algo.lr=1e-3")  # knobs stay for a stint: a schedule would differ
    stints, single = trainer_of(*words), trainer_of(*words, stint=1)
    assert advance(stints, 12) == advance(single, 12)
    assert stints.at[:3] == single.at[:3]
    ours, theirs = (ops.leaves(trainer.learner.buffer.rows()) for trainer in (stints, single))
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    assert same(stints, single)


@pytest.mark.parametrize("words", [("algo.replay={capacity: 150, batch: 8}",),
                                   ("algo.replay={kind: prioritised, capacity: 150, batch: 8}", "algo.n_step=2"),
                                   ("algo.net.memory=gru", "algo.net.memory_size=4")])  # fmt: skip
def test_between_the_updates_of_a_replay(words: tuple[str, ...]) -> None:
    stints, single = trainer_of(*words, given=REPLAY), trainer_of(*words, given=REPLAY, stint=1)
    assert max(stints.explorer.count(stints.at), 1) == 14  # 40 steps and one more, three slots at a time
    assert advance(stints, 20) == advance(single, 20)
    assert stints.at[:3] == single.at[:3]
    assert same(stints, single)


def test_no_stint_where_what_is_seen_changes_the_next_action() -> None:
    trainer = build(load_config(None, [*REPLAY, "algo.net.normalise=true", "run.fast=compile", "run.device=cpu"]))
    assert isinstance(trainer.explorer, Stints) and trainer.explorer.most == 1


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
        stints, single = (trainer_of("env.id=Frail-v0", "env.max_failures=1000", stint=n) for n in (16, 1))
        for trainer in (stints, single):
            advance(trainer, 1)
        ours, theirs = stints.learner.buffer.rows(), single.learner.buffer.rows()
        assert torch.equal(ours.valid, theirs.valid) and not ours.valid.all()
        assert stints.at.env_steps == single.at.env_steps
    finally:
        del gymnasium.registry["Frail-v0"]


@pytest.mark.parametrize("words", [(), (VECTOR,), ("algo.net.memory=gru", "algo.net.memory_size=4")])
def test_a_processor_of_ones_own_gets_blocks(words: tuple[str, ...]) -> None:
    """[T, B, ...] all of it, many rows or one: also a subclass of ours."""
    blocks = set[int]()

    class Own(Rows):
        def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
            count = before.valid.shape[0]
            blocks.add(count)
            for leaf in ops.leaves((before, past, acted, after)):
                assert leaf.shape[:2] == (count, 3)
            return super().__call__(before, past, acted, after)

    usual, own = trainer_of(*words), trainer_of(*words)
    own.explorer.processor = Own(RowsConfig())
    assert advance(usual, 8) == advance(own, 8)
    assert same(usual, own) and blocks == {16}
    own.explorer.most = 1
    advance(own, 12)
    assert blocks == {1, 16}


@pytest.mark.parametrize("words", [(), (VECTOR,)])
def test_their_time_is_told_apart(words: tuple[str, ...]) -> None:
    trainer = trainer_of(*words)
    profile = Profile(trainer)
    advance(trainer, 4)
    assert profile.timers["act"].calls == 48
    assert profile.timers["env"].calls == 49  # one is the reset
    assert 0 < profile.shares().act < 1
