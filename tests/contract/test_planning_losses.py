"""The losses of planning algorithms against the papers' formulas in float64, and what they learn in seconds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ganglion
from ganglion.core import Rollout
from ganglion.envs.board_games import BoardGame, rules_of
from ganglion.runtime.build import build
from tests.contract.worlds import CASES, Bench

BY_NAME = {case.name: case for case in CASES}


def log_softmax(x: Tensor) -> Tensor:
    x = x.double()
    return x - x.exp().sum(-1, keepdim=True).log()


def returns(r: Rollout, last: Tensor, sign: float, lam: float) -> list[list[float]]:
    """Lambda returns row by row, slot by slot."""
    rows, slots = r.reward.shape
    goal = [[0.0] * slots for _ in range(rows)]
    for b in range(slots):
        after = float(last[0, b])
        for t in reversed(range(rows)):
            bootstrap = float(r.extras["value"][t + 1, b]) if t + 1 < rows else float(last[0, b])
            mixed = bootstrap if bool(r.cut[t, b]) or t + 1 == rows else (1 - lam) * bootstrap + lam * after
            goal[t][b] = after = float(r.reward[t, b]) + sign * float(r.discount[t, b]) * mixed
    return goal


def test_the_loss_of_alphazero() -> None:
    bench = Bench(BY_NAME["alphazero-gumbel"])
    bench.train(3)
    mini, noise, at = bench.learnable()
    r, algo = mini.data, bench.agent.algo
    with torch.no_grad():
        logits, value = algo.model.both(r.obs, r.past)
        goal = returns(r, algo.model.both(*r.last)[1], -1.0, 0.5)
    policy = critic = count = 0.0
    for t, b in (mini.weight > 0).nonzero().tolist():
        legal, weight = r.obs["action_mask"][t, b].bool(), float(mini.weight[t, b])
        policy -= weight * float((r.extras["weights"][t, b][legal].double() * log_softmax(logits[t, b][legal])).sum())
        critic += weight * (float(value[t, b]) - goal[t][b]) ** 2
        count += 1
    metrics = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    assert float(metrics["policy"]) == pytest.approx(policy / count, rel=1e-4)
    assert float(metrics["value"]) == pytest.approx(critic / count, rel=1e-4)


def test_the_loss_of_muzero() -> None:
    """Its model unrolled step by step, and the cross-entropy of two-hot numbers by hand."""
    bench = Bench(BY_NAME["muzero"])
    bench.train(3)
    mini, noise, at = bench.learnable()
    r, algo = mini.data, bench.agent.algo
    size = algo.cfg.support

    def entropy_of(logits: Tensor, x: float) -> float:
        moved = (abs(x) + 1) ** 0.5 - 1 + 0.01 * abs(x)
        moved = max(-size, min(size, moved if x > 0 else -moved))
        low = min(int(moved // 1), size - 1)
        logs = log_softmax(logits)
        return -float((1 - (moved - low)) * logs[low + size] + (moved - low) * logs[low + size + 1])

    with torch.no_grad():
        goal = returns(r, algo.number(algo.model.judge(algo.model.see(*r.last))[1]), 1.0, 1.0)
        latent, terms = (
            algo.model.see(r.obs[:1], r.past._replace(start=r.past.start[:1])),
            dict.fromkeys("pvr", (0.0, 0)),
        )
        for k in range(algo.cfg.unroll + 1):
            logits, value = algo.model.judge(latent)
            after, reward = algo.model.imagine(latent, r.action[k : k + 1])
            for b in (mini.weight[0] > 0).nonzero()[:, 0].tolist():
                ends = [t for t in range(k) if r.cut[t, b]]
                alive, over = not ends, bool(ends) and float(r.discount[ends[0], b]) == 0
                said = {"v": entropy_of(value[0, b], goal[k][b] if alive else 0.0)} if alive or over else {}
                if alive:
                    said["p"] = -float((r.extras["weights"][k, b].double() * log_softmax(logits[0, b])).sum())
                if (alive or over) and k < algo.cfg.unroll:
                    said["r"] = entropy_of(reward[0, b], float(r.reward[k, b]) if alive else 0.0)
                for name, x in said.items():
                    terms[name] = terms[name][0] + x, terms[name][1] + 1
            latent = after
    metrics = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    for name, term in zip(("policy", "value", "reward"), "pvr", strict=True):
        assert float(metrics[name]) == pytest.approx(terms[term][0] / terms[term][1], rel=1e-4)


@pytest.mark.learning
def test_alphazero_stops_losing_at_tictactoe() -> None:
    """In the first of the preset's minutes: hardly a game against perfect play."""
    settings = [
        "train.budget=8k steps",
        "run.device=cpu",
        "algo.limiter={warmup: 500, opt_interval: 8}",
        "algo.lr=2e-3",
    ]
    trainer = build(ganglion.load_config("tictactoe/alphazero", settings))
    for _ in trainer():
        pass
    env, agent = BoardGame(rules_of("tictactoe"), 300, opponent="perfect"), trainer.learner.agent
    step, lost, playing = env.reset(1), 0, torch.ones(300, dtype=torch.bool)
    for _ in range(5):
        step = env.step(agent.predict(step.obs, agent.start(300)).action)
        lost += int(((step.reward < 0) & playing).sum())
        playing &= ~step.terminated
    assert lost <= 15 and not playing.any()
