"""Observations and actions of uncommon shapes, and what is refused before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from statistics import pstdev, stdev
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Env, spaces
from gymnasium.vector import SyncVectorEnv
from pydantic import ValidationError

from ganglion import nn, registry
from ganglion.core import Box, Composite, Episode, MultiBinary, Past, Progress, Space
from ganglion.envs import GymEnv, VectorGymEnv, from_gym
from ganglion.errors import UserError
from ganglion.runtime.evaluator import deviation, score
from tests.contract.worlds import ARM, DQN, MASKED, PPO, SAC, THREE, TWO, Bench, Case, over

NESTED = Composite({"hand": Composite({"grip": THREE, "turn": ARM}), "foot": TWO, "head": ARM})
OBS: dict[str, Space] = {
    "channels last": Box((40, 44, 3), torch.uint8),
    "real image": Box((1, 36, 36)),
    "small grid": Box((10, 10, 4), torch.uint8),
    "number": Composite({"clock": Box(()), "place": Box((2,))}),
}


@pytest.mark.parametrize("name", OBS)
def test_observations_of_uncommon_shapes(name: str):
    Bench(Case(name, "ppo", TWO, OBS[name], PPO)).train(3, Progress())


def test_actions_inside_actions():
    Bench(Case("nested", "ppo", NESTED, settings=PPO)).train(3, Progress())


def test_an_action_that_is_one_number():
    Bench(Case("number", "sac", Box((), low=(-1.0,), high=(1.0,)), settings=SAC)).train(3, Progress())


def test_channels_first_and_last_are_the_same_image():
    last, first = (nn.MLPConfig().encoder(Box(shape, torch.uint8)) for shape in ((40, 44, 3), (3, 40, 44)))
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (2, 5, 40, 44, 3), dtype=torch.uint8)
    past = Past((), torch.zeros(2, 5, dtype=torch.bool))
    assert torch.allclose(last(image, past)[0], first(image.movedim(-1, 2), past)[0], atol=1e-6)


def test_bytes_are_scaled_and_reals_are_not():
    bytes_, reals = (nn.MLPConfig().encoder(Box((1, 36, 36), dtype)) for dtype in (torch.uint8, torch.float32))
    reals.load_state_dict(bytes_.state_dict())
    image = torch.randint(0, 256, (1, 2, 1, 36, 36), dtype=torch.uint8)
    past = Past((), torch.zeros(1, 2, dtype=torch.bool))
    assert torch.allclose(bytes_(image, past)[0], reals(image / 255, past)[0], atol=1e-6)


# ------------------------------------------------------------ masks


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_mask_of_the_wrong_size_is_refused(algo: str):
    with pytest.raises(UserError, match=r"action_mask.*2 numbers"):
        Bench(Case("size", algo, TWO, MASKED, DQN if algo == "dqn" else PPO))


@pytest.mark.parametrize("action", [Composite({"gear": THREE, "steer": ARM}), ARM, MultiBinary(3)])
def test_a_mask_that_would_be_ignored_is_refused(action: Space):
    with pytest.raises(UserError, match="action_mask"):
        Bench(Case("ignored", "ppo", action, MASKED, PPO))


def test_each_part_of_an_action_may_have_a_mask():
    masks = Composite({"gear": MultiBinary(3)})
    obs = Composite({"obs": Box((3,)), "action_mask": masks})
    bench = Bench(Case("parts", "ppo", Composite({"gear": THREE, "steer": ARM}), obs, PPO))
    bench.train(3, Progress())
    rows = bench.learner.buffer.rows()
    legal = rows.obs["action_mask"]["gear"].gather(-1, rows.action["gear"].unsqueeze(-1))
    assert (legal > 0).all()


# ------------------------------------------------------------ settings

BEYOND: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"net": {"hidden": [-1]}}),
    ("ppo", {"net": {"hidden": [64, 0]}}),
    ("ppo", {"net": {"hidden": [10**9]}}),
    ("ppo", {"net": {"memory_size": 0}}),
    ("ppo", {"epochs": 10**9}),
    ("dqn", {"n_step": 10**9}),
    ("sac", {"n_step": 10**9}),
    ("dqn", {"replay": {"batch": 10**12}}),
    ("dqn", {"replay": {"sequence": 10**9}}),
    ("ppo", {"lr": -1.0}),
    ("ppo", {"clip": {"kind": "linear", "start": 0.2, "end": -0.2}}),
    ("ppo", {"entropy": -0.01}),
    ("dqn", {"epsilon": 7}),
    ("dqn", {"epsilon": {"kind": "piecewise", "points": [[0.0, 1.0], [0.5, 1.5], [1.0, 0.0]]}}),
    ("dqn", {"replay": {"kind": "prioritised", "beta": 2.0}}),
]


@pytest.mark.parametrize(("algo", "settings"), BEYOND)
def test_values_out_of_range_are_refused(algo: str, settings: dict[str, Any]):
    with pytest.raises(ValidationError):
        registry.lookup("algo", algo).model_validate(settings)


@pytest.mark.parametrize("kind", ["replay", "prioritised"])
def test_a_buffer_without_room_says_so(kind: str):
    with pytest.raises(UserError, match="no room for"):
        Bench(Case("room", "dqn", TWO, settings=over(DQN, replay={"kind": kind, "capacity": 10**15})))
    with pytest.raises(UserError, match="no room for"):
        Bench(Case("room", "ppo", TWO, settings=over(PPO, horizon=10**14))).train(1, Progress())


# ------------------------------------------------------------ names and masks of gymnasium


class Named(Env[Any, Any]):
    """Keys as dm_control spells them, and a mask in info."""

    observation_space = spaces.Dict({"walker/speed": spaces.Box(-1, 1, (2,)), "eye": spaces.Box(-1, 1, (3,))})
    action_space = spaces.Discrete(3)

    def look(self) -> tuple[Any, dict[str, Any]]:
        seen = {k: self.np_random.random(s.shape, np.float32) for k, s in self.observation_space.spaces.items()}
        return seen, {"action_mask": np.array([True, self.np_random.random() < 0.5, self.np_random.random() < 0.5])}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.look()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, info = self.look()
        return obs, 1.0, False, False, info


def test_a_slash_in_a_key_does_not_part_what_is_saved():
    bench, other = (Bench(Case("slash", "dqn", THREE, from_gym(Named().observation_space), DQN)) for _ in range(2))
    at = bench.train(3, Progress())
    other.learner.restore(bench.learner.state())
    other.explorer.restore(bench.explorer.state())
    other.explorer.env.now, other.explorer.env.g = bench.explorer.env.now, bench.explorer.env.g
    other.train(3, at)


def vector() -> VectorGymEnv:
    return VectorGymEnv(SyncVectorEnv([Named] * 4))


@pytest.mark.parametrize("make", [lambda: GymEnv(lambda slot: Named(), 4, promise="restart"), vector])
def test_masks_outlast_a_restart(make: Callable[[], Any]):
    env, again = make(), make()
    env.reset(0)
    before = env.step(torch.zeros(4, dtype=torch.int64)).obs["action_mask"]
    again.restore(env.state())
    cut = again.step(torch.zeros(4, dtype=torch.int64))
    assert cut.truncated.all() and torch.equal(cut.obs["action_mask"], before)


def test_masks_by_part_from_gymnasium():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "action_mask": spaces.Dict({"a": spaces.MultiBinary(3)})})
    mask = from_gym(space).items["action_mask"].items["a"]
    assert mask == Box((3,), torch.bool, (0.0,), (1.0,))


def test_actions_that_nobody_will_replay_are_not_kept():
    env = GymEnv(lambda slot: Named(), 2, promise="restart")
    env.reset(0)
    for _ in range(20):
        env.step(torch.zeros(2, dtype=torch.int64))
    assert env.slots.log is None and env.state().tensors["action0"].shape == (0,)


def test_episodes_without_a_number_are_scored_as_such():
    """Parameters that became nan bring such episodes; the run must live to say so."""
    played = [Episode(0, total, 1, {}) for total in (1.0, float("nan"), float("inf"))]
    assert isnan(score(played)["eval/return_mean"]) and isnan(score(played)["eval/return_std"])
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(pstdev([1, 2, 6]))
    assert deviation([1.0, 2.0, 6.0], lost=1) == pytest.approx(stdev([1, 2, 6]))
