"""Wrappers: what is shown and paid changes, the contract and the score do not."""

from __future__ import annotations

import pytest
import torch

from ganglion.core import Box, Composite, Discrete
from ganglion.envs import Chain, FrameStack, GymConfig, GymEnv, Masked, Pendulum, ToyConfig, clip_obs, keep
from ganglion.envs.wrappers import Previous, PreviousConfig
from ganglion.errors import UserError
from tests.envs.worlds import Everything, random_action, walk


def test_frames_are_stacked_within_an_episode_only() -> None:
    inner, env = Chain(1, size=3), FrameStack(Chain(1, size=3), 2)
    assert env.spec.obs == Box((6,), low=(0.0,), high=(1.0,))
    rows = [env.reset(0), *(env.step(torch.tensor([1])) for _ in range(5))]
    plain = [inner.reset(0), *(inner.step(torch.tensor([1])) for _ in range(5))]
    places = [row.obs.reshape(2, 3).argmax(-1).tolist() for row in rows]
    # the exit leaves the place as it is; then the next episode starts with its first observation repeated
    assert places == [[0, 0], [0, 1], [1, 2], [2, 2], [0, 0], [0, 1]]
    assert [bool(r.valid) for r in rows] == [bool(r.valid) for r in plain] == [True, True, True, False, True, True]


def test_bounds_follow_the_stack() -> None:
    env = FrameStack(Pendulum(2, "p"), 2)
    assert env.spec.obs == Box((6,), low=(-1.0, -1.0, -8.0) * 2, high=(1.0, 1.0, 8.0) * 2)


def test_images_are_stacked_by_channel_and_masks_left_alone() -> None:
    env = FrameStack(GymEnv(lambda slot: Everything(), 2), 3)
    obs = env.spec.obs
    assert isinstance(obs, Composite)
    assert obs.items["image"] == Box((4, 4, 3), torch.uint8, (0.0,), (255.0,))
    step = env.reset(0)
    assert step.obs["image"].shape == (2, 4, 4, 3) and step.obs["image"].dtype == torch.uint8
    assert step.obs["action_mask"].shape == (2, 3)
    newest = env.step(random_action(env.spec.action, 2, 0)).obs["image"]
    assert torch.equal(newest[..., 0], step.obs["image"][..., 2])
    outside = torch.stack([torch.tensor(e.last["image"]) for e in env.env.slots.envs])  # type: ignore[attr-defined]
    assert torch.equal(newest[..., 2:], outside)


def test_kept_places_are_those_named() -> None:
    env = GymConfig(id="CartPole-v1", slots=2, keep=(0, 2)).build()
    full = GymConfig(id="CartPole-v1", slots=2).build()
    assert isinstance(env.spec.obs, Box) and isinstance(full.spec.obs, Box)
    assert env.spec.obs.shape == (2,)
    assert env.spec.obs.high == (full.spec.obs.high[0], full.spec.obs.high[2])
    assert torch.equal(env.reset(0).obs, full.reset(0).obs[:, [0, 2]])
    for a, b in zip(walk(env, 60), walk(full, 60), strict=True):
        assert torch.equal(a.obs, b.obs[:, [0, 2]]) and torch.equal(a.valid, b.valid)
    with pytest.raises(UserError, match=r"env\.keep.*0 to 3"):
        GymConfig(id="CartPole-v1", keep=(0, 4)).build()
    with pytest.raises(UserError, match=r"env\.keep"):
        keep(Masked(2), (0,))


def test_observations_are_clipped() -> None:
    env = clip_obs(Pendulum(8, "p"), 0.5)
    assert env.spec.obs == Box((3,), low=(-0.5,) * 3, high=(0.5,) * 3)
    assert env.reset(0).obs.abs().max() <= 0.5
    assert max(s.obs.abs().max() for s in walk(env, 20)) == 0.5


def test_the_last_action_and_its_reward_are_shown_within_an_episode() -> None:
    env = Previous(Chain(1, size=3))
    assert env.spec.obs == Composite(
        {"obs": Box((3,), low=(0.0,), high=(1.0,)), "previous_action": Discrete(3), "previous_reward": Box((1,))}
    )
    rows = [env.reset(0), *(env.step(torch.tensor([a])) for a in (1, 0, 1, 1, 1, 0, 1))]
    ended = [bool(~row.valid) for row in rows]
    assert any(ended[:-1])
    given = [0, 1, 0, 1, 1, 1, 0, 1]
    for t, row in enumerate(rows):
        begins = t == 0 or ended[t - 1]
        assert row.obs["previous_action"].tolist() == [0 if begins else given[t] + 1]
        assert row.obs["previous_reward"].tolist() == [[0.0 if begins else float(row.reward)]]


def test_of_an_action_of_numbers_and_of_masks() -> None:
    env = Previous(Pendulum(2, "p"), reward=False)
    first, after = env.reset(0), env.step(torch.tensor([[0.5], [-1.0]]))
    assert first.obs["previous_action"].tolist() == [[0.0], [0.0]]
    assert after.obs["previous_action"].tolist() == [[0.5], [-1.0]] and "previous_reward" not in after.obs
    assert "action_mask" in Previous(Masked(2)).reset(0).obs  # where algorithms look for it


def test_wrappers_of_a_config_are_around_any_environment() -> None:
    twice = ["previous", {"kind": "previous", "action": False}]
    cfg = ToyConfig.model_validate({"id": "chain", "slots": 2, "wrap": twice})
    env = cfg.whole()
    assert isinstance(env, Previous) and isinstance(env.env, Previous) and cfg.wrap[0] == PreviousConfig()
    assert ToyConfig.model_validate(cfg.plain()) == cfg
    state = env.reset(0) and env.state()
    again = cfg.whole()
    again.restore(state)
    for one, two in zip(walk(env, 20), walk(again, 20), strict=True):
        assert all(torch.equal(one.obs[key], two.obs[key]) for key in one.obs)
