"""Worlds of tensors: gymnasium's numbers step by step, stateless randomness, no sync, no aliasing."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ganglion.core import Box
from ganglion.envs import NATIVE, GymConfig, TorchEnv, from_gym
from ganglion.envs import seeds as integers
from ganglion.envs.torch_env import RECENT, Hash
from tests.envs.worlds import random_action, same_step, walk

IDS = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1", "mountaincar": "MountainCar-v0", "acrobot": "Acrobot-v1"}
SKILLED = {  # policies that reach the endings a random one does not
    "cartpole": lambda w: (w @ torch.tensor([0.1, 0.3, 2.0, 1.0]).double() > 0).long(),
    "mountaincar": lambda w: (w[:, 1] >= 0).long() * 2,
    "acrobot": lambda w: (w[:, 3] > 0).long() * 2,
}


def native(name: str, slots: int = 4) -> TorchEnv:
    return NATIVE[name](slots, name)


def follow(name: str, env: TorchEnv) -> list[Any]:
    """Gymnasium's environments brought to the same states."""
    worlds = [gymnasium.make(IDS[name]) for _ in range(env.spec.slots)]
    for slot, world in enumerate(worlds):
        world.reset(seed=0)
        world.unwrapped.state = env.world[slot].numpy().copy()
    return worlds


@pytest.mark.parametrize(
    ("name", "steps"), [("cartpole", 1150), ("pendulum", 450), ("mountaincar", 800), ("acrobot", 850)]
)
def test_gymnasium_agrees_step_by_step(name: str, steps: int) -> None:
    env = native(name)
    env.reset(3)
    worlds, valid = follow(name, env), torch.ones(4, dtype=torch.bool)
    endings = {"terminated": 0, "truncated": 0}
    for t in range(steps):
        action = random_action(env.spec.action, 4, t)
        if t > 520 and name in SKILLED:
            action = SKILLED[name](env.world)
        step = env.step(action)
        for slot, world in enumerate(worlds):
            if not valid[slot]:
                world.reset()
                world.unwrapped.state = env.world[slot].numpy().copy()
                assert step.reward[slot] == 0 and step.valid[slot]
                continue
            obs, reward, terminated, truncated, _ = world.step(action[slot].numpy())
            assert np.abs(step.obs[slot].numpy() - obs).max() < 1e-5
            assert abs(float(step.reward[slot]) - float(reward)) < 1e-5
            assert (bool(step.terminated[slot]), bool(step.truncated[slot])) == (terminated, truncated)
            endings["terminated"] += terminated
            endings["truncated"] += truncated
            if name == "acrobot" and t % 20 == 0:
                world.unwrapped.state = env.world[slot].numpy().copy()  # chaos would magnify the last bit
        valid = step.valid
    assert endings["truncated"] > 0
    assert endings["terminated"] > 0 or name == "pendulum"


@pytest.mark.parametrize("name", IDS)
def test_spaces_are_gymnasiums(name: str) -> None:
    env, theirs = native(name), gymnasium.make(IDS[name])
    assert env.spec.action == from_gym(theirs.action_space)
    obs = from_gym(theirs.observation_space)
    assert isinstance(obs, Box) and isinstance(env.spec.obs, Box)
    assert (obs.shape, obs.dtype) == (env.spec.obs.shape, env.spec.obs.dtype)
    assert np.allclose(obs.low, env.spec.obs.low) and np.allclose(obs.high, env.spec.obs.high)
    assert env.limit == theirs.spec.max_episode_steps  # type: ignore[union-attr]


@pytest.mark.parametrize("name", IDS)
def test_starts_are_spread_like_gymnasiums(name: str) -> None:
    env = native(name, 4000)
    env.reset(1)
    ours = env.world.numpy()
    theirs = gymnasium.make(IDS[name])
    starts = np.array([(theirs.reset(seed=i), theirs.unwrapped.state)[1] for i in range(1500)], np.float64)  # type: ignore[attr-defined]
    assert np.allclose(ours.mean(0), starts.mean(0), atol=0.06 * max(starts.std(0).max(), 1e-9) + 1e-9)
    assert np.allclose(ours.std(0), starts.std(0), rtol=0.06, atol=1e-9)
    assert ours.min() >= starts.min() - 0.01 * np.ptp(starts) and ours.max() <= starts.max() + 0.01 * np.ptp(starts)


def test_episodes_are_keyed_as_those_of_gymnasium() -> None:
    env = native("cartpole", 3)
    env.reset(-7)
    keys = [integers.episode_key(-7, slot, 4) for slot in range(3)]
    assert [x & integers.MASK for x in env._key(env.root, torch.full((3,), 4)).tolist()] == keys


def test_the_tensor_hash_is_the_integer_hash() -> None:
    words = [0, 1, -1, 2**62, -(2**63), 123456789, 2**63 - 1]
    own = Hash.on(torch.device("cpu"))
    got = own.mix(torch.tensor(words)).tolist()
    assert [x & integers.MASK for x in got] == [integers.mix(x & integers.MASK) for x in words]
    u = own.uniforms(torch.arange(20_000), 3)
    assert u.shape == (20_000, 3) and u.min() >= 0 and u.max() < 1
    assert abs(float(u.mean()) - 0.5) < 0.005 and abs(float(u.var()) - 1 / 12) < 0.002
    assert np.abs(np.corrcoef(u.T.numpy()) - np.eye(3)).max() < 0.03


def test_slots_do_not_disturb_each_other() -> None:
    few, many = native("cartpole", 2), native("cartpole", 7)
    few.reset(5), many.reset(5)
    for t in range(200):
        action = random_action(few.spec.action, 7, t)
        a, b = few.step(action[:2]), many.step(action)
        assert torch.equal(a.obs, b.obs[:2]) and torch.equal(a.valid, b.valid[:2])


def test_no_start_comes_twice() -> None:
    env = native("cartpole", 16)
    step = env.reset(0)
    starts = [tuple(x) for x in step.obs.tolist()]
    for t in range(400):
        was = step.valid
        step = env.step(random_action(env.spec.action, 16, t))
        starts += [tuple(x) for x in step.obs[~was].tolist()]
    assert len(set(starts)) == len(starts) > 100


def test_rows_do_not_change_later() -> None:
    env = native("cartpole")
    held = [env.reset(0)]
    copies = [[x.clone() for x in held[0][:5]]]
    for step in walk(env, 60):
        held.append(step)
        copies.append([x.clone() for x in step[:5]])
    assert all(torch.equal(x, y) for s, c in zip(held, copies) for x, y in zip(s[:5], c))
    assert not any(x.data_ptr() == env.world.data_ptr() for s in held for x in s[:5])


def test_no_episode_is_lost_however_late_one_asks() -> None:
    often, never = native("cartpole", 3), native("cartpole", 3)
    often.reset(2), never.reset(2)
    seen = []
    for t in range(4 * RECENT):
        action = random_action(often.spec.action, 3, t)
        often.step(action), never.step(action)
        seen += often.episodes()
    assert len(seen) > 100 and never.episodes() == seen


def test_two_forms_of_cartpole_score_alike() -> None:
    ours, theirs = native("cartpole", 16), GymConfig(id="CartPole-v1", slots=16).build()
    lengths = []
    for env in (ours, theirs):
        env.reset(0)
        for t in range(600):
            env.step(random_action(env.spec.action, 16, t))
        lengths.append(np.mean([e.length for e in env.episodes()]))
    assert abs(lengths[0] - lengths[1]) < 2.5


@pytest.mark.gpu
@pytest.mark.parametrize("name", IDS)
def test_on_a_gpu_without_a_sync(name: str) -> None:
    host, device = native(name), NATIVE[name](4, name, "cuda")
    host.reset(1), device.reset(1)
    for t in range(300):
        action = random_action(host.spec.action, 4, t)
        there = action.cuda()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step = device.step(there)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        want = host.step(action)
        assert torch.allclose(step.obs.cpu(), want.obs, atol=1e-4)
        assert torch.equal(step.valid.cpu(), want.valid)
        device.world.copy_(host.world)  # chaos would magnify the last bit
        if t % 100 == 0:
            assert [e.length for e in device.episodes()] == [e.length for e in host.episodes()]


@pytest.mark.gpu
def test_a_captured_step_is_an_eager_step() -> None:
    eager, captured = (NATIVE["cartpole"](64, "x", "cuda") for _ in range(2))
    action = torch.zeros(64, dtype=torch.int64, device="cuda")
    eager.reset(0), captured.reset(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        captured.step(action)  # warm up
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = captured.step(action)
    captured.reset(0)
    for t in range(200):
        action.copy_(random_action(eager.spec.action, 64, t))
        want = eager.step(action)
        graph.replay()
        assert same_step(out, want)
    assert captured.episodes() == eager.episodes()
