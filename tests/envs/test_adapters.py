"""Worlds of other packages through the contract: MuJoCo, goals, EnvPool, the old gym."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ganglion.config.files import load
from ganglion.core import Box, Composite, Env
from ganglion.envs import EnvPoolConfig, GymConfig, OldGym
from ganglion.errors import UserError
from ganglion.runtime.build import build
from tests.envs.worlds import random_action, same_step


def repeats(env: Env, steps: int = 60) -> list[Any]:
    """Walks twice from the same seed; the episodes of the first walk."""
    slots, found = env.spec.slots, []
    rows = [env.reset(3)] + [env.step(random_action(env.spec.action, slots, t)) for t in range(steps)]
    found += env.episodes()
    again = [env.reset(3)] + [env.step(random_action(env.spec.action, slots, t)) for t in range(steps)]
    assert all(same_step(a, b) for a, b in zip(rows, again, strict=True))
    return found


# ------------------------------------------------------------ gymnasium's own


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5"])
def test_mujoco_resumes_by_replay(name: str) -> None:
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    config = GymConfig(id=name, slots=2, time_limit=40)
    env, other = config.build(), config.build()
    assert env.promise == "replay"
    env.reset(0)
    for t in range(70):
        env.step(random_action(env.spec.action, 2, t))
    other.restore(env.state())
    for t in range(70, 100):
        action = random_action(env.spec.action, 2, t)
        assert same_step(env.step(action), other.step(action)), t


@pytest.mark.parametrize("name", ["BipedalWalker-v3", "LunarLander-v3"])
def test_box2d_repeats(name: str) -> None:
    """BipedalWalker would not, by itself, from its third episode on."""
    pytest.importorskip("Box2D", reason="the extra box2d is not installed")
    env = GymConfig(id=name, slots=2).build()
    for _ in range(3):
        repeats(env, 100)


class Reach(gymnasium.Env[Any, Any]):
    """A goal environment: a point that should be where its goal is."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Dict(
        {key: spaces.Box(-5, 5, (2,), np.float32) for key in ("observation", "achieved_goal", "desired_goal")}
    )

    def seen(self) -> dict[str, Any]:
        return {"observation": self.speed, "achieved_goal": self.place, "desired_goal": self.goal}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.speed, self.place = np.zeros(2, np.float32), np.zeros(2, np.float32)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen(), {"is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.speed = np.asarray(action, np.float32) * 0.1
        self.place = self.place + self.speed
        near = bool(np.linalg.norm(self.place - self.goal) < 0.2)
        return self.seen(), float(near) - 1.0, False, False, {"is_success": near}


def test_goals_are_seen_side_by_side() -> None:
    gymnasium.register("ReachHere-v0", entry_point=Reach, max_episode_steps=20)
    try:
        config = load(None, ["algo={kind: sac, limiter: {warmup: 20}, replay: {batch: 8, capacity: 1k}}",
                             "env={kind: gym, id: ReachHere-v0, slots: 2}", "train.budget=60 steps"])  # fmt: skip
        trainer = build(config)
        for _ in trainer():
            pass
        space = trainer.source.env.spec.obs
        assert isinstance(space, Composite)
        assert list(space.items) == ["achieved_goal", "desired_goal", "observation"]
        assert trainer.learner.agent.algo.model.actor.encoder.flat == 6
        episodes = repeats(config.env.build())
        assert episodes and "is_success" in episodes[0].info
    finally:
        del gymnasium.registry["ReachHere-v0"]


# ------------------------------------------------------------ the old gym


class OldBox:
    """A space as the old gym spells it: known by its class name alone."""

    def __init__(self) -> None:
        self.low, self.high = np.full(2, -4.0, np.float32), np.full(2, 4.0, np.float32)
        self.shape, self.dtype = (2,), np.dtype("float32")


OldBox.__name__ = "Box"


class OldDiscrete:
    n = 3


OldDiscrete.__name__ = "Discrete"


class OldWorld:
    """Four values from step, seed(), a bare observation from reset; ends by itself at 5 or by time at 8."""

    observation_space, action_space = OldBox(), OldDiscrete()

    def __init__(self, drift: float = 0.0) -> None:
        self.drift, self.seeds = drift, [0]

    def seed(self, seed: int | None = None) -> list[int]:
        self.rng = np.random.default_rng(seed)
        self.seeds.append(seed or 0)
        return [seed or 0]

    def reset(self) -> Any:
        self.t, self.x = 0, self.rng.uniform(-1, 1, 2)
        self.ends = 5 if self.x[0] > 0 else 99
        return self.x.astype(np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        self.t += 1
        self.x = self.x + 0.1 * (action - 1) + self.drift
        late = self.t == 8
        return self.x.astype(np.float32), 1.0, self.t == self.ends or late, {"TimeLimit.truncated": late}

    def close(self) -> None:
        pass


class Mine(OldGym):
    world = OldWorld


@pytest.fixture
def old_id() -> Any:
    gymnasium.register("Old-v0", entry_point=Mine)
    yield "Old-v0"
    del gymnasium.registry["Old-v0"]


def test_the_old_gym(old_id: str) -> None:
    env = GymConfig(id=old_id, slots=3, options={"drift": 0.01}).build()
    assert env.spec.obs == Box((2,), low=(-4.0,), high=(4.0,)) and env.promise == "replay"
    lengths = {episode.length for episode in repeats(env)}
    assert lengths == {5, 8}
    env.reset(0)
    ends: dict[str, set[int]] = {"terminated": set(), "truncated": set()}
    length = np.zeros(3, int)
    before = np.zeros(3, bool)
    for _ in range(60):
        step = env.step(torch.ones(3, dtype=torch.int64))
        length = np.where(before, 0, length + 1)
        for kind in ends:
            ends[kind] |= set(length[getattr(step, kind).numpy()].tolist())
        before = ~step.valid.numpy()
    assert ends == {"terminated": {5}, "truncated": {8}}


def test_an_old_space_that_is_not_known() -> None:
    class Odd(OldGym):
        world = type("World", (OldWorld,), {"observation_space": object()})

    with pytest.raises(UserError, match="old space object"):
        Odd()


# ------------------------------------------------------------ EnvPool


@pytest.fixture
def pool() -> Any:
    return pytest.importorskip("envpool", reason="the extra envpool is not installed")


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v5", "CheetahRun-v1", "FetchReach-v4"])
def test_envpool_repeats_from_a_seed(pool: Any, name: str) -> None:
    env = EnvPoolConfig(id=name, slots=3, time_limit=15).build()
    assert env.promise == "restart"
    if name == "CheetahRun-v1":  # DeepMind control: parts of an observation by name
        assert isinstance(env.spec.obs, Composite) and set(env.spec.obs.items) == {"position", "velocity"}
    episodes = repeats(env)
    assert len(episodes) >= 9 and max(episode.length for episode in episodes) == 15
    env.close()


def test_envpools_reset_row_is_dead(pool: Any) -> None:
    env = EnvPoolConfig(id="CartPole-v1", slots=4).build()
    step, length = env.reset(1), np.zeros(4, int)
    for t in range(200):
        was = step.valid
        step = env.step(random_action(env.spec.action, 4, t))
        assert (step.obs[~was].abs() <= 0.05).all() and not step.reward[~was].any()
        assert (step.reward[was] == 1).all()
        length = np.where(was, length + 1, 0)
    assert sum(episode.length for episode in env.episodes()) <= 800
    env.close()


def test_envpool_sends_and_receives(pool: Any) -> None:
    one, two = (EnvPoolConfig(id="CartPole-v1", slots=2).build() for _ in range(2))
    one.reset(0), two.reset(0)
    for t in range(40):
        action = random_action(one.spec.action, 2, t)
        two.send(action)  # type: ignore[attr-defined]
        assert same_step(one.step(action), two.recv()), t  # type: ignore[attr-defined]


def test_envpool_restarts(pool: Any) -> None:
    env = EnvPoolConfig(id="CartPole-v1", slots=2).build()
    env.reset(0)
    env.step(random_action(env.spec.action, 2, 0))
    env.restore(env.state())
    step = env.step(random_action(env.spec.action, 2, 1))
    assert step.truncated.all() and not env.episodes()
    assert env.step(random_action(env.spec.action, 2, 2)).valid.all()


def test_envpool_refuses(pool: Any) -> None:
    with pytest.raises(UserError, match=r"no environment 'CartPole-v7'.*Did you mean 'CartPole-v"):
        EnvPoolConfig(id="CartPole-v7").build()
    with pytest.raises(UserError, match="several players"):
        EnvPoolConfig(id="ConnectFour-v1").build()
    with pytest.raises(UserError, match=r"env.options: seed is set by run.seed"):
        load(None, ["algo=ppo", "env={kind: envpool, id: CartPole-v1, options: {seed: 3}}"])
