"""Values from data beside those that are known: of a game in which each step stands for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion.cli import main
from ganglion.core import Past
from ganglion.data import files
from ganglion.data.dataset import Dataset
from ganglion.data.evaluation import Settings, behaviour, bootstrapped, fqe, steps_of, student, weights_of, wis
from ganglion.data.record import Random, record_random
from ganglion.errors import UserError
from ganglion.runtime.build import build_agents, build_env
from ganglion.runtime.run import Run

ENV = "env={kind: toy, id: identity, size: 3, slots: 16}"
PPO = "algo={kind: ppo, net: {hidden: [16]}, horizon: 8}"
REST = ["run.seed=2", "run.device=cpu", "run.fast=eager", "eval=never", "log={writers: [jsonl]}"]
SHORT = Settings(gamma=0.5, updates=1_500, members=6, lr=3e-3, tau=0.05, hidden=(32,))


@pytest.fixture(scope="module")
def made() -> tuple[Any, Dataset]:
    """An agent that prefers some choices, and rows of one that prefers none."""
    cfg = ganglion.load_config(None, [PPO, ENV, *REST])
    env = build_env(cfg)
    agent = build_agents(cfg, env.spec)[0][1]
    env.close()
    with torch.no_grad():
        for p in agent.algo.model.parameters():
            p.mul_(4.0)
        for p in agent.algo.model.actor.parameters():
            p.mul_(20.0)
    return agent, record_random(cfg, 300, 0)


def worth(agent: Any, data: Dataset, stochastic: bool, gamma: float = 0.5) -> float:
    """A step brings 1 for naming what is seen: sum over t of gamma^t times how probable that is."""
    rows = data.rows
    seen = torch.arange(3)[None]
    obs = torch.stack([rows.obs[(rows.obs == k).nonzero()[0][0], 0] for k in range(3)])[None]
    prediction = agent.algo.predict(
        obs, Past((), torch.ones(1, 3, dtype=torch.bool)), agent.algo.neutral(torch.zeros(1, 3))
    )
    if stochastic:
        right = prediction.dist.log_prob(seen).detach().exp().mean()
    else:
        right = (agent.algo.exploit(prediction).action == seen).float().mean()
    length = data.lengths()[0] - 1
    return float(right) * (1 - gamma**length) / (1 - gamma)


@pytest.mark.parametrize("stochastic", [True, False])
def test_estimates_hold_the_true_value(stochastic: bool, made: tuple[Any, Dataset]) -> None:
    agent, data = made
    s = SHORT._replace(stochastic=stochastic)
    true, by_fit, by_weight = worth(agent, data, stochastic), fqe(agent, data, s), wis(agent, data, s)
    assert abs(true - behaviour(data, 0.5).value) > 0.1, "the agent is not whoever collected the data"
    assert by_fit.low - 0.03 <= true <= by_fit.high + 0.03 and by_fit.high - by_fit.low < 0.5
    unseen = 0.0 if stochastic else 0.5**7  # no episode names all eight as the agent does: that reward is unknown
    assert by_weight.estimate.low <= true <= by_weight.estimate.high + unseen
    assert by_weight.effective < 300 and (by_weight.effective > 1) == stochastic


def test_an_agent_that_collected_its_own_data_is_worth_its_returns(made: tuple[Any, Dataset]) -> None:
    agent, data = made
    steps = steps_of(agent, data, SHORT._replace(stochastic=True))
    same = steps._replace(ratio=torch.zeros_like(steps.ratio))
    found = wis(agent, data, SHORT, same)
    assert found.estimate.value == pytest.approx(behaviour(data, 0.5).value) and found.effective == pytest.approx(300)


def test_weights_are_products_and_stay_after_an_end() -> None:
    from types import SimpleNamespace

    steps: Any = SimpleNamespace(
        episode=torch.tensor([0, 0, 1]), time=torch.tensor([0, 1, 0]), reward=torch.tensor([1.0, 2.0, 3.0]),
        ratio=torch.tensor([2.0, 3.0, 4.0]).double().log())  # fmt: skip
    weight, reward = weights_of(steps)
    assert (weight[0] / weight[1]).tolist() == pytest.approx([2 / 4, 6 / 4]) and reward.tolist() == [[1, 2], [3, 0]]


def test_draws_and_deviations() -> None:
    counts = bootstrapped(50, 400, torch.Generator().manual_seed(0))
    assert (counts.sum(1) == 50).all() and float(counts.mean(0).std()) < 0.1
    assert student(8) == pytest.approx(1.8946, abs=5e-3) and student(16) == pytest.approx(1.7531, abs=5e-3)


def test_random_choices_say_how_probable_they_were() -> None:
    """Of a mixture: what a sure agent does is as probable as it is random, or the agent's."""
    cfg = ganglion.load_config(None, [PPO, ENV, *REST])
    env = build_env(cfg)
    step = env.reset(0)
    inner: Any = lambda step: (torch.zeros(16, dtype=torch.int64), {})  # noqa: E731
    action, said = Random(env.spec.action, 16, 0, 0.3, inner)(step)
    wanted = torch.where(action == 0, 0.7 + 0.1, 0.1).log()
    torch.testing.assert_close(said["logp"], wanted)


def test_what_is_not_known_is_said(made: tuple[Any, Dataset]) -> None:
    agent, data = made
    silent = data._replace(rows=data.rows._replace(extras={}))
    with pytest.raises(UserError, match="importance sampling needs the log-probabilities"):
        wis(agent, silent, SHORT)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(
        ganglion.load_config(None, [PPO, ENV, *REST, "train.budget=256 steps", f"run.dir={tmp_path / 'run'}"])
    )
    for _ in run.stream():
        pass
    run.close()
    cfg = ganglion.load_config(None, [PPO, ENV, *REST])
    files.write(tmp_path / "data", record_random(cfg, 32, 0))
    asked = ["eval", str(tmp_path / "run"), "--data", str(tmp_path / "data"), "--updates", "50", "--gamma", "0.5"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "fitted Q" in said and "weighted sampling" in said and "90 % interval" in said
    assert main([*asked[:-1], "1.5"]) == 2
