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
from ganglion.core import Composite, Space
from ganglion.nn import nets
from ganglion.nn.norms import BatchNorm, DroppedMLP, thinned
from tests.contract.worlds import ARM, SAC, THREE, Bench, Case, over

LOW, HIGH = np.array(ARM.low), np.array(ARM.high)
RATED = {"kind": "prioritised", "capacity": 600, "batch": 16}
Array = np.ndarray


@pytest.fixture(autouse=True)
def exact_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks read observations as they come, float64 ones too."""
    monkeypatch.setattr(nets, "flatten", lambda obs, space, least: obs)


class Learned:
    """An update, and the algorithm as it was before it and after it, in float64."""

    def __init__(self, algo: str, action: Space = ARM, **settings: Any) -> None:
        case = Case(algo, algo, action, settings=over(SAC, replay=RATED, n_step=3, **settings))
        self.bench = Bench(case)
        mini, self.noise, self.at = self.bench.learnable()
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


def test_crossq() -> None:
    """Bhatt et al. 2024: one pass of critics over (s, a) and (s', a') together, whose second half is the target."""
    one = Learned("crossq", net_critic={"hidden": [16]})
    t, before, size = one.t, one.before, len(one.weight)
    alpha = before.model.warmth["log"].exp().item()
    later, logp = samples(before.model, t.next_obs, t.next_past, one.normal(0))
    live = torch.cat([one_if(one), one_if(one)], 1)
    x = np.concatenate([np.concatenate([said(t.obs)[0], said(t.action)[0]], -1), said_pair(t.next_obs, later)])
    q = np.stack([batch_normed(before.model.critics.nets, c, x, said(live)[0]) for c in range(2)])
    losses = {}
    for b in one.rows:
        goal = one.target(b, min(q[0, size + b], q[1, size + b]) - alpha * logp[b])
        losses[b] = sum((q[c, b] - goal) ** 2 for c in range(2))
    close(one.metrics["critic"], one.mean(losses))


def said_pair(obs: Tensor, action: Tensor) -> Array:
    return np.concatenate([said(obs)[0], said(action)[0]], -1)


def batch_normed(nets: Any, member: int, x: Array, live: Array) -> Array:
    """Batch norm of rows that count, then a layer; rectified between."""
    for i, (norm, layer) in enumerate(zip(nets.norms, nets.layers, strict=True)):
        x = np.maximum(x, 0) if i else x
        mean = x[live > 0].mean(0)
        var = ((x[live > 0] - mean) ** 2).mean(0)
        x = (x - mean) / np.sqrt(var + 1e-5) * said(norm.gain)[member, 0] + said(norm.shift)[member, 0]
        x = x @ said(layer.weight)[member] + said(layer.bias)[member, 0]
    return x[:, 0]


def test_batch_norm_follows_and_renormalises() -> None:
    norm = BatchNorm(2, 3, momentum=0.1, renorm_after=1).double()
    x, live = torch.randn(2, 8, 3, dtype=torch.float64), torch.tensor([1.0, 1, 1, 1, 0, 1, 0, 1]).double()
    kept = said(x)[:, said(live) > 0]
    mean, var = kept.mean(1), kept.var(1)
    plain = norm(x, live, move=True)
    np.testing.assert_allclose(said(plain), (said(x) - mean[:, None]) / np.sqrt(var[:, None] + 1e-5))
    np.testing.assert_allclose(said(norm.mean)[:, 0], 0.1 * mean)
    np.testing.assert_allclose(said(norm.var)[:, 0], 0.9 + 0.1 * var)
    running, spread = said(norm.mean), np.sqrt(said(norm.var) + 1e-5)
    stretch = np.clip(np.sqrt(var[:, None] + 1e-5) / spread, 1 / 3, 3)
    shift = np.clip((mean[:, None] - running) / spread, -5, 5)
    np.testing.assert_allclose(said(norm(x, live)), said(plain) * stretch + shift)
    np.testing.assert_allclose(said(norm(x)), (said(x) - running) / spread)


@pytest.mark.parametrize("droq", [False, True])
def test_redq(droq: bool) -> None:
    """Chen et al. 2021, algorithm 1; the masks of dropout are those that the update's numbers say."""
    more = {"dropout": 0.3, "layer_norm": True} if droq else {}
    one = Learned("redq", critics=4, subset=2, delay=1, **more)
    t, before = one.t, one.before
    alpha = before.model.warmth["log"].exp().item()
    uniform = said(one.noise.update.uniform)
    chosen = sorted(range(4), key=lambda c: uniform[c])[:2]
    keys = torch.tensor([int(u * 2**24) for u in uniform[4:]])
    later, logp = samples(before.model, t.next_obs, t.next_past, one.normal(0))
    after = said(before.target.net.value(t.next_obs, t.next_past, later, keys[0])[0])[:, 0]
    q = said(before.model.critics.value(t.obs, t.past, t.action, keys[1])[0])[:, 0]
    losses = {}
    for b in one.rows:
        goal = one.target(b, min(after[c, b] for c in chosen) - alpha * logp[b])
        losses[b] = sum((q[c, b] - goal) ** 2 for c in range(4))
    close(one.metrics["critic"], one.mean(losses))
    action, logp = samples(one.between.model, t.obs, t.past, one.normal(1))
    mean = said(one.between.model.critics.value(t.obs, t.past, action, keys[2])[0])[:, 0].mean(0)
    close(one.metrics["actor"], one.mean({b: alpha * logp[b] - mean[b] for b in one.rows}))


def test_dropout_and_layer_norm() -> None:
    """Hiraoka et al. 2022: dropout, layer norm, activation; each unit of each row by a coin of its own."""
    net = DroppedMLP(2, 3, (64,), 1, "relu", 0.25, True).double()
    x = torch.randn(1, 50, 3, dtype=torch.float64)
    one, again, other = (net(x, torch.tensor(key)) for key in (5, 5, 6))
    assert torch.equal(one, again) and not torch.equal(one, other)
    coins = thinned(torch.empty(2, 50, 64), 0.25, torch.tensor(5), 0)
    assert {round(c, 4) for c in coins.unique().tolist()} == {0.0, 1.3333}
    assert (coins == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)
    layer, norm = net.layers[0], net.norms[0]
    for c in range(2):
        y = (said(x)[0] @ said(layer.weight)[c] + said(layer.bias)[c, 0]) * said(coins)[c]
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        y = np.maximum(y * said(norm.weight)[c, 0] + said(norm.bias)[c, 0], 0)
        right = y @ said(net.head.weight)[c] + said(net.head.bias)[c, 0]
        np.testing.assert_allclose(said(one)[c, 0], right, rtol=1e-6)


def test_d4pg() -> None:
    """Barth-Maron et al. 2018, algorithm 1: the target's distribution moved and projected, a cross entropy."""
    one = Learned("d4pg", low=-3.0, high=3.0, atoms=7)
    t, before, support = one.t, one.before, np.linspace(-3.0, 3.0, 7)
    later = before.target.action(t.next_obs, t.next_past)[0]
    after = softmax(said(before.target.net.critics.logits(t.next_obs, t.next_past, later))[0])
    now = softmax(said(before.model.critics.logits(t.obs, t.past, t.action))[0])
    losses = {}
    for b in one.rows:
        goal = projected([one.target(b, z) for z in support], after[b], support)
        losses[b] = -(goal * np.log(now[b])).sum()
    close(one.metrics["critic"], one.mean(losses))
    action = before.model.action(t.obs, t.past)[0]
    climbed = softmax(said(one.after.model.critics.logits(t.obs, t.past, action))[0]) @ support
    close(one.metrics["actor"], -one.mean({b: climbed[b] for b in one.rows}))


def test_discrete_sac() -> None:
    """Christodoulou 2019, equations 10 to 12, over legal actions alone."""
    one = Learned("discrete_sac", THREE, entropy=0.5)
    t, before = one.t, one.before
    alpha = before.model.warmth["log"].exp().item()
    later = softmax(said(before.model.action(t.next_obs, t.next_past)[0])[0])
    after = said(before.target.value(t.next_obs, t.next_past)[0])[:, 0].min(0)
    q = said(before.model.value(t.obs, t.past)[0])[:, 0]
    now = softmax(said(before.model.action(t.obs, t.past)[0])[0])
    losses, climbed, entropy = {}, {}, {}
    for b in one.rows:
        a = int(t.action[0, b])
        goal = one.target(b, sum(later[b, i] * (after[b, i] - alpha * log(later[b, i])) for i in range(3)))
        losses[b] = sum((q[c, b, a] - goal) ** 2 for c in range(2))
        climbed[b] = sum(now[b, i] * (alpha * log(now[b, i]) - min(q[0, b, i], q[1, b, i])) for i in range(3))
        entropy[b] = -sum(now[b, i] * log(now[b, i]) for i in range(3))
    close(one.metrics["critic"], one.mean(losses))
    close(one.metrics["actor"], one.mean(climbed))
    moved = one.after.model.warmth["log"] - before.model.warmth["log"]
    assert (moved.item() < 0) == (one.mean(entropy) > one.mean(dict.fromkeys(one.rows, 0.5 * log(3))))


@pytest.mark.parametrize("temperature", [None, 0.3])
def test_hybrid_sac(temperature: float | None) -> None:
    """Delalleau et al. 2019 with critics of all numbers at once: a sum over choices, a sample of the numbers."""
    space = Composite({"gear": THREE, "steer": ARM})
    one = Learned("hybrid_sac", space, entropy=0.5, temperature=temperature)
    t, before = one.t, one.before
    warm, warmth = before.model.warmth["log"].exp().tolist()

    def acts(obs: Tensor, past: Any, part: int) -> tuple[Array, Tensor, Array]:
        """Probabilities of the choices, numbers and the logarithms of their densities."""
        raw = said(before.model.action(obs, past)[0])[0]
        pairs = [sampled(raw[b, 3:], one.normal(part)[b]) for b in range(len(raw))]
        return softmax(raw[:, :3]), torch.tensor(np.stack([a for a, _ in pairs]))[None], np.array([p for _, p in pairs])

    later, numbers, dense = acts(t.next_obs, t.next_past, 0)
    after = said(before.target.value(t.next_obs, t.next_past, numbers)[0])[:, 0].min(0)
    q = said(before.model.value(t.obs, t.past, t.action["steer"])[0])[:, 0]
    now, own, density = acts(t.obs, t.past, 1)
    judged = said(one.between.model.value(t.obs, t.past, own)[0])[:, 0].min(0)  # by critics that have moved
    losses, climbed, entropy, spread = {}, {}, {}, {}
    for b in one.rows:
        gear = int(t.action["gear"][0, b])
        expected = sum(later[b, i] * (after[b, i] - warm * log(later[b, i])) for i in range(3))
        goal = one.target(b, expected - warmth * dense[b])
        losses[b] = sum((q[c, b, gear] - goal) ** 2 for c in range(2))
        entropy[b], spread[b] = -sum(now[b, i] * log(now[b, i]) for i in range(3)), -density[b]
        value = sum(now[b, i] * judged[b, i] for i in range(3))
        climbed[b] = -(value + warm * entropy[b] + warmth * spread[b])
    close(one.metrics["critic"], one.mean(losses))
    close(one.metrics["actor"], one.mean(climbed))
    close(one.metrics["entropy"], one.mean(entropy))
    close(one.metrics["spread"], one.mean(spread))
    moved = (one.after.model.warmth["log"] - before.model.warmth["log"]).tolist()
    if temperature is not None:
        assert moved == [0, 0]
        return
    assert (moved[0] < 0) == (one.mean(entropy) > one.mean(dict.fromkeys(one.rows, 0.5 * log(3))))
    assert (moved[1] < 0) == (one.mean(spread) > one.mean(dict.fromkeys(one.rows, -2.0)))
