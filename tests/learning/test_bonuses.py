"""A bonus finds what chance does not: the far corner of the deep sea, by algorithms that alone stay at its left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.learning.test_toys import score, trained

pytestmark = pytest.mark.learning
SEA = {"id": "deepsea", "size": 10}
PPO = {"kind": "ppo", "lr": 1e-3, "horizon": 32, "net": {"hidden": [64]}}
DQN = {"kind": "dqn", "lr": 1e-3, "target_every": 50, "epsilon": 0.05, "net": {"hidden": [64]},
       "limiter": {"opt_interval": 8, "warmup": 200}}  # fmt: skip
RND = {"kind": "rnd", "scale": 0.3, "net": {"hidden": [32, 32]}}

ICM = RND | {"kind": "icm"}


@pytest.mark.parametrize(("algo", "steps"), [(PPO, 16_000), (DQN, 12_000)], ids=["ppo", "dqn"])
@pytest.mark.parametrize("bonus", [RND], ids=lambda bonus: bonus["kind"])
def test_with_a_bonus_the_deep_sea_is_crossed(algo: dict[str, Any], steps: int, bonus: dict[str, Any]) -> None:
    assert score(trained(algo | {"bonus": bonus}, SEA, steps, 0)) == pytest.approx(0.99)


@pytest.mark.parametrize(("algo", "steps"), [(PPO, 16_000), (DQN, 12_000)], ids=["ppo", "dqn"])
def test_without_one_it_is_not(algo: dict[str, Any], steps: int) -> None:
    assert score(trained(algo, SEA, steps, 0)) < 0.1


def test_icm_leaves_the_left_side() -> None:
    """Which pays nothing; each step to the right costs 0.001. It keeps the far corner with some seeds."""
    reached = score(trained(PPO | {"bonus": ICM}, SEA, 16_000, 0))
    assert reached <= -0.005 or reached == pytest.approx(0.99)
