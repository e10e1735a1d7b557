"""The losses of world models (TD-MPC2, Dreamer) against their formulas, row by row in float64."""

from __future__ import annotations

from math import exp, log, log1p

import pytest
import torch
from torch import Tensor

from ganglion.core import Noise, Past
from ganglion.nn.state_space import WorldState
from tests.contract.worlds import CASES, Bench

BY_NAME = {case.name: case for case in CASES}


def symlog(x: float) -> float:
    return log1p(x) if x >= 0 else -log1p(-x)


def probs_of(logits: Tensor) -> list[float]:
    each = [exp(x) for x in logits.double().tolist()]
    return [x / sum(each) for x in each]


def points(limit: float, bins: int) -> list[float]:
    return [-limit + 2 * limit * k / (bins - 1) for k in range(bins)]


def number(logits: Tensor, limit: float) -> float:
    """What two-hot logits say, on the scale of symlog."""
    mean = sum(p * x for p, x in zip(probs_of(logits), points(limit, len(logits)), strict=True))
    return exp(mean) - 1 if mean >= 0 else 1 - exp(-mean)


def entropy_of(logits: Tensor, x: float, limit: float) -> float:
    """The cross-entropy of logits with the two points beside symlog x."""
    where, moved, probs = points(limit, len(logits)), min(max(symlog(x), -limit), limit), probs_of(logits)
    low = min(int((moved + limit) / (where[1] - where[0])), len(where) - 2)
    share = (moved - where[low]) / (where[1] - where[0])
    return -(1 - share) * log(probs[low]) - share * log(probs[low + 1])


def cross(logit: float, goal: float) -> float:
    p = 1 / (1 + exp(-logit))
    return -goal * log(p) - (1 - goal) * log(1 - p)


class Means:
    """Means by name, of rows with a weight."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}

    def add(self, **terms: float) -> None:
        for name, x in terms.items():
            self.rows.setdefault(name, []).append(x)

    def hold(self, metrics: dict[str, Tensor]) -> None:
        for name, rows in self.rows.items():
            assert float(metrics[name]) == pytest.approx(sum(rows) / len(rows), rel=2e-4, abs=1e-6), name


@pytest.mark.parametrize("name", ["tdmpc2", "tdmpc2-all"])
def test_the_loss_of_tdmpc2(name: str) -> None:
    bench = Bench(BY_NAME[name])
    bench.train(3)
    mini, noise, at = bench.learnable()
    r, algo, cfg = mini.data, bench.agent.algo, bench.agent.algo.cfg
    model, means = algo.model, Means()
    with torch.no_grad():
        states = [model.see(_rows(r.obs, t), Past((), r.past.start[t : t + 1])) for t in range(cfg.horizon)]
        states.append(model.see(*r.last))
        latent = states[0]
        for t in range(cfg.horizon):
            action = r.extras["unit"][t : t + 1]
            q, said = model.critics(torch.cat([latent, action], -1)), model.imagine(latent, action)
            mean, log_std = model.act(states[t + 1])
            ahead = torch.tanh(mean + log_std.exp() * noise.normal[t : t + 1, :, :2])
            after = algo.target.net.critics(torch.cat([states[t + 1], ahead], -1))
            for b in (mini.weight[0] > 0).nonzero()[:, 0].tolist():
                if any(r.cut[k, b] for k in range(t)):
                    continue
                least = min(number(after[k, 0, b], cfg.limit) for k in range(cfg.critics))
                goal = float(r.reward[t, b]) + float(r.discount[t, b]) * least
                weight = cfg.rho**t * float(mini.weight[0, b])
                apart = (said.after[0, b].double() - states[t + 1][0, b].double()).square().mean()
                values = [entropy_of(q[k, 0, b], goal, cfg.limit) for k in range(cfg.critics)]
                means.add(
                    consistency=weight * float(apart), value=weight * sum(values) / len(values),
                    reward=weight * entropy_of(said.reward[0, b], float(r.reward[t, b]), cfg.limit),
                    goes_on=weight * cross(float(said.goes_on[0, b]), float(r.discount[t, b] > 0)),
                )  # fmt: skip
            latent = said.after
    means.hold(algo.learn(mini, bench.agent.knobs(at), noise).metrics)


def test_what_a_plan_of_tdmpc2_is_worth() -> None:
    """Rewards foreseen step by step, then a value; episodes that end earn less."""
    bench = Bench(BY_NAME["tdmpc2"])
    bench.train(3)
    algo, step = bench.agent.algo, bench.now[0]
    cfg, model = algo.cfg, algo.model
    plans = torch.rand(cfg.horizon, 6, 3, 2) * 2 - 1
    with torch.no_grad():
        latent = model.see(step.obs[None], Past((), step.valid[None]))
        worth = algo.worth(latent[0])(plans)
        for b, n in ((0, 0), (3, 2), (5, 1)):
            state, total, weight = latent[:, b : b + 1], 0.0, 1.0
            for h in range(cfg.horizon):
                said = model.imagine(state, plans[h, b, n][None, None])
                total += weight * number(said.reward[0, 0], cfg.limit)
                weight *= cfg.gamma / (1 + exp(-float(said.goes_on[0, 0])))
                state = said.after
            last = torch.cat([state, torch.tanh(model.act(state)[0])], -1)
            ahead = [number(x[0, 0], cfg.limit) for x in model.critics(last)]
            assert float(worth[b, n]) == pytest.approx(total + weight * sum(ahead) / len(ahead), rel=1e-4, abs=1e-5)


def _rows(obs: object, t: int) -> object:
    return {k: x[t : t + 1] for k, x in obs.items()} if isinstance(obs, dict) else obs[t : t + 1]


def test_the_loss_of_dreamers_model() -> None:
    """Every row: the posterior by the model's own steps, then errors, divergences and their floor by hand."""
    bench = Bench(BY_NAME["dreamer"])
    bench.train(3)
    mini, noise, at = bench.learnable()
    r, algo, cfg = mini.data, bench.agent.algo, bench.agent.algo.cfg
    model, world, means = algo.model, algo.model.world, Means()
    rows, slots, moments = *r.reward.shape, model.standard.moments
    obs, start = torch.cat([r.obs, r.last[0]]), torch.cat([r.past.start, r.last[1].start])
    with torch.no_grad():
        for b in range(slots):
            memory = [x[0, b] for x in r.past.memory]
            for t in range(rows + 1):
                before = [torch.zeros_like(x) if start[t, b] else x for x in memory]
                state = WorldState(*(x[None, None] for x in before[:2]))
                seen, _ = model.encoder(obs[t : t + 1, b : b + 1], Past((), start[:1, :1]))
                uniform = noise.uniform[t, b, :2] if t < rows else noise.update.uniform[:2]
                state, posterior = world.seen(state, before[2][None, None], seen, uniform[None, None])
                features, prior = state.features, world.log_probs(world.prior(state.deter))
                weight = max(float(mini.weight[t, b]) if t < rows else 0.0, float(mini.weight[t - 1, b]) if t else 0.0)
                if weight:
                    one, other = posterior[0, 0].double(), prior[0, 0].double()
                    apart = max(float((one.exp() * (one - other)).sum()), cfg.free)
                    goal = ((obs[t, b] - moments.mean) / (moments.var + 1e-8).sqrt()).clamp(-10, 10)
                    wrong = model.decoder(features)[0, 0].double() - goal
                    means.add(image=weight * float(wrong.square().sum()), dynamics=weight * apart,
                              posterior=weight * apart)  # fmt: skip
                if t and mini.weight[t - 1, b]:
                    own = float(mini.weight[t - 1, b])
                    means.add(
                        reward=own * entropy_of(model.reward(features)[0, 0], float(r.reward[t - 1, b]), cfg.limit),
                        goes_on=own * cross(float(model.goes_on(features)), float(r.discount[t - 1, b] > 0)),
                    )
                action = torch.nn.functional.one_hot(r.action[t, b], 2).float() if t < rows else memory[2]
                memory = [*(x[0, 0] for x in state), action]
    means.hold(algo.learn(mini, bench.agent.knobs(at), noise).metrics)


@pytest.mark.parametrize("name", ["dreamer", "dreamer-box"])
def test_the_losses_of_dreamers_actor_and_critic(name: str) -> None:
    """Lambda returns of what was imagined, step by step, and what follows from them."""
    bench = Bench(BY_NAME[name])
    bench.train(3)
    algo, cfg, draws = bench.agent.algo, bench.agent.algo.cfg, bench.agent.draws.learn
    count, means, dice = 5, Means(), torch.Generator().manual_seed(0)
    start = WorldState(torch.randn(1, count, cfg.deter), torch.eye(3)[[0, 1]].flatten().expand(1, count, -1))
    weight = torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0])
    sizes = draws.uniform - cfg.groups, draws.normal
    noise = Noise(
        torch.rand(1, count, sizes[0], generator=dice), torch.randn(1, count, max(sizes[1], 1), generator=dice)
    )
    with torch.no_grad():
        features, action = algo.dreamed(start, noise)
        said = [[number(x, cfg.limit) for x in net(features).flatten(0, 1)] for net in (
            algo.model.reward, algo.target.net.critic)]  # fmt: skip
        goes_on = algo.model.goes_on(features).squeeze(-1).double().sigmoid().flatten().tolist()
        dist, values = algo.policy(features[:-1]), algo.model.critic(features[:-1])
        logp, entropy = dist.log_prob(action), dist.entropy()
        goals: dict[tuple[int, int], float] = {}
        for n in range(count):
            goal = 0.0
            for k in reversed(range(cfg.imagine)):
                at = (k + 1) * count + n
                mixed = said[1][at]
                if k + 1 < cfg.imagine:
                    mixed = (1 - cfg.lam) * said[1][at] + cfg.lam * goal
                goals[k, n] = goal = said[0][at] + cfg.gamma * goes_on[at] * mixed
        ranked = sorted(goals.values())
        wide = ranked[int(0.95 * (len(ranked) - 1))] - ranked[int(0.05 * (len(ranked) - 1))]
        scale = 0.99 * float(algo.model.scale) + 0.01 * max(wide, 1.0)
        for n in range(count):
            lasting = float(weight[n])
            for k in range(cfg.imagine if lasting else 0):
                gain = (goals[k, n] - said[1][k * count + n]) / scale
                means.add(
                    actor=lasting * (-gain * float(logp[k, n]) - cfg.entropy * float(entropy[k, n])),
                    critic=lasting * entropy_of(values[k, n], goals[k, n], cfg.limit),
                )
                lasting *= goes_on[(k + 1) * count + n]
    means.hold({k: v.detach() for k, v in algo.improve(start, weight, noise).items()})
