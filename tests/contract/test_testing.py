"""`ganglion.testing`: what is sound passes, what is broken is named."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ganglion.testing import assert_algorithm, assert_env


class Unseeded(gymnasium.Env):
    """Begins anywhere, whatever the seed."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    dice = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.dice.random(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return self.dice.random(1, np.float32), 1.0, False, self.steps >= 20, {}


def test_environments() -> None:
    assert assert_env("CartPole-v1", steps=200, warnings=False).passed
    with pytest.raises(AssertionError, match=r"Unseeded: .* findings\n.*Fix:"):
        assert_env(Unseeded, steps=200)


def test_algorithms() -> None:
    from tests.contract import own_algorithms  # noqa: F401

    assert assert_algorithm("a2c", ["algo.horizon=4"]).passed
