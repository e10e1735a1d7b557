"""The adapter of SMAC, by a stand-in that speaks its documented interface."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ganglion.core import CENTRAL
from ganglion.envs.starcraft import StarCraftConfig
from ganglion.errors import UserError


class StandIn:
    """Three units; the second dies at the second step; won at the fourth, or late at the fifth."""

    def __init__(self, map_name: str, wins: bool = True) -> None:
        self.map_name, self.wins, self.given = map_name, wins, []

    def get_env_info(self) -> dict[str, int]:
        return {"n_agents": 3, "n_actions": 7, "obs_shape": 4, "state_shape": 5, "episode_limit": 5}

    def reset(self) -> tuple[Any, Any]:
        self.count = 0
        return self.get_obs(), self.get_state()

    def dead(self, unit: int) -> bool:
        return unit == 1 and self.count >= 2

    def get_obs(self) -> list[Any]:
        return [np.zeros(4) if self.dead(i) else np.full(4, 10 * i + self.count) for i in range(3)]

    def get_state(self) -> Any:
        return np.full(5, self.count)

    def get_avail_actions(self) -> list[list[int]]:
        return [[1, *[0] * 6] if self.dead(i) else [0, *[1] * 6] for i in range(3)]

    def step(self, actions: list[int]) -> tuple[float, bool, dict[str, Any]]:
        for unit, action in enumerate(actions):
            assert self.get_avail_actions()[unit][action], "an illegal action"
        self.count += 1
        if self.wins and self.count == 4:
            return 20.0, True, {"battle_won": True}
        late = self.count == 5
        return 3.0, late, {"battle_won": False, **({"episode_limit": True} if late else {})}

    def close(self) -> None:
        pass


@pytest.fixture
def smac(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("smac"), ModuleType("smac.env")
    module.StarCraft2Env = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "smac", package)
    monkeypatch.setitem(sys.modules, "smac.env", module)


def legal(step: Any) -> torch.Tensor:
    return step.obs["action_mask"].int().argmax(-1)


def test_a_battle_is_won(smac: None) -> None:
    env = StarCraftConfig(id="3m", slots=6, workers=0).build()
    step = env.reset(0)
    assert env.spec.slots == 6 and len(env.spec.agents) == 3 and step.obs["obs"].shape == (6, 4)
    assert step.obs[CENTRAL].shape == (6, 5) and step.obs["obs"][:, 0].tolist() == [0, 0, 10, 10, 20, 20]
    for count in (1, 2, 3):
        step = env.step(legal(step))
        assert step.reward.tolist() == pytest.approx([1.0] * 6) and step.valid.all()
        assert step.obs[CENTRAL][:, 0].tolist() == [count] * 6
    assert step.obs["action_mask"][2].tolist() == [True, *[False] * 6]  # the dead may do nothing
    step = env.step(legal(step))
    assert step.terminated.all() and not step.truncated.any()
    ended = env.episodes()
    assert len(ended) == 6 and ended[0].info["won"] == 1.0 and ended[0].total == pytest.approx(3 + 20 / 3)
    env.close()


def test_time_runs_out(smac: None) -> None:
    env = StarCraftConfig(id="3m", slots=3, workers=0, options={"wins": False}).build()
    step = env.reset(0)
    for _ in range(5):
        step = env.step(legal(step))
    assert step.truncated.all() and not step.terminated.any() and env.episodes()[0].info["won"] == 0.0
    env.close()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smac", None)
    monkeypatch.setitem(sys.modules, "smac.env", None)
    with pytest.raises(UserError, match=r"env\.kind: starcraft needs SMAC"):
        StarCraftConfig(id="3m").game()
