"""Gymnasium environments under the contract: next-step rows, seeds, masks, scores, memory of their own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ganglion.core import Box, Composite, Discrete, MultiBinary, MultiDiscrete
from ganglion.envs import GymConfig, GymEnv, episode_seed
from ganglion.envs.seeds import episode_key
from tests.envs.worlds import Everything, InfoMask, Reused, random_action, same_step, walk


def cartpole(slots: int = 3, **rest: Any) -> GymEnv:
    return GymEnv(lambda slot: gymnasium.make("CartPole-v1"), slots, **rest)


def plain_loop(make: Any, slots: int, seed: int, actions: list[Any]) -> list[list[tuple[Any, ...]]]:
    """The contract as a slow and obvious loop over one slot at a time: (obs, reward, terminated, truncated, valid)."""
    out = []
    for slot in range(slots):
        env, episode = make(), 0
        obs, _ = env.reset(seed=episode_seed(seed, slot, episode))
        rows: list[tuple[Any, ...]] = [(np.array(obs), 0.0, False, False, True)]
        for batch in actions:
            if not rows[-1][-1]:
                episode += 1
                obs, _ = env.reset(seed=episode_seed(seed, slot, episode))
                rows.append((np.array(obs), 0.0, False, False, True))
            else:
                obs, reward, terminated, truncated, _ = env.step(batch[slot].numpy())
                rows.append((np.array(obs), reward, terminated, truncated, not (terminated or truncated)))
        out.append(rows)
    return out


@pytest.mark.parametrize(("name", "steps"), [("CartPole-v1", 150), ("Pendulum-v1", 450), ("MountainCar-v0", 420)])
def test_rows_are_those_of_a_plain_loop(name: str, steps: int) -> None:
    env = GymConfig(id=name, slots=3).build()
    actions = [random_action(env.spec.action, 3, t) for t in range(steps)]
    got = [env.reset(11), *(env.step(a) for a in actions)]
    want = plain_loop(lambda: gymnasium.make(name), 3, 11, actions)
    endings = 0
    for t, step in enumerate(got):
        for slot in range(3):
            obs, reward, *flags = want[slot][t]
            assert torch.equal(step.obs[slot], torch.from_numpy(obs))
            assert step.reward[slot] == np.float32(reward)
            assert [bool(x[slot]) for x in step[2:5]] == flags
            endings += not flags[-1]
    assert endings > 3
    assert step.reward.dtype == torch.float32
    assert {x.dtype for x in step[2:5]} == {torch.bool}


def test_a_truncation_is_not_a_termination_and_shows_the_true_last_observation() -> None:
    env = GymConfig(id="Pendulum-v1", slots=1, time_limit=3).build()
    env.reset(0)
    rows = walk(env, 4)
    assert [bool(r.truncated) for r in rows] == [False, False, True, False]
    assert not any(bool(r.terminated) for r in rows)
    assert not torch.equal(rows[2].obs, rows[3].obs)  # last of one episode, first of the next
    assert [e.length for e in env.episodes()] == [3]


def test_the_action_after_an_ending_is_ignored() -> None:
    rows = []
    for ignored in (0, 1):
        env = cartpole(1)
        env.reset(3)
        while env.step(torch.tensor([0])).valid:
            pass
        first = env.step(torch.tensor([ignored]))
        assert first.valid and first.reward == 0
        rows.append([first, env.step(torch.tensor([1]))])
    assert all(same_step(a, b) for a, b in zip(*rows, strict=True))


def test_episodes_depend_on_seed_slot_and_index_alone() -> None:
    few, many = cartpole(2), cartpole(5)
    few.reset(9), many.reset(9)
    for t in range(80):
        action = random_action(Discrete(2), 5, t)
        a, b = few.step(action[:2]), many.step(action)
        assert torch.equal(a.obs, b.obs[:2])
    # another order of endings: slot 1 survives longer, slot 0 sees the same episodes
    one, other = cartpole(2), cartpole(2)
    starts: list[list[torch.Tensor]] = [[], []]
    for env, flip, seen in ((one, False, starts[0]), (other, True, starts[1])):
        step = env.reset(4)
        for t in range(60):
            was = bool(step.valid[0])
            step = env.step(torch.tensor([0, t % 2 if flip else 0]))
            if not was:
                seen.append(step.obs[0])
    assert len(starts[0]) > 3
    assert all(torch.equal(a, b) for a, b in zip(*starts, strict=True))


def test_seeds_are_spread_and_in_range() -> None:
    seeds = {episode_seed(s, b, e) for s in range(4) for b in range(32) for e in range(64)}
    assert len(seeds) > 4 * 32 * 64 - 20
    assert all(0 <= s < 2**31 for s in seeds)
    assert episode_seed(0, 1, 0) != episode_seed(0, 0, 1)
    assert episode_key(-1, 0, 0) == episode_key(2**64 - 1, 0, 0)


def test_reset_starts_over() -> None:
    env = cartpole(2)
    first = [env.reset(5), *walk(env, 40)]
    again = [env.reset(5), *walk(env, 40)]
    other = env.reset(6)
    assert all(same_step(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(other.obs, first[0].obs)
    assert env.episodes() == []


def test_nothing_handed_out_changes_later() -> None:
    env = GymEnv(lambda slot: Reused(), 2)
    held = [env.reset(0)]
    copies = [[x.clone() for x in held[0][:5]]]
    action = torch.zeros(2, 2)
    for t in range(12):
        action.fill_(t)  # the caller may reuse its own memory too
        step = env.step(action)
        held.append(step)
        copies.append([x.clone() for x in step[:5]])
    assert all(
        torch.equal(x, y) for step, copy in zip(held, copies, strict=True) for x, y in zip(step[:5], copy, strict=True)
    )
    spaces = {x.data_ptr() for step in held for x in step[:5]}
    assert len(spaces) == len(held) * 5


def test_scores_and_numbers_of_info() -> None:
    env = GymEnv(lambda slot: Reused(4), 1)
    env.reset(0)
    for _ in range(4):
        env.step(torch.tensor([[0.25, 0.0]]))
    (episode,) = env.episodes()
    assert (episode.slot, episode.total, episode.length) == (0, 1.0, 4)
    assert episode.info == {"t": 2.5, "half": 1.25, "solved": 0.25}
    assert env.episodes() == []


def test_actions_are_clipped_to_finite_bounds() -> None:
    env = GymEnv(lambda slot: Reused(), 1)
    env.reset(0)
    assert env.step(torch.tensor([[7.0, 1e6]])).reward == 1.0
    assert env.step(torch.tensor([[-7.0, -1e6]])).reward == -1.0


# ------------------------------------------------------------ spaces


def test_every_kind_of_space() -> None:
    env = GymEnv(lambda slot: Everything(), 4)
    assert env.spec.obs == Composite(
        {
            "action_mask": Box((3,), torch.bool, (0.0,), (1.0,)),
            "bits": MultiBinary(4),
            "image": Box((4, 4, 1), torch.uint8, (0.0,), (255.0,)),
            "many": MultiDiscrete((3, 4)),
            "one": Discrete(5),
            "pair": Composite({"0": Discrete(2), "1": Box((2,), torch.float32, (0.0,), (1.0,))}),
            "real": Box((3,), torch.float32, (-1.0,), (1.0,)),
        }
    )
    step = env.reset(0)
    for t in range(30):
        outside = [e.last for e in env.slots.envs]  # type: ignore[attr-defined]
        for i, obs in enumerate(outside):
            assert torch.equal(step.obs["real"][i], torch.tensor(obs["real"], dtype=torch.float32))
            assert torch.equal(step.obs["image"][i], torch.tensor(obs["image"]))
            assert step.obs["one"][i] == obs["one"] - 2
            assert step.obs["many"][i].tolist() == [obs["many"][0] - 1, obs["many"][1]]
            assert step.obs["bits"][i].tolist() == obs["bits"].tolist()
            assert step.obs["pair"]["0"][i] == obs["pair"][0]
            assert torch.equal(step.obs["pair"]["1"][i], torch.tensor(obs["pair"][1]))
            assert step.obs["action_mask"][i].tolist() == [bool(x) for x in obs["action_mask"]]
        assert step.obs["one"].dtype == step.obs["bits"].dtype == torch.int64
        assert step.obs["one"].shape == (4,)
        action = random_action(env.spec.action, 4, t)
        action["move"]["1"] *= 10  # beyond its bounds
        went = step.valid
        step = env.step(action)
        for i, world in enumerate(env.slots.envs):
            if went[i]:
                seen = world.seen[-1]  # type: ignore[attr-defined]
                assert seen["move"][0] == action["move"]["0"][i] - 1
                assert np.allclose(seen["move"][1], action["move"]["1"][i].clamp(-0.5, 0.5))
                assert seen["many"].tolist() == [action["many"][i, 0] + 1, action["many"][i, 1]]
                assert seen["bits"].tolist() == action["bits"][i].tolist()


def test_masks_from_info() -> None:
    env = GymEnv(lambda slot: InfoMask(), 3)
    assert env.spec.obs == Composite({"obs": Discrete(100), "action_mask": Box((4,), torch.bool, (0.0,), (1.0,))})
    step = env.reset(0)
    for _ in range(20):
        for slot, world in enumerate(env.slots.envs):
            assert step.obs["action_mask"][slot].tolist() == world.mask.tolist()  # type: ignore[attr-defined]
        legal = step.obs["action_mask"].int().argmax(-1)
        valid = step.valid
        step = env.step(legal)
        assert (step.reward[valid] == 1).all()
    unmasked = GymEnv(lambda slot: InfoMask(), 3, masks=False)
    assert unmasked.spec.obs == Discrete(100)
    assert unmasked.reset(0).obs.shape == (3,)


def test_drawing_only_when_asked() -> None:
    pytest.importorskip("pygame")
    env = GymConfig(id="CartPole-v1", slots=2).build(render=True)
    env.reset(0)
    frame = env.render()
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3
    env.close()
    blind = GymConfig(id="CartPole-v1", slots=1).build()
    blind.reset(0)
    assert blind.render() is None


def test_mujoco_warns_once(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Its own way is a line of the C library's for every environment that is made."""
    pytest.importorskip("mujoco")
    from ganglion.envs import gym_make

    gym_make.shown.clear()
    for _ in range(2):
        gym_make.make_one(gym_make.find_spec("HalfCheetah-v5"), {}, False).close()
    assert sum("deprecated" in record.message for record in caplog.records) <= 1
    assert "deprecated" not in "".join(capfd.readouterr())
