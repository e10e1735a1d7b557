"""Agents in the hand: loaded from a run, they act as the evaluator's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import ganglion
from ganglion.errors import UserError

QUICK = {"save": "never", "log": [], "eval": "never"}


class Counting(gymnasium.Env[Any, Any]):
    """Dict observations, a Discrete action that counts from 5, masks beside."""

    observation_space = spaces.Dict({"z": spaces.Box(-1.0, 1.0, (2,)), "a": spaces.Discrete(3, start=2)})
    action_space = spaces.Discrete(4, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 5
        return self.seen(), {"action_mask": np.array([1, 0, 1, 1])}

    def seen(self) -> Any:
        return {"z": np.full(2, self.left / 5, np.float32), "a": np.int64(2 + self.left % 3)}

    def step(self, action: Any) -> Any:
        assert 5 <= action < 9
        self.left -= 1
        return self.seen(), float(action == 7), self.left == 0, False, {"action_mask": np.array([1, 0, 1, 1])}


def played(agent: Any, env: gymnasium.Env[Any, Any], seed: int) -> float:
    obs, info = env.reset(seed=seed)
    agent.reset()
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, info = env.step(agent.act(obs, info.get("action_mask")))
        total, over = total + float(reward), terminated or truncated
    return total


@pytest.mark.parametrize("settings", [{"algo": "ppo"}, {"algo": {"kind": "ppo", "net": {"memory": "gru"}}}])
def test_it_scores_what_the_evaluation_does(tmp_path: Path, settings: Any) -> None:
    """The same episodes: those of the evaluator are seeded by slot and number."""
    raw = {**settings, "env": {"id": "CartPole-v1", "slots": 4, "workers": 0}, "train": {"budget": 600}, "log": []}
    agent = ganglion.train(
        {**raw, "eval": {"every": "300 steps", "episodes": 2, "slots": 1}, "run": {"dir": str(tmp_path / "run")}}
    )
    wanted = ganglion.evaluate(agent.folder, 3, 7)["returns"]

    from ganglion.envs import episode_seed
    from ganglion.runtime.randomness import derive

    world = gymnasium.make("CartPole-v1")
    assert [played(agent, world, episode_seed(derive(7, "test"), 0, k)) for k in range(3)] == wanted


def test_spaces_are_the_environments_own(tmp_path: Path) -> None:
    agent = ganglion.PPO(Counting, slots=2).train(
        200, **QUICK | {"save": "100 steps"}, run={"dir": str(tmp_path / "run")}
    )
    assert agent.action_space == Counting.action_space and agent.observation_space == Counting.observation_space
    assert agent.masked
    env = Counting()
    obs, info = env.reset(seed=0)
    assert {int(agent.act(obs, info["action_mask"], deterministic=False)) for _ in range(40)} == {5, 7, 8}
    both = {name: np.stack([obs[name]] * 3) for name in obs}
    assert agent.act(both, [info["action_mask"]] * 3).tolist() == [agent.act(obs, info["action_mask"])] * 3
    with pytest.raises(UserError, match="mask"):
        agent.act(obs)


def test_plain_values_and_refusals(tmp_path: Path) -> None:
    experiment = ganglion.DQN("CartPole-v1", net={"hidden": 16})
    trained = experiment.train("200 steps", save="100 steps", log=[], eval="never", run={"dir": str(tmp_path / "run")})
    assert trained.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
    assert trained.act([[0.0, 0.1, 0.0, -0.1]] * 2).shape == (2,)
    with pytest.raises(UserError, match=r"shape \(4,\) was expected"):
        trained.act([0.0, 0.1])
    with pytest.raises(UserError, match="observation"):
        trained.act("left")
    with pytest.raises(UserError, match="Accepted: main"):
        ganglion.load(tmp_path / "run", player="mian")


def test_a_memory_is_kept_until_it_is_reset(tmp_path: Path) -> None:
    quick = {"save": "100 steps", "log": [], "eval": "never", "run": {"dir": str(tmp_path / "run")}}
    agent = ganglion.PPO("CartPole-v1", net={"memory": "gru"}).train(200, **quick)
    obs = np.array([0.1, 0.2, 0.0, -0.3], np.float32)
    agent.act(obs)
    first = agent.past
    agent.act(obs)
    second = agent.past
    assert not np.allclose(first.memory[0].numpy(), second.memory[0].numpy())
    agent.reset()
    agent.act(obs)
    assert np.array_equal(agent.past.memory[0].numpy(), first.memory[0].numpy())
    agent.act(np.stack([obs, obs]))
    agent.act(np.stack([obs, obs]))
    agent.reset([True, False])
    agent.act(np.stack([obs, obs]))
    assert np.allclose(agent.past.memory[0][0, 0].numpy(), first.memory[0][0, 0].numpy(), atol=1e-6)
    assert not np.allclose(agent.past.memory[0][0, 1].numpy(), first.memory[0][0, 0].numpy())


def test_an_unknown_name_is_no_algorithm() -> None:
    with pytest.raises(AttributeError, match="no attribute"):
        ganglion.PP0  # noqa: B018
