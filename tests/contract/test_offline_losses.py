"""Losses of learning from data against the papers' formulas: row by row, in float64, without `ops`."""

from __future__ import annotations

from math import exp, log, pi
from typing import Any

import numpy as np
import pytest
import torch

from ganglion import ops
from tests.contract.test_control_losses import HIGH, LOW, Learned, exact, exact_inputs, said, sampled, samples
from tests.contract.worlds import ARM, DQN, SAC, THREE, Bench, Case, over

__all__ = ["exact_inputs"]  # networks read observations as they come
HALF = (HIGH - LOW) / 2


def gaussian(raw: Any, action: Any) -> float:
    """The log-density of a normal with a mean and log deviations side by side."""
    size = len(LOW)
    total = 0.0
    for i in range(size):
        mean, std = raw[i], exp(raw[size + i])
        total += -0.5 * ((action[i] - mean) / std) ** 2 - log(std) - 0.5 * log(2 * pi)
    return total


def test_td3_bc() -> None:
    seen = Learned("td3_bc", net={"normalise": False})
    t, before, between = seen.t, seen.before, seen.between
    action = said(before.target.action(t.next_obs, t.next_past)[0])[0]
    noise = np.clip(0.2 * seen.normal(0, 1), -0.5, 0.5) * HALF
    smoothed = np.clip(action + noise, LOW, HIGH)
    after = said(before.target.value(t.next_obs, t.next_past, t.action.new_tensor(smoothed)[None])[0])[:, 0].min(0)
    q = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    errors = {b: sum((q[k, b] - seen.target(b, after[b])) ** 2 for k in range(2)) for b in seen.rows}
    assert seen.metrics["critic"] == pytest.approx(seen.mean(errors), rel=1e-4)

    own = between.model.action(t.obs, t.past)[0]
    worth = said(between.model.value(t.obs, t.past, own)[0])[0, 0]
    given, chosen = said(t.action)[0], said(own)[0]
    scale = 2.5 / seen.mean({b: abs(worth[b]) for b in seen.rows})
    cloning = seen.mean({b: float((((chosen[b] - given[b]) / HALF) ** 2).mean()) for b in seen.rows})
    assert seen.metrics["cloning"] == pytest.approx(cloning, rel=1e-4)
    assert seen.metrics["actor"] == pytest.approx(cloning - scale * seen.mean(dict(enumerate(worth))), rel=1e-4)


def test_iql() -> None:
    seen = Learned("iql", expectile=0.8, beta=2.0)
    t, before = seen.t, seen.before
    judged = said(before.target.value(t.obs, t.past, t.action)[0])[:, 0].min(0)
    value = said(before.model.states.value(t.obs, t.past)[0])[0]
    after = said(before.model.states.value(t.next_obs, t.next_past)[0])[0]
    q = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    raw, given = said(before.model.action(t.obs, t.past)[0])[0], said(t.action)[0]
    gap = judged - value
    expectile = {b: abs(0.8 - (gap[b] < 0)) * gap[b] ** 2 for b in seen.rows}
    errors = {b: sum((q[k, b] - seen.target(b, after[b])) ** 2 for k in range(2)) for b in seen.rows}
    copied = {b: -min(exp(2.0 * gap[b]), 100.0) * gaussian(raw[b], given[b]) for b in seen.rows}
    assert seen.metrics["value_loss"] == pytest.approx(seen.mean(expectile), rel=1e-4)
    assert seen.metrics["critic"] == pytest.approx(seen.mean(errors), rel=1e-4)
    assert seen.metrics["actor"] == pytest.approx(seen.mean(copied), rel=1e-4)


def test_awac() -> None:
    seen = Learned("awac", temperature=0.5)
    t, before = seen.t, seen.before
    later, now = seen.normal(0), seen.normal(1)

    def drawn(raw: Any, normal: Any) -> Any:
        size = len(LOW)
        return np.clip(raw[:, :size] + np.exp(raw[:, size:]) * normal, LOW, HIGH)

    next_raw, raw = (said(before.model.action(*pair)[0])[0] for pair in ((t.next_obs, t.next_past), (t.obs, t.past)))
    bring = lambda x: t.action.new_tensor(x)[None]  # noqa: E731
    after = said(before.target.value(t.next_obs, t.next_past, bring(drawn(next_raw, later)))[0])[:, 0].min(0)
    own = said(before.model.value(t.obs, t.past, bring(drawn(raw, now)))[0])[:, 0].min(0)
    q, given = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0], said(t.action)[0]
    errors = {b: sum((q[k, b] - seen.target(b, after[b])) ** 2 for k in range(2)) for b in seen.rows}
    gap = q.min(0) - own
    copied = {b: -min(exp(gap[b] / 0.5), 100.0) * gaussian(raw[b], given[b]) for b in seen.rows}
    assert seen.metrics["critic"] == pytest.approx(seen.mean(errors), rel=1e-4)
    assert seen.metrics["actor"] == pytest.approx(seen.mean(copied), rel=1e-4)


def test_cql() -> None:
    looks = 3
    seen = Learned("cql", looks=looks, temperature=0.3)
    t, before, size = seen.t, seen.before, len(LOW)
    normal, uniform = seen.noise.normal[0].double().numpy(), seen.noise.uniform[0].double().numpy()
    next_raw, raw = (said(before.model.action(*pair)[0])[0] for pair in ((t.next_obs, t.next_past), (t.obs, t.past)))
    q = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    gaps, errors = {}, {}
    for b in seen.rows:
        action, logp = sampled(next_raw[b], normal[b, :size])
        goal = seen.target(b, float(critics(before.target, t, b, action, later=True).min()) - 0.3 * logp)
        errors[b] = sum((q[k, b] - goal) ** 2 for k in range(2))
        terms: list[Any] = []
        for j in range(looks):
            spread = LOW + (HIGH - LOW) * uniform[b, j * size : (j + 1) * size]
            terms.append(critics(before.model, t, b, spread) + np.log(HIGH - LOW).sum())
            for which, at in ((raw, 2 * size), (next_raw, (2 + looks) * size)):
                chosen, density = sampled(which[b], normal[b, at + j * size : at + (j + 1) * size])
                terms.append(critics(before.model, t, b, chosen) - density)
        gaps[b] = float((np.log(np.mean(np.exp(terms), 0)) - q[:, b]).sum())
    assert seen.metrics["critic"] == pytest.approx(seen.mean(errors), rel=1e-4)
    assert seen.metrics["gap"] == pytest.approx(seen.mean(gaps), rel=1e-4, abs=1e-5)


def critics(nets: Any, t: Any, b: int, action: Any, later: bool = False) -> Any:
    """What both critics say of one action at one row."""
    obs, past = (t.next_obs, t.next_past) if later else (t.obs, t.past)
    whole = t.action.clone()
    whole[0, b] = whole.new_tensor(action)
    return said(nets.value(obs, past, whole)[0])[:, 0, b]


def test_conservative_dqn() -> None:
    bench = Bench(Case("dqn", "dqn", THREE, settings=over(DQN, conservative=0.7, loss="mse")))
    mini, noise, at = bench.learnable()
    own: Any = bench.algo
    t: Any = ops.map_tree(lambda x: x.double() if x.is_floating_point() else x, mini.data)
    before = exact(own)
    q, next_q = (said(before.model.value(*pair)[0])[0] for pair in ((t.obs, t.past), (t.next_obs, t.next_past)))
    judged = said(before.target.net.value(t.next_obs, t.next_past)[0])[0]
    rows, loss = [b for b in range(len(q)) if mini.weight[0, b] > 0], 0.0
    for b in rows:
        taken = q[b, t.action[0, b]]
        goal = t.reward[0, b].item() + t.discount[0, b].item() * judged[b, next_q[b].argmax()]
        loss += ((taken - goal) ** 2 + 0.7 * (log(sum(exp(x) for x in q[b])) - taken)) / len(rows)
    assert own.learn(mini, bench.agent.knobs(at), noise).metrics["loss"].item() == pytest.approx(loss, rel=1e-4)


def test_bc() -> None:
    bench = Bench(Case("bc", "bc", THREE, settings=SAC))
    mini, noise, at = bench.learnable()
    own: Any = bench.algo
    raw, taken = (
        said(exact(own).model.action(mini.data.obs.double(), mini.data.past)[0])[0],
        mini.data.action[0].tolist(),
    )
    rows = [b for b in range(len(raw)) if mini.weight[0, b] > 0]
    loss = sum(log(sum(exp(x) for x in raw[b])) - raw[b, taken[b]] for b in rows) / len(rows)
    assert own.learn(mini, bench.agent.knobs(at), noise).metrics["loss"].item() == pytest.approx(loss, rel=1e-4)


def test_rebrac() -> None:
    bench = Bench(Case("rebrac", "rebrac", ARM, settings=over(SAC, beta_actor=0.3, beta_critic=0.2)))
    mini, noise, at = bench.learnable()
    own: Any = bench.algo
    before, knobs = exact(own), bench.agent.knobs(at)
    told = {k: v.item() for k, v in own.learn(mini, knobs, noise).metrics.items()}
    between = exact(own)
    told |= {k: v.item() for k, v in own.learn_late(mini, knobs, noise).items()}
    t: Any = ops.map_tree(lambda x: x.double() if x.is_floating_point() else x, mini.data)
    assert t.reward.shape[0] == 2
    rows = [b for b in range(t.reward.shape[1]) if mini.weight[0, b] > 0]
    action = said(before.target.action(t.next_obs, t.next_past)[0])[0]
    shaken = np.clip(action + np.clip(0.2 * noise.normal[0].double().numpy(), -0.5, 0.5) * HALF, LOW, HIGH)
    both = t.action.clone()
    both[0] = both.new_tensor(shaken)
    after = said(before.target.value(t.next_obs, t.next_past, both)[0])[:, 0].min(0)
    q = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    following, known = said(t.action)[1], said(t.valid)[1] & ~said(t.cut)[0]
    errors = 0.0
    for b in rows:
        far = float((((shaken[b] - following[b]) / HALF) ** 2).sum()) if known[b] else 0.0
        goal = t.reward[0, b].item() + t.discount[0, b].item() * (after[b] - 0.2 * far)
        errors += sum((q[k, b] - goal) ** 2 for k in range(2)) / len(rows)
    assert told["critic"] == pytest.approx(errors, rel=1e-4)
    assert any(known[b] for b in rows) and not all(known[b] for b in rows)

    chosen = between.model.action(t.obs, t.past)[0]
    worth = said(between.model.value(t.obs, t.past, chosen)[0])[0, 0]
    cloning = np.mean([(((said(chosen)[0, b] - said(t.action)[0, b]) / HALF) ** 2).sum() for b in rows])
    scale = 1 / np.mean([abs(worth[b]) for b in rows])
    assert told["actor"] == pytest.approx(0.3 * cloning - scale * np.mean([worth[b] for b in rows]), rel=1e-4)


def test_edac() -> None:
    """An et al. 2021, equation 6: how alike the slopes of two critics along the action are, over all pairs."""
    count, size, half = 4, len(LOW), torch.tensor(HALF)
    seen = Learned("edac", critics=count, temperature=0.3)
    t, before = seen.t, seen.before
    later, logp = samples(before.model, t.next_obs, t.next_past, seen.normal(0))
    after = said(before.target.value(t.next_obs, t.next_past, later)[0])[:, 0].min(0) - 0.3 * logp
    q = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    errors = {b: sum((q[k, b] - seen.target(b, after[b])) ** 2 for k in range(count)) for b in seen.rows}
    assert seen.metrics["critic"] == pytest.approx(seen.mean(errors), rel=1e-4)

    slopes = np.zeros((count, len(q[0]), size))
    for i in range(size):
        moved = t.action.clone()
        moved[..., i] += 0.2 * half[i]
        slopes[:, :, i] = (said(before.model.value(t.obs, t.past, moved)[0])[:, 0] - q) / 0.2
    alike = {}
    for b in seen.rows:
        pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
        cosine = lambda x, y: float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y))  # noqa: E731
        alike[b] = sum(cosine(slopes[i, b], slopes[j, b]) for i, j in pairs) / (count - 1)
    assert seen.metrics["likeness"] == pytest.approx(seen.mean(alike), rel=1e-2, abs=1e-3)


def test_bcq() -> None:
    """Fujimoto et al. 2019, algorithm 1: of actions that come from codes, number by number."""
    looks = 3
    seen = Learned("bcq", looks=looks, reach=0.2, least=0.75, kl=0.5)
    t, before, size = seen.t, seen.before, 2 * len(LOW)
    made, after, old_actor = before.model.generator, seen.after.model.generator, before.target_actor.double().net
    numbers = seen.noise.normal[0].double().numpy()  # [B, (looks + 2) codes]
    unit = (said(t.action)[0] - LOW) / HALF - 1

    def network(part: Any, *inputs: Any) -> Any:
        return said(part(torch.cat([torch.as_tensor(np.array(x))[None, None] for x in inputs], -1).double()))[0, 0]

    def generated(generator: Any, actor: Any, obs: Any, code: Any) -> Any:
        drawn = np.tanh(network(generator.outward, obs, np.clip(code, -0.5, 0.5)))
        moved = np.clip(drawn + 0.2 * np.tanh(network(actor.net, obs, drawn)), -1, 1)
        return LOW + (moved + 1) * HALF

    copied, apart, errors, worth = {}, {}, {}, {}
    q = said(before.model.value(t.obs, t.past, t.action)[0])[:, 0]
    for b in seen.rows:
        obs, next_obs = said(t.obs)[0, b], said(t.next_obs)[0, b]
        mean, spread = np.split(network(made.inward, obs, unit[b]), 2)
        back = np.tanh(network(made.outward, obs, mean + np.exp(spread) * numbers[b, :size]))
        copied[b] = float(((back - unit[b]) ** 2).mean())
        apart[b] = float((0.5 * (mean**2 + np.exp(2 * spread) - 1 - 2 * spread)).mean())
        codes = numbers[b, 2 * size :].reshape(looks, size)
        tries = [generated(after, old_actor, next_obs, code) for code in codes]
        judged = [critics(before.target, t, b, action, later=True) for action in tries]
        goal = seen.target(b, max(0.75 * min(pair) + 0.25 * max(pair) for pair in judged))
        errors[b] = sum((q[k, b] - goal) ** 2 for k in range(2))
        own = generated(after, before.model.actor, obs, numbers[b, size : 2 * size])
        worth[b] = -float(critics(seen.after.model, t, b, own)[0])
    assert seen.metrics["copied"] == pytest.approx(seen.mean(copied), rel=1e-4)
    assert seen.metrics["kl"] == pytest.approx(seen.mean(apart), rel=1e-4)
    assert seen.metrics["critic"] == pytest.approx(seen.mean(errors), rel=1e-4)
    assert seen.metrics["actor"] == pytest.approx(seen.mean(worth), rel=1e-4)


@pytest.mark.parametrize("threshold", [0.0, 0.97, 1.0])
def test_discrete_bcq(threshold: float) -> None:
    """Values of the next row are of choices whose probability is at least so much of the likeliest one's."""
    settings = over(DQN, threshold=threshold, loss="mse")
    bench = Bench(Case("discrete_bcq", "discrete_bcq", THREE, settings=settings))
    mini, noise, at = bench.learnable()
    t, own = mini.data, bench.algo
    now, later = ([said(x.double())[0] for x in own.model.both(*pair)[:2]]  # type: ignore[operator]
                  for pair in ((t.obs, t.past), (t.next_obs, t.next_past)))  # fmt: skip
    judged = said(own.target.value(t.next_obs, t.next_past)[0].double())[0]  # type: ignore[attr-defined]
    rows, td, copied, chosen = [b for b in range(len(judged)) if mini.weight[0, b] > 0], 0.0, 0.0, set()
    for b in rows:
        likely = {a: exp(later[1][b, a]) for a in range(3)}
        usual = [a for a, p in likely.items() if p / max(likely.values()) >= threshold]
        best = max(usual, key=lambda a: later[0][b, a])
        chosen.add(len(usual))
        taken = int(t.action[0, b])
        goal = t.reward[0, b].item() + t.discount[0, b].item() * judged[b, best]
        td += (now[0][b, taken] - goal) ** 2 / len(rows)
        copied += (log(sum(exp(now[1][b, a]) for a in range(3))) - now[1][b, taken]) / len(rows)
    assert max(chosen) > 1 or threshold == 1.0
    metrics = own.learn(mini, bench.agent.knobs(at), noise).metrics
    assert metrics["loss"].item() == pytest.approx(td, rel=1e-4)
    assert metrics["copied"].item() == pytest.approx(copied, rel=1e-4)
