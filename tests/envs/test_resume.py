"""Resuming: an environment restored at any moment goes on as if it had never stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import gymnasium
import pytest
import torch

from ganglion.core import Env
from ganglion.envs import GymConfig, GymEnv, TorchConfig, ToyConfig
from ganglion.errors import UserError
from tests.envs.worlds import Everything, InfoMask, Reused, copied, random_action, same_step, walk

Build = Callable[[], Env]


def gym(name: str, **rest: Any) -> Build:
    return lambda: GymConfig(id=name, slots=3, **rest).build()


def own(make: Callable[[], gymnasium.Env[Any, Any]]) -> Build:
    return lambda: GymEnv(lambda slot: make(), 3)


EXACT: dict[str, tuple[Build, int]] = {
    "cartpole": (gym("CartPole-v1"), 120),
    "pendulum": (gym("Pendulum-v1", time_limit=40), 130),
    "mountaincar": (gym("MountainCar-v0", time_limit=50), 130),
    "lunarlander": (gym("LunarLander-v3"), 250),
    "cartpole-novelocity": (gym("CartPole-v1", keep=(0, 2), frame_stack=3), 90),
    "vector": (gym("CartPole-v1", vector=True), 120),
    "everything": (own(Everything), 60),
    "masks": (own(InfoMask), 40),
    "info": (own(Reused), 40),
    **{f"torch-{name}": (lambda name=name: TorchConfig(id=name, slots=3, time_limit=30).build(), 100)  # type: ignore[misc]
       for name in ("cartpole", "pendulum", "mountaincar", "acrobot")},
    **{f"toy-{name}": (lambda name=name: ToyConfig(id=name, slots=3).build(), 40)  # type: ignore[misc]
       for name in ("identity", "chain", "deepsea", "bandit", "memory", "masked", "truncation")},
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_restored_anywhere_it_goes_on_exactly(name: str) -> None:
    build, steps = EXACT[name]
    if name == "lunarlander":
        pytest.importorskip("Box2D")
    random = Random(name)
    cuts = sorted(random.sample(range(steps), 3))
    env = build()
    assert env.promise in ("state", "replay")
    env.reset(21)
    rows, states, drained = [], {}, {}
    episodes = []
    for t in range(steps):
        if t in cuts:
            states[t] = copied(env.state())
            drained[t] = len(episodes)
        rows.append(env.step(random_action(env.spec.action, 3, t)))
        if t % 7 == 0:
            episodes += env.episodes()
    episodes += env.episodes()
    assert episodes
    for cut in cuts:
        other = build()
        other.restore(states[cut])
        again, late = [], []
        for t in range(cut, steps):
            again.append(other.step(random_action(env.spec.action, 3, t)))
            if t % 7 == 0:
                late += other.episodes()
        late += other.episodes()
        assert all(same_step(a, b) for a, b in zip(rows[cut:], again, strict=True)), cut
        assert late == episodes[drained[cut] :]


def test_a_restored_environment_can_be_saved_at_once() -> None:
    env = gym("CartPole-v1")()
    step = env.reset(2)
    while step.valid.all():  # stop where some slots have ended and some run
        step = walk(env, 1, seed=int(step.obs.sum() * 1e6) % 1000)[0]
    first = copied(env.state())
    other = gym("CartPole-v1")()
    other.restore(first)
    second = copied(other.state())
    assert first.scalars == second.scalars
    assert all(torch.equal(first.tensors[k], second.tensors[k]) for k in first.tensors)


def test_the_log_of_actions_stays_as_short_as_the_longest_episode() -> None:
    env = GymEnv(lambda slot: Reused(), 2)
    env.reset(0)
    for _ in range(2000):
        env.step(torch.zeros(2, 2))
    assert len(env.slots.log.rows) < 300


@pytest.mark.parametrize("vector", [False, True])
def test_restart_cuts_the_running_episodes_and_says_so(vector: bool, caplog: pytest.LogCaptureFixture) -> None:
    def build() -> Env:
        if not vector:
            return GymConfig(id="CartPole-v1", slots=4, resume="restart").build()
        from ganglion.envs import VectorGymEnv

        return VectorGymEnv(gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4), "x")

    env = build()
    assert env.promise == "restart"
    env.reset(0)
    step = walk(env, 1)[0]
    while step.valid.all():  # stop where some slots have ended and some run
        step = env.step(torch.tensor([0, 1, 0, 1]))
    other = build()
    with caplog.at_level(logging.WARNING):
        other.restore(copied(env.state()))
    assert "cut as truncated" in caplog.text
    cut = other.step(torch.zeros(4, dtype=torch.int64))
    assert torch.equal(cut.truncated, step.valid)
    assert torch.equal(cut.obs[step.valid], step.obs[step.valid])
    assert torch.equal(cut.valid, ~step.valid)
    assert not cut.terminated.any() and not cut.reward.any()
    after = other.step(torch.zeros(4, dtype=torch.int64))
    assert after.valid[step.valid].all() and not after.reward[step.valid].any()
    assert (after.obs[step.valid].abs() <= 0.05).all()  # a first observation
    assert other.episodes() == env.episodes()  # those finished before; the lost ones have no score


def test_a_world_that_does_not_repeat_itself_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    class Unseeded(Reused):
        count = 0

        def reset(self, **rest: Any) -> tuple[Any, dict[str, Any]]:
            Unseeded.count += 1
            obs, info = super().reset(**rest)
            obs[0] = Unseeded.count
            return obs, info

    def build() -> GymEnv:
        return GymEnv(lambda slot: Unseeded(), 1, "odd")

    env = build()
    env.reset(0)
    env.step(torch.zeros(1, 2))
    with caplog.at_level(logging.WARNING):
        build().restore(copied(env.state()))
    assert "odd does not repeat an episode" in caplog.text


@pytest.mark.parametrize("name", ["cartpole", "vector", "torch-cartpole"])
def test_another_number_of_slots_is_refused(name: str) -> None:
    build, _ = EXACT[name]
    env = build()
    env.reset(0)
    state = env.state()
    kind = {"cartpole": GymConfig(id="CartPole-v1"), "vector": GymConfig(id="CartPole-v1", vector=True)}
    other = kind.get(name, TorchConfig(id="cartpole")).build(slots=2)
    with pytest.raises(UserError, match=r"env\.slots"):
        other.restore(state)
