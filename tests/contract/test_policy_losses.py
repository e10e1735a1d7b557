"""Each loss against its paper's formula, row by row in float64: the metrics, and the gradient of every parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Progress, Rollout
from tests.contract.worlds import ACER, IMPALA, PPG, PPO, RND, ROLLOUT, SMALL_REPLAY, THREE, TWO, Bench, Case, over

HUGE = {"max_norm": 1e9}  # no gradient is clipped


class Learned:
    """One update: what it said, and the gradient each optimiser was given."""

    def __init__(self, case: Case) -> None:
        self.bench = Bench(case)
        self.mini, self.noise, at = self.bench.learnable()
        self.knobs = self.bench.agent.knobs(at)
        self.grads: list[Tensor] = []
        self.algo: Any = self.bench.algo

    def update(self, optim: str = "optim") -> dict[str, Tensor]:
        getattr(self.algo, optim).apply = lambda grads, lr: self.grads.extend(grads)
        return dict(self.algo.learn(self.mini, self.knobs, self.noise).metrics)

    def compare(self, loss: Tensor, params: list[Tensor]) -> None:
        """The loss is a float64 sum made from the model's own outputs."""
        exact = torch.autograd.grad(loss, params, allow_unused=True)
        for found, grad in zip(self.grads, exact, strict=True):
            wanted = torch.zeros_like(found) if grad is None else grad
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


def rows(r: Rollout) -> Iterator[tuple[int, int]]:
    """Rows to learn from, backwards in time."""
    for t in reversed(range(r.reward.shape[0])):
        for b in range(r.reward.shape[1]):
            yield t, b


def near(found: Tensor, exact: Any) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(exact).detach().double(), rtol=1e-4, atol=1e-6)


def read(algo: Any, r: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities [T, B, A], values [T, B] and what follows each row [T, B], in float64."""
    raw, value, _ = algo.model.action_and_value(r.obs, r.past)
    last = algo.model.action_and_value(*r.last)[1]
    return raw.double().log_softmax(-1), value.double(), torch.cat([value[1:], last]).double().detach()


@pytest.mark.parametrize(
    "case",
    [
        Case("a2c", "a2c", TWO, settings=over(ROLLOUT, entropy=0.03, **HUGE)),
        Case("value", "reinforce", TWO, settings=over(ROLLOUT, entropy=0.03, normalise=False, **HUGE)),
    ],
    ids=lambda case: case.algo,
)
def test_whole_returns_less_a_baseline(case: Case) -> None:
    """Mnih et al. 2016, algorithm S3: R <- r + gamma R from the rollout's end; d log pi (R - V) + d (R - V)^2 / 2.
    Beyond a time limit, and beyond the rollout, R is V of the true last observation."""
    one = Learned(case)
    r, algo = one.mini, one.algo
    logp, value, after = read(algo, r)
    actor = critic = entropy = torch.zeros((), dtype=torch.float64)
    goal: dict[tuple[int, int], Tensor] = {}
    for t, b in rows(r):
        beyond = after[t, b] if r.cut[t, b] or t == len(r.reward) - 1 else goal[t + 1, b]
        goal[t, b] = r.reward[t, b].double() + r.discount[t, b].double() * beyond
        if r.valid[t, b]:
            surprise = goal[t, b] - value[t, b]
            actor = actor - logp[t, b, r.action[t, b]] * surprise.detach()
            critic = critic + surprise.square() / 2
            entropy = entropy - (logp[t, b].exp() * logp[t, b]).sum()
    count = int(r.valid.sum())
    metrics = one.update()
    near(metrics["actor"], actor / count)
    near(metrics["value"], critic / count)
    near(metrics["entropy"], entropy / count)
    one.compare((actor + 0.5 * critic - 0.03 * entropy) / count, list(algo.model.parameters()))


def test_reinforce_without_a_baseline_learns_from_whole_returns_alone() -> None:
    """Williams 1992: d log pi(a) G. Rows whose episode does not terminate within the rollout have no G."""
    one = Learned(Case("none", "reinforce", TWO, settings=over(ROLLOUT, baseline="none", normalise=False, **HUGE)))
    r, algo = one.mini, one.algo
    logp, _, _ = read(algo, r)
    actor = entropy = torch.zeros((), dtype=torch.float64)
    goal: dict[tuple[int, int], float | None] = {}
    count = 0
    for t, b in rows(r):
        ended, cut = bool(r.discount[t, b] == 0), bool(r.cut[t, b])
        later = 0.0 if ended else None if cut or t == len(r.reward) - 1 else goal[t + 1, b]
        goal[t, b] = None if later is None else float(r.reward[t, b]) + float(r.discount[t, b]) * later
        if r.valid[t, b] and (whole := goal[t, b]) is not None:
            count += 1
            actor = actor - logp[t, b, r.action[t, b]] * whole
            entropy = entropy - (logp[t, b].exp() * logp[t, b]).sum()
    assert 0 < count < int(r.valid.sum()), "some returns are whole, some are not"
    metrics = one.update()
    near(metrics["actor"], actor / count)
    near(metrics["complete"], count / int(r.valid.sum()))
    one.compare((actor - 0.01 * entropy) / count, list(algo.model.parameters()))


def test_acer_is_retrace_truncation_correction_and_trust_region() -> None:
    """Wang et al. 2017: equations 5 (Retrace), 9 (the truncated gradient and its correction) and 12 (trust region)."""
    settings = over(ACER, clip=1.05, limit=0.02, lam=0.9, entropy=0.0, **HUGE)
    one = Learned(Case("acer", "acer", THREE, settings=settings))
    r, algo, weight = one.mini.data, one.algo, one.mini.weight
    with torch.no_grad():  # everybody has grown apart
        for k, p in enumerate((*algo.model.parameters(), *algo.average.net.parameters())):
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    raw, q, _ = algo.model.action_and_values(r.obs, r.past)
    last_raw, last_q, _ = algo.model.action_and_values(*r.last)
    pi, q = raw.double().softmax(-1), q.double()
    mu, average = r.extras["log_probs"].double().exp(), algo.average.action(r.obs, r.past)[0].double().softmax(-1)
    value = torch.cat([(pi * q).sum(-1), (last_raw.double().softmax(-1) * last_q.double()).sum(-1)]).detach()
    actor = critic = torch.zeros((), dtype=torch.float64)
    goal: dict[tuple[int, int], Tensor] = {}
    bent = corrected = 0
    for t, b in rows(r):
        beyond = value[t + 1, b]
        if t < len(r.reward) - 1 and not r.cut[t, b]:
            a = r.action[t + 1, b]
            ratio = pi[t + 1, b, a] / mu[t + 1, b, a]
            beyond = beyond + 0.9 * ratio.clamp(max=1) * (goal[t + 1, b] - q[t + 1, b, a])
        goal[t, b] = (r.reward[t, b].double() + r.discount[t, b].double() * beyond).detach()
        if weight[t, b] == 0:
            continue
        a, here, rho = r.action[t, b], pi[t, b].detach(), (pi[t, b] / mu[t, b]).detach()
        gradient = (1 - 1.05 / rho).clamp(min=0) * (q[t, b].detach() - value[t, b])
        corrected += int((gradient != 0).sum())
        gradient[a] += rho[a].clamp(max=1.05) * (goal[t, b] - value[t, b]) / here[a]
        k = -average[t, b] / here
        over_limit = (k @ gradient - 0.02) / (k @ k)
        bent += int(over_limit > 0)
        step = gradient - over_limit.clamp(min=0) * k
        actor = actor - (step.detach() * pi[t, b]).sum()
        critic = critic + (goal[t, b] - q[t, b, a]).square() / 2
    count = int((weight > 0).sum())
    assert bent > 3 and corrected > 3
    metrics = one.update()
    near(metrics["actor"], actor / count)
    near(metrics["value"], critic / count)
    one.compare((actor + 0.5 * critic) / count, list(algo.model.parameters()))


def layers(embedding: Any, x: Tensor) -> Tensor:
    """A perceptron of relus and its linear head in float64."""
    weights = [w.double()[0] for w in embedding.net.body.weights()]
    for k in range(0, len(weights), 2):
        x = (x @ weights[k] + weights[k + 1]).relu()
    return x @ embedding.net.head.weight.double().t() + embedding.net.head.bias.double()


def test_rnd_pays_for_what_the_guess_misses() -> None:
    """Burda et al. 2019: i_t = ||guess(s_t+1) - truth(s_t+1)||^2 of normalised observations, clipped and divided by its
    running deviation. It is added to the reward; the guess alone learns it."""
    one = Learned(Case("rnd", "impala", TWO, settings=over(IMPALA, bonus=over(RND, scale=0.7, episodic=True))))
    algo, buffer = one.algo, one.bench.learner.buffer
    r, bonus, mini = buffer.take(torch.empty(0), None), algo.bonus, one.mini.mini
    after = torch.cat([r.obs[1:], r.last[0]])  # row t + 1 is the true last observation where an episode ends
    moments = bonus.guess.encoder.norm.moments
    x = ((after.double() - moments.mean) / (moments.var + 1e-8).sqrt()).clamp(-10, 10)
    error = (layers(bonus.guess, x) - layers(bonus.truth, x)).square().mean(-1)
    worth = torch.where(r.valid, 0.7 * error.detach() / bonus.square.double().sqrt(), 0.0)
    near(mini.reward, r.reward.double() + worth)
    assert float(moments.count) > 0 and float(bonus.updates) == 1, "it has seen rows, and learned once"
    square, rows_seen = float(bonus.square), error[r.valid].detach()
    assert not any(p.requires_grad for p in bonus.truth.parameters())
    metrics = one.update()
    near(metrics["bonus_loss"], rows_seen.mean())
    one.compare(error[r.valid].mean(), list(bonus.guess.parameters()))
    near(bonus.square, (square + float(rows_seen.square().mean())) / 2)


@pytest.mark.parametrize("episodic", [False, True])
def test_bonuses_go_on_over_the_end_of_an_episode(episodic: bool) -> None:
    """Burda et al. 2019: with non-episodic returns, what comes after an ending is what comes after a start."""
    settings = over(PPO, bonus={**RND, "gamma": 0.9, "episodic": episodic, "scale": 2.0}, minibatches=1)
    one = Learned(Case("ppo-rnd", "ppo", TWO, settings=settings))
    algo = one.algo
    algo.ahead.mean.fill_(5.0)
    r = one.bench.learner.buffer.take(torch.empty(0), Progress())
    m = algo.prepare(r)
    bonus = algo.bonus.reward(m.seen).flatten()
    ended = ((r.discount == 0) & r.valid).flatten()
    assert ended.any() and not ended.all()
    richer = algo.richer(ops.map_tree(lambda x: x, r)._replace(reward=r.reward.reshape(1, -1)), m.seen).reward.flatten()
    added = torch.zeros_like(bonus) if episodic else 0.9 * 5.0 * ended
    torch.testing.assert_close(richer, r.reward.flatten() + 2.0 * (bonus + added))
    if episodic:
        assert "bonus_ahead" not in algo.parts()
        return
    with torch.no_grad():
        value, later = (algo.ahead(obs, m.seen.start) for obs in (m.seen.obs, m.seen.next_obs))
    worth = algo.bonus.worth(algo.bonus.judge(m.seen)).detach()
    after = torch.where(m.seen.ended, 5.0, later)
    wanted = (value - worth - 0.9 * after).square()[m.seen.counts].mean()
    near(algo.ahead.loss(m.seen, worth), wanted)
    first = value[m.seen.counts & m.seen.start]
    near(algo.ahead.mean, 5.0 + 0.01 * (float(first.mean()) - 5.0) if len(first) else 5.0)


@pytest.mark.parametrize("recompute", [False, True])
def test_ppo_clips_twice_and_may_judge_anew(recompute: bool) -> None:
    """Schulman et al. 2017: -min(rho A, clip(rho) A); Ye et al. 2020: at most -c A where A < 0. Recomputed, A and the
    critic's goal are those of the critic that learns."""
    more = {"normalise_advantage": False, "minibatches": 1, "dual_clip": 1.1, "recompute": recompute, "entropy": 0.0}
    one = Learned(Case("ppo", "ppo", TWO, settings=over(PPO, **more, **HUGE)))
    r = one.bench.learner.buffer.take(torch.empty(0), None)
    with torch.no_grad():  # it has learned since it acted
        for k, p in enumerate(one.algo.model.parameters()):
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    one.mini = one.algo.prepare(r)
    logp, value, after = read(one.algo, r)
    then = r.extras["value"].double()
    judge = value.detach() if recompute else then
    later = after if recompute else torch.cat([then[1:], after[-1:]])
    actor = critic = torch.zeros((), dtype=torch.float64)
    advantage: dict[tuple[int, int], Tensor] = {}
    twice = 0
    for t, b in rows(r):
        trace = 0.0 if r.cut[t, b] or t == len(r.reward) - 1 else 0.95 * r.discount[t, b].double() * advantage[t + 1, b]
        delta = r.reward[t, b].double() + r.discount[t, b].double() * later[t, b] - judge[t, b]
        a = advantage[t, b] = delta + trace
        if r.valid[t, b]:
            rho = (logp[t, b, r.action[t, b]] - r.extras["logp"][t, b].double()).exp()
            worth = torch.minimum(rho * a, rho.clamp(0.8, 1.2) * a)
            twice += int(a < 0 and worth < 1.1 * a)
            actor = actor - (torch.maximum(worth, 1.1 * a) if a < 0 else worth)
            critic = critic + (value[t, b] - (a + judge[t, b])).square() / 2
    count = int(r.valid.sum())
    assert twice > 0
    metrics = one.update()
    near(metrics["policy"], actor / count)
    near(metrics["value"], critic / count)
    one.compare((actor + 0.5 * critic) / count, list(one.algo.model.parameters()))


@pytest.mark.parametrize("recompute", [False, True])
def test_ppo_from_a_replay_weighs_what_earlier_actors_did(recompute: bool) -> None:
    """Espeholt et al. 2018: v_t - V_t = rho_t delta_t + g lam c_t (v_t+1 - V_t+1), A_t = rho_t (r_t + g v_t+1 - V_t);
    the clipped ratio is to the actor of when the item was drawn, here that of now: 1."""
    more = {"normalise_advantage": False, "minibatches": 1, "entropy": 0.0, "recompute": recompute, "lam": 0.9}
    replay = {"replay": {"kind": "prioritised", **SMALL_REPLAY}, "limiter": {"warmup": 80, "opt_interval": 12}}
    one = Learned(Case("ppo", "ppo", TWO, settings=over(PPO, **more, **replay, **HUGE)))
    with torch.no_grad():
        for k, p in enumerate(one.algo.model.parameters()):
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    dice = torch.rand(one.bench.learner.buffer.wants, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    item = ops.map_tree(torch.clone, one.bench.learner.buffer.take(dice, Progress()))
    r, one.mini = item.data, one.algo.prepare(item)
    logp, value, after = read(one.algo, r)
    actor = critic = torch.zeros((), dtype=torch.float64)
    beyond: dict[tuple[int, int], Tensor] = {}
    cut_off = 0
    for t, b in rows(r):
        now, weight = logp[t, b, r.action[t, b]], item.weight[t, b].double()
        ratio = (now.detach() - r.extras["logp"][t, b].double()).exp()
        discount, v = r.discount[t, b].double(), value[t, b].detach()
        last = bool(r.cut[t, b]) or t == len(r.reward) - 1
        gap = torch.zeros((), dtype=torch.float64) if last else beyond[t + 1, b]
        beyond[t, b] = ratio.clamp(max=1) * (
            r.reward[t, b].double() + discount * after[t, b] - v + 0.9 * discount * gap
        )
        cut_off += int(ratio > 1)
        if weight > 0:
            a = ratio.clamp(max=1) * (r.reward[t, b].double() + discount * (after[t, b] + gap) - v)
            actor = actor - weight * (now - now.detach()).exp() * a
            critic = critic + weight * (value[t, b] - (v + beyond[t, b])).square() / 2
    count = int((item.weight > 0).sum())
    assert cut_off > 0 and len(item.weight.unique()) > 2
    metrics = one.update()
    near(metrics["policy"], actor / count)
    near(metrics["value"], critic / count)
    one.compare((actor + 0.5 * critic) / count, list(one.algo.model.parameters()))


def test_trpo_solves_for_the_natural_gradient() -> None:
    """Schulman et al. 2015, appendix C: F x = g with F = E[d log pi d log pi^T] written out, damped; as long as
    x F x = 2 max_kl says, then halved until the surrogate gains within max_kl."""
    net = {"hidden": [4], "init": "uniform"}
    more = {"net": net, "iterations": 80, "max_kl": 1e-3, "normalise_advantage": False, "lam": 0.9}
    one = Learned(Case("trpo", "trpo", THREE, settings=over(ROLLOUT, **more)))
    m, actor = one.mini, one.algo.model.actor
    params = list(actor.parameters())
    start = torch.cat([p.detach().flatten() for p in params]).double()
    raw = actor(m.obs, m.past)[0]
    fisher = torch.zeros(len(start), len(start), dtype=torch.float64)
    gradient = torch.zeros(len(start), dtype=torch.float64)
    count = int(m.valid.sum())
    for t, b in m.valid.nonzero().tolist():
        logp = raw[t, b].log_softmax(-1)
        for a in range(3):
            grads = torch.autograd.grad(logp[a], params, retain_graph=True)
            score = torch.cat([g.flatten() for g in grads]).double()
            fisher += logp[a].exp().detach().double() * torch.outer(score, score) / count
            if a == m.action[t, b]:
                gradient += m.advantage[t, b].double() * score / count
    damped = fisher + 0.1 * torch.eye(len(start), dtype=torch.float64)
    x = torch.linalg.solve(damped, gradient)
    longest = (2 * 1e-3 / (x @ damped @ x)).sqrt()
    metrics = one.algo.learn(m, one.knobs, one.noise).metrics
    moved = torch.cat([p.detach().flatten() for p in params]).double() - start
    share = float(metrics["share"])
    assert share in [0.5**k for k in range(10)] and 0 < float(metrics["kl"]) <= 1e-3 and float(metrics["gain"]) > 0
    torch.testing.assert_close(moved, share * longest * x, rtol=5e-3, atol=2e-5)


def test_trpo_stays_where_nothing_is_gained() -> None:
    """Without an advantage no step gains: the actor stays, to the bit, and the critic learns."""
    one = Learned(Case("trpo", "trpo", THREE, settings=over(ROLLOUT, normalise_advantage=False)))
    before = one.bench.parameters()
    m = one.mini._replace(advantage=torch.zeros_like(one.mini.advantage))
    assert float(one.algo.learn(m, one.knobs, one.noise).metrics["share"]) == 0
    for name, value in one.bench.parameters().items():
        if name.startswith("model/"):
            assert torch.equal(value, before[name]) == name.startswith("model/actor"), name


def test_icm_names_the_action_and_foretells_the_features() -> None:
    """Pathak et al. 2017, equations 3, 5 and 6: r = |f'(s') - f(s')|^2 / 2; loss = (1 - beta) L_I + beta L_F. What is
    foretold does not move f."""
    settings = over(IMPALA, bonus={"kind": "icm", "features": 5, "scale": 0.7, "ahead": 0.3, "episodic": True,
                                   "net": {"hidden": [16]}})  # fmt: skip
    one = Learned(Case("icm", "impala", THREE, settings=settings))
    bonus, r = one.algo.bonus, one.bench.learner.buffer.take(torch.empty(0), None)
    seen = torch.cat([r.obs, r.last[0]]).double()
    moments = bonus.features.encoder.norm.moments
    f = layers(bonus.features, ((seen - moments.mean) / (moments.var + 1e-8).sqrt()).clamp(-10, 10))
    total = torch.zeros((), dtype=torch.float64)
    surprise = torch.zeros(r.reward.shape, dtype=torch.float64)
    for t, b in r.valid.nonzero().tolist():
        a = int(r.action[t, b])
        one_hot = torch.zeros(3, dtype=torch.float64)
        one_hot[a] = 1
        foretold = layers(Headed(bonus.ahead), torch.cat([f[t, b].detach(), one_hot]))[0]
        error = (foretold - f[t + 1, b].detach()).square().sum() / 2
        named = layers(Headed(bonus.inverse), torch.cat([f[t, b], f[t + 1, b]]))[0].log_softmax(-1)[a]
        total = total + 0.3 * error - 0.7 * named
        surprise[t, b] = error.detach()
    near(one.mini.mini.reward, r.reward.double() + 0.7 * surprise / bonus.square.double().sqrt())
    metrics = one.update()
    count = int(r.valid.sum())
    near(metrics["bonus_loss"], total / count)
    one.compare(total / count, list(bonus.parameters()))


class Headed:
    """A network as `layers` reads it, whatever its head."""

    def __init__(self, net: Any) -> None:
        head = net.head.layer if hasattr(net.head, "layer") else net.head
        self.net = type("Net", (), {"body": net.body, "head": head})


def test_ppg_learns_values_in_the_actor_and_leaves_what_it_does() -> None:
    """Cobbe et al. 2021, algorithm 1: L_joint = (V_aux - V_targ)^2 / 2 + beta KL(before, now), and (V - V_targ)^2 / 2;
    V_targ of each rollout by generalised advantages of its own."""
    one = Learned(Case("ppg", "ppg", THREE, settings=over(PPG, clone=2.0, aux_every=2, lam=0.9, **HUGE)))
    algo = one.algo
    first = one.bench.learner.buffer.recent(1)
    flipped = [first, first._replace(reward=-first.reward)]
    r: Rollout = ops.concat(flipped, 1)  # two rollouts beside each other
    cloned = algo.clone(r)
    with torch.no_grad():  # it has moved since
        for k, p in enumerate(algo.model.parameters()):
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    before, goals = (
        ops.unfold(cloned.raw, len(r.reward)).double().log_softmax(-1),
        ops.unfold(cloned.goal, len(r.reward)),
    )
    raw, auxiliary = (x.double() for x in algo.model.action_and_auxiliary(r.obs, r.past))
    value = algo.model.value(r.obs, r.past)[0].double()
    old, known, moved, critic = r.extras["value"].double(), *torch.zeros(3, dtype=torch.float64)
    far: dict[tuple[int, int], Tensor] = {}
    for t, b in rows(r):
        end = t == len(r.reward) - 1
        trace = torch.zeros(()) if end or r.cut[t, b] else far[t + 1, b]
        after = goals[t, b].double() * 0 if r.discount[t, b] == 0 else None if end else old[t + 1, b]
        if after is not None:  # the last row's is the critic's of what follows, as `clone` read it
            error = r.reward[t, b].double() + r.discount[t, b].double() * after - old[t, b]
            far[t, b] = error + r.discount[t, b].double() * 0.9 * trace
            near(goals[t, b], old[t, b] + far[t, b])
        else:
            far[t, b] = goals[t, b].double() - old[t, b]
        if r.valid[t, b]:
            now = raw[t, b].log_softmax(-1)
            known = known + (goals[t, b].double() - auxiliary[t, b]).square() / 2
            critic = critic + (goals[t, b].double() - value[t, b]).square() / 2
            moved = moved + (before[t, b].exp() * (before[t, b] - now)).sum()
    count = int(r.valid.sum())
    algo.optim_aux.apply = lambda grads, lr: one.grads.extend(grads)
    metrics = algo.learn_aux(cloned, one.knobs, one.noise).metrics
    near(metrics["aux_value"], known / count)
    near(metrics["aux_kl"], moved / count)
    near(metrics["aux_critic"], critic / count)
    one.compare((known + 2 * moved + critic) / count, list(algo.model.parameters()))
