"""Losses of imitation against the papers' formulas: row by row, in float64, without `ops`."""

from __future__ import annotations

from copy import deepcopy
from math import exp, log
from typing import Any

import pytest
import torch

from tests.contract.test_control_losses import exact_inputs, said, sampled
from tests.contract.test_value_losses import array, shown
from tests.contract.worlds import ARM, SAC, Bench, Case

__all__ = ["exact_inputs"]


class Judging:
    """An update of an algorithm that judges its rows, some of them demonstrated."""

    def __init__(self, kind: str, part: str, **settings: Any) -> None:
        bench = Bench(Case(kind, kind, ARM, settings={"inner": {"kind": "sac", **SAC}, **settings}))
        mini, self.noise, at = bench.learnable()
        self.item = mini.item._replace(data=shown(mini.item.data))
        self.algo: Any = bench.algo
        self.mini = self.algo.prepare(self.item)
        self.part = deepcopy(getattr(self.algo, part)).double()
        self.t = self.item.data._replace(obs=self.item.data.obs.double(), next_obs=self.item.data.next_obs.double(),
                                         action=self.item.data.action.double())  # fmt: skip
        self.live = [b for b in range(self.item.weight.shape[1]) if self.item.weight[0, b] > 0]
        self.demo = self.t.extras["demo"][0].tolist()
        update = self.algo.learn(self.mini, bench.agent.knobs(at), self.noise)
        self.metrics = {name: value.item() for name, value in update.metrics.items()}

    def cross_entropy(self, logits: list[float]) -> float:
        """-E_demo log D - E_own log(1 - D), with D = 1 / (1 + exp(-logit))."""
        loss = 0.0
        for sort in (1.0, 0.0):
            rows = [b for b in self.live if self.demo[b] == sort]
            right = [1 / (1 + exp(-logits[b])) for b in rows]
            loss -= sum(log(d) if sort else log(1 - d) for d in right) / len(rows)
        return loss


@pytest.mark.parametrize("reward", ["softplus", "log", "logit"])
def test_gail(reward: str) -> None:
    seen = Judging("gail", "judge", reward=reward)
    x = seen.part.inputs(seen.t.obs, seen.t.past.start, seen.t.action)
    moves = seen.noise.normal[..., -seen.algo.wide :].double()
    logits, moved = said(seen.part(x))[0], said(seen.part(x + 0.1 * moves))[0]
    assert seen.metrics["judge_loss"] == pytest.approx(seen.cross_entropy(list(logits)), rel=1e-4)
    along = [((moved[b] - logits[b]) / 0.1) ** 2 for b in seen.live]
    assert seen.metrics["judge_slope"] == pytest.approx(sum(along) / len(along), rel=1e-3)
    for b in seen.live:
        d = 1 / (1 + exp(-logits[b]))
        wanted = {"softplus": -log(1 - d), "log": log(d), "logit": log(d) - log(1 - d)}[reward]
        assert seen.mini.mini.data.reward[0, b].item() == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def test_airl() -> None:
    seen = Judging("airl", "shaped", gamma=0.9)
    t, start = seen.t, seen.t.past.start
    g, h = said(seen.part.reward(t.obs, start, t.action))[0], said(seen.part.potential(t.obs, start))[0]
    later = said(seen.part.potential(t.next_obs, t.next_past.start))[0]
    alive = (t.discount[0] > 0).tolist()
    f = [g[b] + 0.9 * later[b] * alive[b] - h[b] for b in range(len(g))]
    assert not all(alive[b] for b in seen.live)
    assert seen.mini.mini.data.reward[0].tolist() == pytest.approx(f, rel=1e-3, abs=1e-4)


def test_airl_subtracts_the_logarithm_of_the_policy() -> None:
    """By an action whose density is known: that which the actor draws for given numbers."""
    bench = Bench(Case("airl", "airl", ARM, settings={"inner": {"kind": "sac", **SAC}, "limit": 100.0}))
    mini, noise, at = bench.learnable()
    algo: Any = bench.algo
    t = shown(mini.item.data)
    raw = said(algo.inner.model.action(t.obs, t.past)[0].double())[0]
    drawn = [sampled(raw[b], [0.3, -0.4][: len(ARM.low)]) for b in range(len(raw))]
    t = t._replace(action=torch.stack([torch.tensor(a).float() for a, _ in drawn])[None])
    item = mini.item._replace(data=t)
    f = array(algo.said(t))[0]
    before = algo.prepare(item)
    live = [b for b in range(len(f)) if item.weight[0, b] > 0]
    logits, loss = [f[b] - drawn[b][1] for b in range(len(f))], 0.0
    algo.inner.learn = lambda *_: type("Nothing", (), {"metrics": {}, "_replace": lambda self, metrics: metrics})()
    for sort in (1.0, 0.0):
        rows = [b for b in live if t.extras["demo"][0, b] == sort]
        loss += sum(log(1 + exp(-logits[b] if sort else logits[b])) for b in rows) / len(rows)
    found = algo.learn(before, bench.agent.knobs(at), noise)
    assert float(found["judge_loss"]) == pytest.approx(loss, rel=1e-3)
