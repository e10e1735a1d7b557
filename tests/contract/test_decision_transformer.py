"""The decision transformer against the paper's formulas, number by number in float64, and acting against learning."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

from ganglion.core import Noise, Past
from tests.contract.test_control_losses import exact_inputs, said
from tests.contract.worlds import DT, THREE, Bench, Case, over

__all__ = ["exact_inputs"]
Array = Any


def made(**settings: Any) -> Bench:
    same = {"layers": 2, "heads": 2, "window": 4, "net": {"normalise": False, "hidden": [16]}, **settings}
    bench = Bench(Case("dt", "decision_transformer", THREE, settings=over(DT, **same)))
    for layer in bench.algo.model.layers:  # type: ignore[union-attr]
        torch.nn.init.normal_(layer.distance)  # at first all distances count alike
    return bench


def matrix(layer: Any, x: Array) -> Array:
    bias = 0 if layer.bias is None else layer.bias.detach().double().numpy()
    return x @ layer.weight.detach().double().numpy().T + bias


def normed(layer: Any, x: Array) -> Array:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + torch.erf(torch.tensor(x) / 2**0.5).numpy())


def transformed(model: Any, rows: list[tuple[float, Array, int]]) -> Array:
    """The logits of the last of some rows of one episode: token by token."""
    x = []
    for to_go, obs, action in rows:
        one_hot = np.eye(3)[action]
        x += [matrix(model.of_return, np.array([to_go / float(model.largest)])), matrix(model.of_obs, obs),
              matrix(model.of_action, one_hot)]  # fmt: skip
    tokens = normed(model.first, np.stack(x))
    for layer in model.layers:
        query, key, value = np.split(matrix(layer.query_key_value, normed(layer.before, tokens)), 3, -1)
        distance, dim = layer.distance.detach().double().numpy(), query.shape[1] // layer.heads
        mixed = np.zeros_like(tokens)
        for i in range(len(tokens)):
            for h in range(layer.heads):
                own = slice(h * dim, (h + 1) * dim)
                scores = [float(query[i, own] @ key[j, own]) / dim**0.5 + distance[h, i // 3 - j // 3]
                          for j in range(i + 1)]  # fmt: skip
                weights = np.exp(scores) / np.exp(scores).sum()
                mixed[i, own] = weights @ value[: i + 1, own]
        tokens = tokens + matrix(layer.merge, mixed)
        tokens = tokens + matrix(layer.narrow, gelu(matrix(layer.widen, normed(layer.between, tokens))))
    return said(model.net.double()(torch.tensor(normed(model.last, tokens[-2]))[None, None]))[0, 0]


def test_loss() -> None:
    bench = made()
    mini, noise, at = bench.learnable()
    t, model = mini.data, bench.algo.model
    start, count, total = t.past.start, 0, 0.0
    assert len(t.reward) == 4 and bool(start[1:].any()), "episodes begin within windows"
    for b in range(t.reward.shape[1]):
        for row in range(len(t.reward)):
            if not mini.weight[row, b]:
                continue
            first = max((k for k in range(row + 1) if start[k, b]), default=0)
            shown = [(t.extras["to_go"][k, b].item(), said(t.obs)[k, b], int(t.action[k, b]))
                     for k in range(first, row + 1)]  # fmt: skip
            logits = transformed(model, shown)
            total += log(sum(exp(x) for x in logits)) - logits[shown[-1][2]]
            count += 1
    model.net.float()
    loss = bench.algo.learn(mini, bench.agent.knobs(at), noise).metrics["loss"].item()
    assert loss == pytest.approx(total / count, rel=1e-4)


def test_acts_as_it_learns() -> None:
    """Row after row, with what each brought: the same logits as those of a whole window."""
    model, agent = (bench := made(asked=5.0)).algo.model, bench.agent
    obs, rewards = torch.randn(7, 2, 4), torch.tensor([[1.0, 0.5]]).expand(7, 2) * torch.arange(1, 8)[:, None]
    past, seen = agent.start(2), []
    for t in range(7):
        past = agent.paid(past, rewards[t - 1]) if t else past
        prediction = bench.algo.predict(obs[t][None], past, Noise(torch.rand(1, 2, 1), torch.zeros(1, 2, 0)))
        acted = bench.algo.exploit(prediction)
        seen.append((past.carried[0][0, :, 0], prediction.dist.logits[0], acted.action[0]))
        past = Past((), torch.zeros(1, 2, dtype=torch.bool), acted.carried)
    asked, _, actions = (torch.stack(each) for each in zip(*seen, strict=True))
    assert asked[:, 0].tolist() == [5.0, 4.0, 2.0, -1.0, -5.0, -10.0, -16.0]
    rows = [x[-4:].transpose(0, 1) for x in (asked, obs, torch.nn.functional.one_hot(actions, 3).float())]
    raw = model(*rows, torch.ones(2, 4, 4, dtype=torch.bool))[-1]  # type: ignore[operator]
    assert torch.allclose(raw.log_softmax(-1), seen[-1][1].log_softmax(-1), atol=1e-5)


def test_an_episode_starts_with_nothing_but_what_is_asked() -> None:
    bench = made(asked=5.0)
    agent, obs = bench.agent, torch.randn(2, 4)
    fresh = agent.predict(obs, agent.start(2))
    gone = agent.predict(torch.randn(2, 4), agent.start(2))
    past = agent.paid(Past((), torch.ones(1, 2, dtype=torch.bool), gone.carried), torch.ones(2))
    again = agent.predict(obs, past)
    assert all(map(torch.equal, fresh.carried, again.carried))
