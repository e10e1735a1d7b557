"""The losses of planning algorithms against the papers' formulas in float64, and what they learn in seconds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ganglion
from ganglion.core import Past, Rollout
from ganglion.envs.board_games import BoardGame, rules_of
from ganglion.nn.latent_model import LatentState
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


def entropy_of(logits: Tensor, x: float) -> float:
    """The cross-entropy of logits with a number as MuZero writes it: rescaled, on the two points beside it."""
    size = len(logits) // 2
    moved = (abs(x) + 1) ** 0.5 - 1 + 0.01 * abs(x)
    moved = max(-size, min(size, moved if x > 0 else -moved))
    low = min(int(moved // 1), size - 1)
    logs = log_softmax(logits)
    return -float((1 - (moved - low)) * logs[low + size] + (moved - low) * logs[low + size + 1])


class Means:
    """Sums and counts by name."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

    def add(self, name: str, x: float) -> None:
        self.sums.setdefault(name, []).append(x)

    def __getitem__(self, name: str) -> float:
        return sum(self.sums[name]) / len(self.sums[name])


@pytest.mark.parametrize("name", ["muzero", "muzero-efficient"])
def test_the_loss_of_muzero(name: str) -> None:
    """Its model unrolled step by step, and the cross-entropy of two-hot numbers by hand; with a prefix, of sums."""
    bench = Bench(BY_NAME[name])
    bench.train(3)
    mini, noise, at = bench.learnable()
    algo, terms = bench.agent.algo, Means()
    r, prefix = algo.renewed(mini.data), algo.cfg.value_prefix
    with torch.no_grad():
        goal = returns(r, algo.support.number(algo.model.judge(algo.model.see(*r.last))[1]), 1.0, 1.0)
        state = algo.model.see(r.obs[:1], r.past._replace(start=r.past.start[:1]))
        for k in range(algo.cfg.unroll + 1):
            logits, value = algo.model.judge(state)
            after, reward, _ = algo.model.imagine(state, algo.one_hot(r.action[k : k + 1]))
            for b in (mini.weight[0] > 0).nonzero()[:, 0].tolist():
                ends = [t for t in range(k) if r.cut[t, b]]
                alive, over = not ends, bool(ends) and float(r.discount[ends[0], b]) == 0
                if alive or over:
                    terms.add("value", entropy_of(value[0, b], goal[k][b] if alive else 0.0))
                if alive:
                    terms.add("policy", -float((r.extras["weights"][k, b].double() * log_softmax(logits[0, b])).sum()))
                if (alive or over) and k < algo.cfg.unroll:
                    last = ends[0] if ends else k
                    summed = float(r.reward[: last + 1, b].sum())
                    terms.add("reward", entropy_of(reward[0, b], summed if prefix else float(r.reward[k, b]) * alive))
                if alive and k and algo.cfg.consistency:
                    told, seen = (
                        algo.model.project(x)[0, 0, b].double()
                        for x in (state.latent, algo.model.see(r.obs[k : k + 1], Past((), r.past.start[k : k + 1]))[0])
                    )
                    told = algo.model.foretell(told.float()[None, None])[0, 0, 0].double()
                    terms.add("consistency", -float(told @ seen / (told.norm() * seen.norm()).clamp(min=1e-8)))
            state = after
    metrics = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    for term in terms.sums:
        assert float(metrics[term]) == pytest.approx(terms[term], rel=1e-4)


def test_a_value_prefix_begins_anew() -> None:
    """After `unroll` steps the sum, and the memory that makes it, are those of a state that has just been seen."""
    bench = Bench(BY_NAME["muzero-efficient"])
    model, action = bench.agent.algo.model, torch.eye(2)[None, :1]
    with torch.no_grad():
        state, rewards = model.see(torch.randn(1, 1, 4), Past((), torch.ones(1, 1, dtype=torch.bool))), []
        for _ in range(2):
            state, _, reward = model.imagine(state, action)
            rewards.append(reward)
        torch.testing.assert_close(sum(rewards), state.total)
        anew, logits, reward = model.imagine(state, action)
        fresh = LatentState(state.latent, *model.see(torch.randn(1, 1, 4), Past((), torch.ones(1, 1).bool()))[1:])
        torch.testing.assert_close(model.imagine(fresh, action)[1], logits)
        torch.testing.assert_close(reward, anew.total)
        assert anew.steps.item() == 1 and state.steps.item() == 2


def test_what_is_reanalysed() -> None:
    """Every second sequence has what a search says now, in the rows that are unrolled; all else is as it was."""
    bench = Bench(BY_NAME["muzero-efficient"])
    bench.train(3)
    mini, _, _ = bench.learnable()
    algo, r = bench.agent.algo, mini.data
    new, slots = algo.renewed(r), r.reward.shape[1]
    with torch.no_grad():
        said = algo.predict(r.obs, r.past, algo.neutral(r.past.start))
    rows, which = algo.cfg.unroll + 1, torch.arange(0, slots, 2)
    rest = torch.arange(1, slots, 2)
    for name, x in {"weights": said.dist.weights, "value": said.value}.items():
        torch.testing.assert_close(new.extras[name][:rows, which], x[:rows, which])
        assert not torch.equal(r.extras[name][:rows, which], x[:rows, which])
        assert torch.equal(new.extras[name][:, rest], r.extras[name][:, rest])
        assert torch.equal(new.extras[name][rows:], r.extras[name][rows:])


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
