"""Losses of the value-based algorithms beside the papers' formulas, row by row in float64, without ops."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.test_algorithms import learnable
from tests.contract.worlds import DQN, MASKED, THREE, Case, over

Array = np.ndarray[Any, np.dtype[np.float64]]
SEEN = {"n_step": 3, "replay": {"kind": "prioritised"}}  # weights, discounts and masks that differ by row


class Update:
    """An update about to be made: its rows as arrays of float64, and what comes of it."""

    def __init__(self, algo: str, **settings: Any) -> None:
        case = Case(algo, algo, THREE, MASKED, over(DQN, **{**SEEN, **settings}))
        self.bench, self.mini, self.noise, self.at = learnable(case)
        self.algo, t = self.bench.algo, self.mini.data
        self.t, self.rows = t, range(t.reward.shape[1])
        self.reward, self.discount, self.weight = (array(x)[0] for x in (t.reward, t.discount, self.mini.weight))
        self.action = [int(a) for a in t.action[0]]
        self.legal = t.next_obs["action_mask"][0].numpy()
        assert (self.discount == 0).any() and (self.weight < 1).any() and not self.legal.all()

    def now(self, net: Any, **named: Any) -> Array:
        with torch.no_grad():
            return array(net.value(self.t.obs, self.t.past, **named)[0])[0]

    def later(self, net: Any, **named: Any) -> Array:
        with torch.no_grad():
            return array(net.value(self.t.next_obs, self.t.next_past, **named)[0])[0]

    def best(self, q: Array, b: int) -> int:
        return max((a for a in range(q.shape[-1]) if self.legal[b, a]), key=lambda a: q[b, a])

    def compare(self, losses: list[float], errors: list[float] | None = None) -> None:
        """The weighted mean of these is the loss of the update, and their sizes are its priorities."""
        live = [b for b in self.rows if self.weight[b] > 0]
        expected = sum(self.weight[b] * losses[b] for b in live) / len(live)
        update = self.algo.learn(self.mini, self.bench.agent.knobs(self.at), self.noise)
        assert float(update.metrics["loss"]) == pytest.approx(expected, rel=1e-4)
        sizes = [abs(x) if self.weight[b] > 0 else 0.0 for b, x in enumerate(errors or losses)]
        assert update.priority.tolist() == pytest.approx(sizes, rel=1e-3, abs=1e-4)


def array(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()


def huber(x: float, kappa: float = 1.0) -> float:
    return 0.5 * x * x if abs(x) <= kappa else kappa * (abs(x) - 0.5 * kappa)


def softmax(x: Array) -> list[float]:
    top = max(x)
    total = sum(exp(y - top) for y in x)
    return [exp(y - top) / total for y in x]


# ------------------------------------------------------------ dqn


def test_dqn() -> None:
    u = Update("dqn")
    q, choice, later = u.now(u.algo.model), u.later(u.algo.model), u.later(u.algo.target)
    errors = [q[b, u.action[b]] - u.reward[b] - u.discount[b] * later[b, u.best(choice, b)] for b in u.rows]
    u.compare([huber(x) for x in errors], errors)


def test_noisy_dqn() -> None:
    """Weights W + S f(e_out) f(e_in)^T written out, of numbers of their own in each of three readings."""
    u = Update("dqn", noisy=0.5)
    nets, parts = (u.algo.model, u.algo.target.net, u.algo.model), np.split(array(u.noise.update.normal), 3)
    tables = []
    for net, e, obs, past in zip(nets, parts, *seen(u), strict=True):
        with torch.no_grad():
            x = array(net.net.body(net.encoder(obs, past)[0])[0])[0]
        layer = net.net.head.layer
        root = np.sign(e) * np.sqrt(abs(e))
        into, out = root[: x.shape[1]], root[x.shape[1] :]
        weight = array(layer.mean.weight) + array(layer.spread.weight) * np.outer(out, into)
        tables.append(x @ weight.T + array(layer.mean.bias) + array(layer.spread.bias) * out)
    q, later, choice = tables
    errors = [q[b, u.action[b]] - u.reward[b] - u.discount[b] * later[b, u.best(choice, b)] for b in u.rows]
    u.compare([huber(x) for x in errors], errors)


def seen(u: Update) -> tuple[list[Any], list[Any]]:
    t = u.t
    return [t.obs, t.next_obs, t.next_obs], [t.past, t.next_past, t.next_past]


def test_munchausen_dqn() -> None:
    """Vieillard et al. 2020, eq. 1: r + alpha [tau log pi(a|s)] + gamma sum_a' pi(a'|s') (q(s', a') - tau log pi)."""
    alpha, tau = 0.9, 0.3
    u = Update("dqn", munchausen=alpha, temperature=tau)
    q, before, later = u.now(u.algo.model), u.now(u.algo.target), u.later(u.algo.target)
    legal_now, errors = u.t.obs["action_mask"][0].numpy(), []
    for b in u.rows:
        a = u.action[b]
        some = [x for x in range(3) if legal_now[b, x]]
        bonus = 0.0
        if u.weight[b] > 0:  # what a dead row did may be illegal
            bonus = tau * log(softmax(np.array([before[b, x] / tau for x in some]))[some.index(a)])
        ahead = [x for x in range(3) if u.legal[b, x]]
        pi = softmax(np.array([later[b, x] / tau for x in ahead]))
        after = sum(p * (later[b, x] - tau * log(p)) for p, x in zip(pi, ahead, strict=True))
        errors.append(q[b, a] - u.reward[b] - alpha * min(max(bonus, -1.0), 0.0) - u.discount[b] * after)
    u.compare([huber(x) for x in errors], errors)


def test_a_soft_target_follows_at_every_update_and_is_never_copied() -> None:
    u = Update("dqn", tau=0.25)
    assert u.algo.sync_every == 0
    before = [p.clone() for p in u.algo.target.parameters()]
    u.algo.learn(u.mini, u.bench.agent.knobs(u.at), u.noise)
    for old, new, model in zip(before, u.algo.target.parameters(), u.algo.model.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25 * (model.detach() - old))


# ------------------------------------------------------------ distributions


def test_c51() -> None:
    """Bellemare et al. 2017, algorithm 1, atom by atom."""
    low, high, n = -2.0, 3.0, 11
    u = Update("c51", low=low, high=high, atoms=n)
    z, step = [low + i * (high - low) / (n - 1) for i in range(n)], (high - low) / (n - 1)
    logits, choice, later = u.now(u.algo.model), u.later(u.algo.model), u.later(u.algo.target)
    means = np.array([[sum(p * x for p, x in zip(softmax(a), z, strict=True)) for a in row] for row in choice])
    losses = []
    for b in u.rows:
        masses, after = [0.0] * n, softmax(later[b, u.best(means, b)])
        for j in range(n):
            at = (min(max(u.reward[b] + u.discount[b] * z[j], low), high) - low) / step
            below = min(int(at), n - 2)
            masses[below] += after[j] * (below + 1 - at)
            masses[below + 1] += after[j] * (at - below)
        assert sum(masses) == pytest.approx(1.0)
        said = softmax(logits[b, u.action[b]])
        losses.append(-sum(m * log(p) for m, p in zip(masses, said, strict=True)))
    u.compare(losses)


def quantile_loss(said: Any, tau: Any, goal: list[float], kappa: float) -> float:
    """Dabney et al. 2018a, eq. 10: sum over i of the mean over j of rho(goal_j - said_i)."""
    pairs = [(t, y - x) for x, t in zip(said, tau, strict=True) for y in goal]
    return sum(abs(t - (d < 0)) * huber(d, kappa) / kappa for t, d in pairs) / len(goal)


def test_qrdqn() -> None:
    n, kappa = 7, 0.5
    u = Update("qrdqn", quantiles=n, kappa=kappa)
    said, choice, later = u.now(u.algo.model), u.later(u.algo.model), u.later(u.algo.target)
    tau = [(2 * i + 1) / (2 * n) for i in range(n)]
    losses = []
    for b in u.rows:
        after = later[b, u.best(choice.mean(-1), b)]
        goal = [u.reward[b] + u.discount[b] * x for x in after]
        losses.append(quantile_loss(said[b, u.action[b]], tau, goal, kappa))
    u.compare(losses)
