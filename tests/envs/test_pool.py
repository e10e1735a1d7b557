"""The pool: the same rows as in this process, for any number of workers, and nothing left behind."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ganglion.core import Env
from ganglion.envs import GymConfig, GymEnv
from ganglion.envs.pool import Pool, PoolEnv
from ganglion.envs.pool_layout import decode, encode
from ganglion.errors import UserError
from tests.envs.faulty import counting
from tests.envs.singles import Lives
from tests.envs.worlds import Everything, InfoMask, Reused, copied, random_action, same_step

WORLDS = {"everything": Everything, "masks": InfoMask, "info": Reused, "lives": Lives}


def pool_of(name: str, workers: int, slots: int = 5, **rest: Any) -> Pool:
    return Pool(f"tests.envs.singles:{name}", {}, slots, workers, **rest)


def steps(env: Env, count: int, first: int = 0) -> list[Any]:
    return [env.step(random_action(env.spec.action, env.spec.slots, t)) for t in range(first, first + count)]


# ------------------------------------------------------------ the same as in this process


@pytest.mark.parametrize("name", WORLDS)
def test_rows_and_scores_are_those_of_this_process(name: str) -> None:
    here = GymEnv(lambda slot: WORLDS[name](), 5)
    there = PoolEnv(pool_of(name, 2))
    assert here.spec == there.spec
    assert same_step(here.reset(3), there.reset(3))
    assert all(same_step(a, b) for a, b in zip(steps(here, 60), steps(there, 60), strict=True))
    assert (scores := here.episodes()) and scores == there.episodes()
    there.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_a_config_asks_for_workers(name: str) -> None:
    here = GymConfig(id=name, slots=3, time_limit=30, frame_stack=2).build()
    there = GymConfig(id=name, slots=3, time_limit=30, frame_stack=2, workers=8).build()  # no more workers than slots
    assert same_step(here.reset(3), there.reset(3))
    assert all(same_step(a, b) for a, b in zip(steps(here, 70), steps(there, 70), strict=True))
    assert (scores := here.episodes()) and scores == there.episodes()
    there.close()


@pytest.mark.parametrize("name", ["info", "lives"])
def test_a_state_moves_between_this_process_and_any_number_of_workers(name: str) -> None:
    envs: list[Env] = [GymEnv(lambda slot: WORLDS[name](), 5), *(PoolEnv(pool_of(name, n)) for n in (1, 3))]
    for env in envs:
        env.reset(1)
        steps(env, 33)
    states = [copied(env.state()) for env in envs]
    for state in states:
        assert state.scalars == states[0].scalars
        assert all(torch.equal(tensor, states[0].tensors[name]) for name, tensor in state.tensors.items())
    rows = steps(envs[0], 20, first=33)
    last = envs[0].episodes()
    for env in envs[1:]:
        env.restore(states[0])
        assert all(same_step(a, b) for a, b in zip(rows, steps(env, 20, first=33), strict=True))
        assert env.episodes() == last
        env.close()


def test_games_of_several_lives_outlive_their_worker() -> None:
    here, there = GymEnv(lambda slot: Lives(), 4), PoolEnv(pool_of("lives", 2, slots=4))
    assert same_step(here.reset(3), there.reset(3))
    for t in range(50):
        if t in (3, 5, 17, 30):  # just before, in the middle of and after a lost life
            victim = there.pool.worker_processes.pids()[t % 2]
            os.kill(victim, signal.SIGKILL)
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        action = random_action(here.spec.action, 4, t)
        assert same_step(here.step(action), there.step(action)), t
    assert here.episodes() == there.episodes()
    assert there.faults.count == 4 and there.faults.rows_lost == 0
    there.close()


def test_info_without_room_is_left_out() -> None:
    pool = Pool("tests.envs.singles:talkative", {}, 1, 1, spare=False)
    pool.reset(0)
    while not pool.finished:
        pool.act([np.zeros((1, 2), np.float32)])
    ((_, _, length, info),) = pool.drain()
    assert length == 5 and 50 < len(info) < 500
    pool.close()


def test_restart_cuts_running_episodes(caplog: pytest.LogCaptureFixture) -> None:
    env = PoolEnv(pool_of("info", 2, replay=False))
    assert env.promise == "restart"
    env.reset(0)
    before = steps(env, 4)[-1]
    state = copied(env.state())
    with caplog.at_level(logging.WARNING):
        env.restore(state)
    assert "cut as truncated" in caplog.text
    cut = steps(env, 1)[0]
    assert cut.truncated.all() and not cut.valid.any() and torch.equal(cut.obs, before.obs)
    assert env.faults.lost is not None and env.faults.lost.all()
    assert steps(env, 1)[0].valid.all() and env.faults.lost is None
    env.close()


def test_options_take_turns_over_the_slots() -> None:
    options = ({"g": 5.0}, {"g": 10.0})
    here = GymConfig(id="Pendulum-v1", slots=5, per_slot=options)
    assert [env.unwrapped.g for env in here.build().slots.envs] == [5.0, 10.0, 5.0, 10.0, 5.0]  # type: ignore[attr-defined]
    one, other = here.build(), GymConfig(id="Pendulum-v1", slots=5, per_slot=options, workers=2).build()
    one.reset(0), other.reset(0)
    assert all(same_step(a, b) for a, b in zip(steps(one, 9), steps(other, 9), strict=True))
    other.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_slots_of_other_spaces_are_refused(workers: int) -> None:
    with pytest.raises(UserError, match=r"env\.per_slot: all slots need the same"):
        Pool("tests.envs.faulty:two_sizes", {}, 2, workers)


# ------------------------------------------------------------ some of it at a time


def test_one_half_steps_while_the_other_is_waited_for() -> None:
    """Each half sees the same rows as when all step together."""
    whole, halves = (Pool("tests.envs.faulty:counting", {}, 6, 2, spare=False) for _ in range(2))
    whole.reset(0)
    halves.reset(0)
    actions = [[np.random.default_rng(t).integers(0, 3, 6)] for t in range(60)]
    halves.send(actions[0])
    for t in range(59):
        whole.act(actions[t])
        for worker, half in enumerate((slice(0, 3), slice(3, 6))):
            assert halves.recv(workers=[worker]) == list(range(6))[half]
            assert np.array_equal(halves.obs[0][half], whole.obs[0][half])
            assert np.array_equal(halves.valid[half], whole.valid[half])
            halves.send(actions[t + 1], workers=[worker])  # this half's next action, while the other half steps
    assert sorted(whole.drain()) == sorted(halves.drain())
    assert whole.length == halves.length and whole.episode == halves.episode
    whole.close()
    halves.close()


def test_partial_batches_are_the_slots_that_are_ready() -> None:
    pool = Pool("tests.envs.faulty:counting", {}, 4, 4, spare=False)
    pool.reset(0)
    seen: list[int] = []
    pool.send([np.array([1, 1, 1, 1])])
    while len(seen) < 4:
        ready = pool.recv(least=1)
        assert ready and (pool.obs[0][ready, 2] == 1).all() and (pool.reward[ready] == 1).all()
        seen += ready
    assert sorted(seen) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="asked already"):
        pool.send([np.zeros(4, np.int64)])
        pool.send([np.zeros(4, np.int64)])
    pool.recv()
    pool.close()


# ------------------------------------------------------------ what a worker is


def test_a_worker_imports_neither_torch_nor_pydantic() -> None:
    pool = Pool("tests.envs.faulty:counting", {}, 2, 1, spare=False)
    pool.reset(0)
    pool.act([np.zeros(2, np.int64)])
    modules = set(pool.worker_processes.members[0].ask({"do": "modules"}, 10)["modules"])
    pool.close()
    assert "tests.envs.faulty" in modules and "gymnasium" in modules
    assert not modules & {"torch", "pydantic", "yaml", "ganglion.core", "ganglion.envs.gym"}


def test_what_cannot_be_imported_by_name_is_refused() -> None:
    with pytest.raises(UserError, match="module:function"):
        Pool(lambda slot: counting(slot), {}, 2, 1)  # type: ignore[arg-type]

    class Local(Reused):
        pass

    gymnasium.register("Local-v0", Local)
    try:
        with pytest.raises(UserError, match="top level of a module"):
            GymConfig(id="Local-v0", workers=1).build()
    finally:
        gymnasium.registry.pop("Local-v0")


def test_a_registered_class_needs_no_name_of_its_own() -> None:
    gymnasium.register("Reused-v0", Reused)
    try:
        env = GymConfig(id="Reused-v0", slots=2, workers=1).build()
        env.reset(0)
        assert steps(env, 3)[-1].obs[:, 1].tolist() == [3, 3]
        env.close()
    finally:
        gymnasium.registry.pop("Reused-v0")


def test_options_that_are_no_plain_values_are_refused() -> None:
    with pytest.raises(UserError, match="plain values"):
        GymConfig(id="Pendulum-v1", workers=1, options={"g": np.float32(5)}).build()


def test_what_a_worker_cannot_make_is_said_as_in_this_process() -> None:
    for workers in (0, 1):
        with pytest.raises(UserError, match=r"env\.options.*unexpected keyword argument 'gravitas'"):
            GymConfig(id="Pendulum-v1", workers=workers, options={"gravitas": 5}).build()


@pytest.mark.parametrize(
    "space",
    [
        Everything.observation_space,
        Everything.action_space,
        spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
        spaces.Box(0, 255, (84, 84, 4), np.uint8),
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        spaces.MultiBinary((2, 3)),
    ],
)
def test_spaces_travel_as_json(space: spaces.Space[Any]) -> None:
    import json

    text = json.dumps(encode(space))
    assert decode(json.loads(text)) == space
    assert len(text) < 2_500
