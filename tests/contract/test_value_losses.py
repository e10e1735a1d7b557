"""Losses of the value-based algorithms beside the papers' formulas, row by row in float64, without ops."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

from ganglion.core import Progress
from tests.contract.worlds import DQN, MASKED, PPO, THREE, TWO, Bench, Case, over

Array = np.ndarray[Any, np.dtype[np.float64]]
SEEN = {"n_step": 3, "replay": {"kind": "prioritised"}}  # weights, discounts and masks that differ by row


class Update:
    """An update about to be made: its rows as arrays of float64, and what comes of it."""

    def __init__(self, algo: str, **settings: Any) -> None:
        case = Case(algo, algo, THREE, MASKED, over(DQN, **{**SEEN, **settings}))
        self.bench = Bench(case)
        self.mini, self.noise, self.at = self.bench.learnable()
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
    q, later, choice = (noisy(*each) for each in zip(nets, parts, *seen(u), strict=True))
    errors = [q[b, u.action[b]] - u.reward[b] - u.discount[b] * later[b, u.best(choice, b)] for b in u.rows]
    u.compare([huber(x) for x in errors], errors)


def noisy(net: Any, numbers: Array, obs: Any, past: Any) -> Array:
    """What the last two layers say, with the weights of Fortunato et al. 2018."""
    with torch.no_grad():
        x = array(net.net.body(net.encoder(obs, past)[0])[0])[0]
    head = net.net.head
    for layer in (head.inner, head.layer):
        inputs, outputs = layer.mean.in_features, layer.mean.out_features
        root = np.sign(numbers) * np.sqrt(abs(numbers))
        into, out, numbers = root[:inputs], root[inputs : inputs + outputs], numbers[inputs + outputs :]
        weight = array(layer.mean.weight) + array(layer.spread.weight) * np.outer(out, into)
        x = x @ weight.T + array(layer.mean.bias) + array(layer.spread.bias) * out
        x = np.maximum(x, 0) if layer is head.inner else x
    assert len(numbers) == 0
    return x


def seen(u: Update) -> tuple[list[Any], list[Any]]:
    t = u.t
    return [t.obs, t.next_obs, t.next_obs], [t.past, t.next_past, t.next_past]


def test_munchausen_dqn() -> None:
    """Vieillard et al. 2020: r + alpha [tau log pi(a|s)] + gamma sum_a' pi(a'|s') (q(s', a') - tau log pi)."""
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


@pytest.mark.parametrize("evaluation", ["vote", "mean"])
def test_bootstrapped_dqn(evaluation: str) -> None:
    """Osband et al. 2016 and 2018: each head's own double goal, the prior in every value, masked rows left out."""
    heads, scale = 4, 2.5
    u = Update("bootstrapped_dqn", heads=heads, prior=scale, share=0.5, evaluation=evaluation)
    prior, learned = u.algo.model.fixed, u.algo.model.learned
    q, choice = (read(learned) + scale * read(prior) for read in (u.now, u.later))
    later = u.later(u.algo.target) + scale * u.later(prior)
    learns = u.t.extras["learns"][0].numpy()
    assert 0 < learns.mean() < 1 and q.shape == (len(u.rows), heads, 3)
    losses, sizes = [], []
    for b in u.rows:
        best = [u.best(choice[:, k], b) for k in range(heads)]
        errors = [q[b, k, u.action[b]] - u.reward[b] - u.discount[b] * later[b, k, best[k]] for k in range(heads)]
        losses.append(sum(x * x for k, x in enumerate(errors) if learns[b, k]) / heads)
        sizes.append(sum(map(abs, errors)) / heads)
    with torch.no_grad():
        said = u.algo.predict(u.t.next_obs, u.t.next_past, u.noise).dist.mode()[0].tolist()
    for b in u.rows:
        votes = [sum(u.best(choice[:, k], b) == a for k in range(heads)) for a in range(3)]
        wins = choice[b].mean(0) if evaluation == "mean" else np.array(votes)
        assert wins[said[b]] == max(wins[a] for a in range(3) if u.legal[b, a]) and u.legal[b, said[b]]
    u.compare(losses, sizes)


def test_nfsp() -> None:
    """Heinrich and Silver 2016: Q-learning, and the log-likelihood of what best responses did, of legal actions."""
    u = Update("nfsp", reservoir=30, average_batch=16, anticipation=0.5)
    q, later, algo = u.now(u.algo.model.values), u.later(u.algo.target), u.algo
    errors = [q[b, u.action[b]] - u.reward[b] - u.discount[b] * later[b, u.best(later, b)] for b in u.rows]
    filled, kept = min(int(algo.reservoir.seen), 30), algo.reservoir.rows
    assert filled > 5
    index = [int(float(x) * filled) for x in u.noise.update.uniform]
    with torch.no_grad():
        obs = {name: x[index][None] for name, x in kept.items()}
        logits = array(algo.model.policy.value(obs, u.t.past)[0])[0]
    surprise = []
    for row, legal, action in zip(logits, obs["action_mask"][0].numpy(), algo.reservoir.action[index], strict=True):
        some = [a for a in range(3) if legal[a]]
        surprise.append(-log(softmax(row[some])[some.index(int(action))]))
    before = algo.average(u.noise.update.uniform)
    assert float(before) == pytest.approx(sum(surprise) / len(surprise), rel=1e-4)
    u.compare([x * x for x in errors], errors)
    assert float(algo.average(u.noise.update.uniform)) < float(before), "the average policy has learned"


# ------------------------------------------------------------ distributions


def projected(reward: float, discount: float, masses: list[float], low: float, high: float) -> list[float]:
    """Bellemare et al. 2017, algorithm 1, atom by atom."""
    n = len(masses)
    step, moved = (high - low) / (n - 1), [0.0] * n
    for j in range(n):
        at = (min(max(reward + discount * (low + j * step), low), high) - low) / step
        below = min(int(at), n - 2)
        moved[below] += masses[j] * (below + 1 - at)
        moved[below + 1] += masses[j] * (at - below)
    assert sum(moved) == pytest.approx(1.0)
    return moved


def test_c51() -> None:
    low, high, n = -2.0, 3.0, 11
    u = Update("c51", low=low, high=high, atoms=n)
    z = [low + i * (high - low) / (n - 1) for i in range(n)]
    logits, choice, later = u.now(u.algo.model), u.later(u.algo.model), u.later(u.algo.target)
    means = np.array([[sum(p * x for p, x in zip(softmax(a), z, strict=True)) for a in row] for row in choice])
    losses = []
    for b in u.rows:
        masses = projected(u.reward[b], u.discount[b], softmax(later[b, u.best(means, b)]), low, high)
        said = softmax(logits[b, u.action[b]])
        losses.append(-sum(m * log(p) for m, p in zip(masses, said, strict=True)))
    u.compare(losses)


def quantile_loss(said: Any, tau: Any, goal: list[float], kappa: float) -> float:
    """Dabney et al. 2018a: sum over i of the mean over j of rho(goal_j - said_i)."""
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


def test_iqn() -> None:
    """Dabney et al. 2018b; quantiles are read from the network one fraction at a time."""
    n, later_n, acts = 5, 4, 6
    u = Update("iqn", percentiles={"count": n}, target_percentiles={"count": later_n}, act_percentiles={"count": acts})
    model, target = u.algo.model, u.algo.target.net
    drawn = array(u.noise.uniform)[0]  # [B, n + n']
    assert drawn.shape[1] == n + later_n
    said, choice, later = features(u, model, False), features(u, model, True), features(u, target, True)
    losses = []
    for b in u.rows:
        fixed = [(i + 0.5) / acts for i in range(acts)]
        means = np.mean([quantiles(model, choice[b], f) for f in fixed], 0)
        best = max((a for a in range(3) if u.legal[b, a]), key=lambda a: means[a])
        goal = [u.reward[b] + u.discount[b] * quantiles(target, later[b], f)[best] for f in drawn[b, n:]]
        mine = [quantiles(model, said[b], f)[u.action[b]] for f in drawn[b, :n]]
        losses.append(quantile_loss(mine, drawn[b, :n], goal, 1.0))
    u.compare(losses)


def features(u: Update, net: Any, ahead: bool) -> Array:
    obs, past = (u.t.next_obs, u.t.next_past) if ahead else (u.t.obs, u.t.past)
    with torch.no_grad():
        return array(net.features(obs, past)[0])[0]


def quantiles(net: Any, x: Array, fraction: float) -> Array:
    """One value per action: relu(sum_i cos(pi i tau) w_i + b) scales the features, two layers read the product."""
    cosines = np.cos(np.pi * np.arange(net.cosines) * fraction)
    scale = np.maximum(array(net.embed.weight) @ cosines + array(net.embed.bias), 0)
    merged = np.maximum(array(net.merge.weight) @ (x * scale) + array(net.merge.bias), 0)
    return array(net.head.layer.weight) @ merged + array(net.head.layer.bias)


@pytest.mark.parametrize("sample", ["const", "median"])
def test_percentiles_that_are_not_drawn(sample: str) -> None:
    u = Update("iqn", percentiles={"sample": sample, "count": 4}, act_percentiles={"sample": "uniform", "count": 3})
    tau = u.algo.cfg.percentiles(torch.zeros(1, 2, 0))
    assert tau.tolist() == [[[0.125, 0.375, 0.625, 0.875]] * 2 if sample == "const" else [[0.5]] * 2]
    still = u.algo.neutral(u.t.past.start)
    assert still.uniform.shape[-1] == 3 and still.uniform[0, 0].tolist() == pytest.approx([1 / 6, 0.5, 5 / 6])


def test_fqf() -> None:
    """Yang et al. 2019: quantiles at the middles of proposed fractions, and the Wasserstein distance of both."""
    n = 5
    u = Update("fqf", fractions=n, entropy=0.0)
    model, target = u.algo.model, u.algo.target.net
    said, choice, later = features(u, model.net, False), features(u, model.net, True), features(u, target.net, True)
    weight, bias = array(model.proposal.weight), array(model.proposal.bias)

    def proposed(x: Array) -> list[float]:
        widths = softmax(weight @ x + bias)
        return [sum(widths[:i]) for i in range(n)] + [1.0]

    losses, slope = [], np.zeros_like(bias)
    for b in u.rows:
        tau, ahead = proposed(said[b]), proposed(choice[b])
        means = sum((y - x) * quantiles(model.net, choice[b], (x + y) / 2) for x, y in pairwise(ahead))
        best = max((a for a in range(3) if u.legal[b, a]), key=lambda a: means[a])
        middle = [(x + y) / 2 for x, y in pairwise(tau)]
        goal = [u.reward[b] + u.discount[b] * quantiles(target.net, later[b], f)[best] for f in middle]
        mine = [quantiles(model.net, said[b], f)[u.action[b]] for f in middle]
        losses.append(quantile_loss(mine, middle, goal, 1.0))
        widths = np.diff(tau)
        for i in range(1, n):  # d W / d tau_i, times d tau_i / d logits
            moved = 2 * quantiles(model.net, said[b], tau[i])[u.action[b]] - mine[i] - mine[i - 1]
            for k in range(n):
                slope[k] += u.weight[b] * moved * widths[k] * ((k < i) - tau[i])
    before = array(u.algo.fraction_optim.mean[1]).copy()
    u.compare(losses)
    gradient = (array(u.algo.fraction_optim.mean[1]) - 0.9 * before) / 0.1  # Adam's mean was 0.9 of the one before
    assert gradient == pytest.approx(slope / sum(u.weight > 0), rel=1e-2, abs=1e-5)


def test_rainbow() -> None:
    """C51's masses under noisy, dueling layers written out; priorities are Kullback-Leibler divergences."""
    low, high, n = -2.0, 3.0, 7
    u = Update("rainbow", low=low, high=high, atoms=n)
    nets, parts = (u.algo.model, u.algo.target.net, u.algo.model), np.split(array(u.noise.update.normal), 3)
    logits, later, choice = (noisy(*each).reshape(-1, 4, n) for each in zip(nets, parts, *seen(u), strict=True))
    logits, later, choice = (x[:, 3:] + x[:, :3] - x[:, :3].mean(1, keepdims=True) for x in (logits, later, choice))
    z = [low + i * (high - low) / (n - 1) for i in range(n)]
    means = np.array([[sum(p * x for p, x in zip(softmax(a), z, strict=True)) for a in row] for row in choice])
    losses, apart = [], []
    for b in u.rows:
        masses = projected(u.reward[b], u.discount[b], softmax(later[b, u.best(means, b)]), low, high)
        said = softmax(logits[b, u.action[b]])
        losses.append(-sum(m * log(p) for m, p in zip(masses, said, strict=True)))
        apart.append(losses[-1] + sum(m * log(m) for m in masses if m > 0))
    u.compare(losses, apart)


# ------------------------------------------------------------ rollouts and sequences


def test_pqn() -> None:
    """Gallici et al. 2025: G_t = r_t + gamma (lam G_t+1 + (1 - lam) max_a Q(s_t+1, a)), backwards by hand."""
    lam, gamma = 0.7, 0.9
    settings = over(PPO, lam=lam, gamma=gamma, epochs=1, minibatches=1, net={"norm": "layer"})
    bench = Bench(Case("pqn", "pqn", THREE, MASKED, settings))
    at = Progress()
    while not bench.learner.owes(at):
        at = bench.explorer.step(at).at
    r = bench.learner.buffer.take(torch.empty(0), at)
    net, (after, past) = bench.algo.model, r.last
    with torch.no_grad():
        q, last = array(net.value(r.obs, r.past)[0]), array(net.value(after, past)[0])[0]
    legal, legal_last = r.obs["action_mask"].numpy(), after["action_mask"][0].numpy()
    rows, slots = r.reward.shape
    assert (r.cut & (r.discount > 0)).any(), "a time limit is among them"
    losses = []
    for b in range(slots):
        goal = 0.0
        for t in reversed(range(rows)):
            ends = t == rows - 1
            best = max(last[b][legal_last[b]]) if ends else max(q[t + 1, b][legal[t + 1, b]])
            mixed = best if ends or r.cut[t, b] else lam * goal + (1 - lam) * best
            goal = float(r.reward[t, b]) + float(r.discount[t, b]) * mixed
            if r.valid[t, b]:
                losses.append(0.5 * (q[t, b, int(r.action[t, b])] - goal) ** 2)
    assert r.discount.unique().tolist() == pytest.approx([0.0, gamma])
    update = bench.learner.step(at)
    assert float(update.metrics["loss"]) == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def h(x: float, eps: float) -> float:
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x)


def unscaled(x: float, eps: float) -> float:
    """The inverse of h, found by halving."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle, eps) < x else (low, middle)
    return low


def test_r2d2() -> None:
    """Kapturowski et al. 2019: rescaled n-step double goals, stored memories, eta max + (1 - eta) mean."""
    eps, eta, burn = 1e-2, 0.8, 3
    settings = over(
        DQN, n_step=2, rescale=eps, eta=eta, net={"memory_size": 8}, replay={"sequence": 7, "burn_in": burn}
    )
    bench = Bench(Case("r2d2", "r2d2", THREE, MASKED, settings))
    mini, noise, at = bench.learnable()
    model, target, t = bench.algo.model, bench.algo.target, mini.data
    with torch.no_grad():
        q, choice = array(model.value(t.obs, t.past)[0]), array(model.value(t.next_obs, t.next_past)[0])
        later = array(target.value(t.next_obs, t.next_past)[0])
    legal, losses, priorities = t.next_obs["action_mask"].numpy(), [], []
    for b in range(t.reward.shape[1]):
        errors = []
        for k in range(burn, t.reward.shape[0]):
            if mini.weight[k, b] > 0:
                s = int(t.ahead[k, b])
                best = max((a for a in range(3) if legal[s, b, a]), key=lambda a: choice[s, b, a])
                goal = h(float(t.reward[k, b]) + float(t.discount[k, b]) * unscaled(later[s, b, best], eps), eps)
                errors.append(q[k, b, int(t.action[k, b])] - goal)
                losses.append(float(mini.weight[k, b]) * 0.5 * errors[-1] ** 2)
        sizes = [abs(x) for x in errors]
        priorities.append(eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes) if sizes else 0.0)
    update = bench.algo.learn(mini, bench.agent.knobs(at), noise)
    assert float(update.metrics["loss"]) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert update.priority.tolist() == pytest.approx(priorities, rel=1e-3, abs=1e-5)


def test_r2d2_burns_in_without_a_gradient() -> None:
    """Rows of the burn-in bring the memory up to date; what they were seen as takes no part in the gradient."""
    settings = over(DQN, net={"memory_size": 8}, replay={"sequence": 5, "burn_in": 2})
    bench = Bench(Case("r2d2", "r2d2", TWO, settings=settings))
    mini, *_ = bench.learnable()
    t = mini.data._replace(obs=mini.data.obs.clone().requires_grad_())
    q, _ = bench.algo.model.value(t.obs, t.past)
    q.sum().backward()
    assert (t.obs.grad[:2] == 0).all() and (t.obs.grad[2:] != 0).any()
    bench.algo.model.burn_in = 0
    torch.testing.assert_close(q, bench.algo.model.value(t.obs, t.past)[0])


def shown(t: Any) -> Any:
    """Every third row demonstrated."""
    demo = (torch.arange(t.reward.shape[1]) % 3 == 0).float()[None].clone()
    return t._replace(extras={**t.extras, "demo": demo})


def test_dqfd() -> None:
    seen = Update("dqfd", margin=0.5, weight_margin=2.0, decay=0.0, bonus_shown=0.7, bonus_own=0.1)
    seen.mini = seen.mini._replace(data=shown(seen.mini.data))
    demo, legal = seen.mini.data.extras["demo"][0].tolist(), seen.t.obs["action_mask"][0].tolist()
    q, chooser, later = seen.now(seen.algo.model), seen.later(seen.algo.model), seen.later(seen.algo.target.net)
    errors = [
        q[b, seen.action[b]] - seen.reward[b] - seen.discount[b] * later[b, seen.best(chooser, b)] for b in seen.rows
    ]
    margins = []
    for b in seen.rows:
        others = [q[b, a] + (0.0 if a == seen.action[b] else 0.5) for a in range(q.shape[1]) if legal[b][a]]
        margins.append(demo[b] * (max(others) - q[b, seen.action[b]]))
    live = [b for b in seen.rows if seen.weight[b] > 0]
    mean = lambda x: sum(seen.weight[b] * x[b] for b in live) / len(live)  # noqa: E731
    update = seen.algo.learn(seen.mini, seen.bench.agent.knobs(Progress()), seen.noise)
    assert float(update.metrics["loss"]) == pytest.approx(mean([huber(x) for x in errors]), rel=1e-4)
    assert float(update.metrics["margin"]) == pytest.approx(mean(margins), rel=1e-4)
    rated = [(abs(errors[b]) + (0.7 if demo[b] else 0.1)) if b in live else 0.0 for b in seen.rows]
    assert update.priority.tolist() == pytest.approx(rated, rel=1e-3, abs=1e-4)
