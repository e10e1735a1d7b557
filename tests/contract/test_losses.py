"""Losses of continuous control against the papers' formulas: row by row, number by number, in float64.

Networks are read once in float64; everything around them is written out again here, without `ops`.
"""

from __future__ import annotations

from copy import deepcopy
from math import exp, log, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ganglion import ops
from ganglion.nn import nets
from tests.contract.test_algorithms import learnable
from tests.contract.worlds import ARM, SAC, Case, over

LOW, HIGH = np.array(ARM.low), np.array(ARM.high)
RATED = {"kind": "prioritised", "capacity": 600, "batch": 16}
Array = np.ndarray


@pytest.fixture(autouse=True)
def exact_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks read observations as they come, float64 ones too."""
    monkeypatch.setattr(nets, "flatten", lambda obs, space, least: obs)


class Learned:
    """An update, and the algorithm as it was before it and after it, in float64."""

    def __init__(self, algo: str, **settings: Any) -> None:
        case = Case(algo, algo, ARM, settings=over(SAC, replay=RATED, n_step=3, **settings))
        self.bench, mini, self.noise, self.at = learnable(case)
        own: Any = self.bench.algo
        knobs = self.bench.agent.knobs(self.at)
        self.before = exact(own)
        self.metrics = {k: v.item() for k, v in own.learn(mini, knobs, self.noise).metrics.items()}
        self.between = exact(own)
        self.metrics |= {k: v.item() for k, v in own.learn_late(mini, knobs, self.noise).items()}
        self.after = exact(own)
        self.t = ops.map_tree(lambda x: x.double() if x.is_floating_point() else x, mini.data)
        self.weight = mini.weight[0].double().numpy()
        self.rows = [b for b in range(len(self.weight)) if self.weight[b] > 0]
        assert self.rows and not np.allclose(self.weight[self.rows], 1), "weights take part"

    def mean(self, per_row: dict[int, float]) -> float:
        return sum(self.weight[b] * per_row[b] for b in self.rows) / len(self.rows)

    def target(self, b: int, after: Any) -> Any:
        """r + d V, of one row."""
        assert self.t.ahead[0, b] == 0
        return self.t.reward[0, b].item() + self.t.discount[0, b].item() * after

    def normal(self, part: int, parts: int = 2) -> Array:
        return self.noise.normal[0].double().chunk(parts, -1)[part].numpy()


def exact(algo: Any) -> Any:
    """The networks of an algorithm as they are, in float64, sharing nothing."""
    copy = deepcopy(algo)
    for name in ("model", "target"):
        if hasattr(copy, name):
            getattr(copy, name).double()
    return copy


def said(x: Tensor) -> Array:
    return x.detach().numpy()


def sampled(raw: Array, normal: Array) -> tuple[Array, float]:
    """A squashed normal action of one row and the logarithm of its density."""
    size = len(LOW)
    action, logp = np.zeros(size), 0.0
    for i in range(size):
        mean, std = raw[i], exp(raw[size + i])
        x = mean + std * normal[i]
        half = (HIGH[i] - LOW[i]) / 2
        action[i] = LOW[i] + half * (tanh(x) + 1)
        density = exp(-0.5 * ((x - mean) / std) ** 2) / (std * sqrt(2 * pi))
        logp += log(density) - log((1 - tanh(x) ** 2) * half)
    return action, logp


def samples(model: Any, obs: Tensor, past: Any, normal: Array) -> tuple[Tensor, Array]:
    """The same of all rows: actions [1, B, A], logarithms [B]."""
    raw = said(model.action(obs, past)[0])[0]
    pairs = [sampled(raw[b], normal[b]) for b in range(len(raw))]
    return torch.tensor(np.stack([a for a, _ in pairs]))[None], np.array([p for _, p in pairs])


def close(found: float, right: float) -> None:
    assert found == pytest.approx(right, rel=2e-4, abs=1e-5)


def test_ddpg() -> None:
    one = Learned("ddpg")
    t, before = one.t, one.before
    later = before.target.action(t.next_obs, t.next_past)[0]
    after = said(before.target.value(t.next_obs, t.next_past, later)[0])[0, 0]
    q = said(before.model.value(t.obs, t.past, t.action)[0])[0, 0]
    close(one.metrics["critic"], one.mean({b: (q[b] - one.target(b, after[b])) ** 2 for b in one.rows}))
    action = before.model.action(t.obs, t.past)[0]  # climbs the critic that has moved
    climbed = said(one.after.model.value(t.obs, t.past, action)[0])[0, 0]
    close(one.metrics["actor"], -one.mean({b: climbed[b] for b in one.rows}))


def test_tqc() -> None:
    """Kuznetsov et al. 2020, equations 7 to 10."""
    one = Learned("tqc", critics=3, quantiles=4, drop=1)
    t, before = one.t, one.before
    alpha = before.model.warmth["log"].exp().item()
    later, logp = samples(before.model, t.next_obs, t.next_past, one.normal(0))
    after = said(before.target.value(t.next_obs, t.next_past, later)[0])[:, 0]  # [critics, B, quantiles]
    z = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    losses = {}
    for b in one.rows:
        smallest = sorted(after[:, b].flatten())[: 3 * (4 - 1)]
        goals = [one.target(b, y - alpha * logp[b]) for y in smallest]
        losses[b] = sum(quantile_loss(z[c, b], goals) for c in range(3))
    close(one.metrics["critic"], one.mean(losses))
    action, logp = samples(before.model, t.obs, t.past, one.normal(1))
    mean = said(one.after.model.value(t.obs, t.past, action)[0])[:, 0].mean((0, 2))
    close(one.metrics["actor"], one.mean({b: alpha * logp[b] - mean[b] for b in one.rows}))
    close(one.metrics["entropy"], -one.mean({b: logp[b] for b in one.rows}))


def quantile_loss(theta: Array, goals: list[float]) -> float:
    """The mean over quantiles and goals of |tau - [goal < theta]| huber(goal - theta)."""
    total = 0.0
    for m in range(len(theta)):
        tau = (2 * m + 1) / (2 * len(theta))
        for y in goals:
            u = y - theta[m]
            total += abs(tau - (u < 0)) * (u * u / 2 if abs(u) <= 1 else abs(u) - 0.5)
    return total / (len(theta) * len(goals))


def test_the_temperature_moves_towards_the_entropy_that_is_wanted() -> None:
    for target, grows in ((50.0, True), (-50.0, False)):
        one = Learned("tqc", target_entropy=target)
        moved = one.after.model.warmth["log"] - one.before.model.warmth["log"]
        assert (moved.item() > 0) == grows


def test_flashsac() -> None:
    """Rewards scaled onto the atoms, the lower critic's distribution moved and projected, a cross entropy."""
    one = Learned("flashsac", net_critic={"hidden": [16]}, atoms=11)
    t, before, limit, atoms = one.t, one.before, 5.0, 11
    support = np.linspace(-limit, limit, atoms)
    scale = max(sqrt(before.scale.moments.var.item() + 1e-8), before.scale.most.item() / limit)
    alpha = before.model.warmth["log"].exp().item()
    later, logp = samples(before.model, t.next_obs, t.next_past, one.normal(0))
    live = torch.cat([one_if(one), one_if(one)], 1)
    both = torch.cat([t.obs, t.next_obs], 1), t.past, torch.cat([t.action, later], 1), live
    size = len(one.weight)
    after = softmax(said(before.target.net.logits(*both))[:, 0, size:])
    now = softmax(said(before.model.critics.logits(*both))[:, 0, :size])
    losses = {}
    for b in one.rows:
        lower = min((0, 1), key=lambda c: after[c, b] @ support)
        moved = [(t.reward[0, b].item()) / scale + t.discount[0, b].item() * (z - alpha * logp[b]) for z in support]
        goal = projected(moved, after[lower, b], support)
        losses[b] = np.mean([-(goal * np.log(now[c, b])).sum() for c in range(2)])
    close(one.metrics["critic"], one.mean(losses))


def test_flashsac_actor_and_temperature() -> None:
    one = Learned("flashsac", net_critic={"hidden": [16]}, atoms=11)
    t, between = one.t, one.between
    alpha, size = between.model.warmth["log"].exp().item(), len(one.weight)
    live = torch.cat([one_if(one), one_if(one)], 1)
    raw = said(between.actor.action(torch.cat([t.obs, t.next_obs], 1), t.past, live)[0])[0, :size]
    pairs = [sampled(raw[b], one.normal(1)[b]) for b in range(size)]
    action = torch.tensor(np.stack([a for a, _ in pairs]))[None]
    lower = said(between.model.value(t.obs, t.past, action)[0])[:, 0].min(0)
    close(one.metrics["actor"], one.mean({b: alpha * pairs[b][1] - lower[b] for b in one.rows}))
    entropy = -one.mean({b: pairs[b][1] for b in one.rows})
    wanted = sum(0.5 * log(2 * pi * np.e * (0.15 * half) ** 2) for half in (HIGH - LOW) / 2)
    close(one.metrics["entropy"], entropy)
    moved = one.after.model.warmth["log"] - between.model.warmth["log"]
    assert (moved.item() < 0) == (entropy > wanted)


def test_flashsac_weights_stay_of_unit_norm() -> None:
    one = Learned("flashsac", net_critic={"hidden": [16]})
    for net in (one.after.model.actor.net, one.after.model.critics.nets):
        for block in net.blocks:
            for layer in (block.widen, block.narrow):
                torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones_like(layer.weight[:, 0]))
            both = block.outer.gain.square().sum(-1) + block.outer.shift.square().sum(-1)
            torch.testing.assert_close(both, torch.full_like(both, 16.0))


def one_if(one: Learned) -> Tensor:
    """1 for rows that count, [1, B]."""
    return torch.tensor(one.weight > 0).double()[None]


def softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def projected(moved: list[float], probs: Array, support: Array) -> Array:
    """Each atom's mass goes to its two neighbours on the support, in proportion to nearness."""
    goal, step = np.zeros(len(support)), support[1] - support[0]
    for z, p in zip(moved, probs, strict=True):
        place = (min(max(z, support[0]), support[-1]) - support[0]) / step
        below = min(int(np.floor(place)), len(support) - 2)
        goal[below] += p * (1 - (place - below))
        goal[below + 1] += p * (place - below)
    return goal
