"""Agents that learn together: losses beside the papers' formulas in float64, row by row and agent by agent; order, the
dead, and what belongs together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ganglion import ops
from ganglion.buffers import ReplayConfig, RolloutConfig
from ganglion.buffers.copies import ByCopy
from ganglion.config.model import Folded
from ganglion.core import CENTRAL, EnvSpec, Past, Progress, Row
from ganglion.errors import UserError
from ganglion.ops.agents import whole
from tests.contract.worlds import CENTRAL_MASKED, CPU, DQN, PPO, THREE, Bench, Team, over

N = 3
Q = {"net": {"hidden": [8]}, "lam": 0.0}


def learnable(algo: str, **settings: Any) -> Any:
    base = PPO if algo in ("mappo", "pqn_vdn") else DQN
    bench = Bench(Team(algo, algo, THREE, CENTRAL_MASKED, over(base, **settings)))
    return (bench, *bench.learnable())


def values(net: Any, obs: Any) -> Any:
    """Of what each agent sees [T, C, N, ...], by one call per agent and copy."""
    with torch.no_grad():
        shape = obs["obs"].shape[:3]
        out = [
            net.value(ops.map_tree(lambda x, i=i: x[i[0], i[1], i[2]][None, None], own(obs)), no_past())[0][0, 0]
            for i in np.ndindex(*shape)
        ]
    return torch.stack(out).unflatten(0, shape).double().numpy()


def own(obs: Any) -> Any:
    return {k: v for k, v in obs.items() if k != CENTRAL}


def no_past() -> Past:
    return Past((), torch.zeros(1, 1, dtype=torch.bool))


def best(q: Any, legal: Any) -> int:
    return max((a for a in range(len(q)) if legal[a]), key=lambda a: q[a])


# ------------------------------------------------------------ formulas


@pytest.mark.parametrize("algo", ["vdn", "qmix"])
def test_value_decomposition(algo: str) -> None:
    """y = r + d Q-(s', argmax each), of the living: their sum, or mixed with weights that are not negative."""
    more = {"mixed": 4, "mixer": {"hidden": [8]}} if algo == "qmix" else {}
    bench, mini, noise, at = learnable(algo, **Q, **more, optimism=0.5)
    r, model, target = mini.data, bench.algo.model, bench.algo.target.net
    now, later = values(model, r.obs), values(model, r.last[0])
    lagged = values(target, r.last[0])
    legal = r.last[0]["action_mask"].numpy()
    alive, survives = r.extras["alive"].numpy(), r.extras["survives"].numpy()
    assert (alive.any(-1) & ~alive.all(-1)).any() and (alive & ~survives).any()

    def team(net: Any, own: list[float], obs: Any, c: int) -> float:
        return mixed(net.mixer, own, obs[CENTRAL][0, c, 0].double()) if algo == "qmix" else sum(own)

    losses = []
    for c in range(r.reward.shape[1]):
        mine = [float(now[0, c, i, r.action[0, c, i]]) * alive[0, c, i] for i in range(N)]
        next_ = [float(lagged[0, c, i, best(later[0, c, i], legal[0, c, i])]) * survives[0, c, i] for i in range(N)]
        goal = float(r.reward[0, c]) + float(r.discount[0, c]) * team(target, next_, r.last[0], c)
        error = team(model, mine, r.obs, c) - goal
        losses.append(0.5 * error**2 * (0.5 if error > 0 else 1.0))
    live = [c for c in range(len(losses)) if float(mini.weight[0, c]) > 0]
    update = bench.algo.learn(mini, bench.agent.knobs(at), noise)
    assert float(update.metrics["loss"]) == pytest.approx(sum(losses[c] for c in live) / len(live), rel=1e-4)


def mixed(mixer: Any, q: list[float], state: torch.Tensor) -> float:
    """w2 elu(W1 q + b1) + b2, weights from the state."""
    body, head = mixer.body, mixer.head
    weight, bias = (p.detach().double() for p in body.parameters())
    hidden = torch.relu(state @ weight[0] + bias[0, 0])
    said = hidden @ head.weight.detach().double().T + head.bias.detach().double()
    units = mixer.units
    first = said[: N * units].abs().reshape(N, units).numpy()
    middle, last, offset = said[N * units :].split([units, units, 1])
    total = float(offset)
    for u in range(units):
        x = float(middle[u]) + sum(first[i, u] * q[i] for i in range(N))
        total += abs(float(last[u])) * (x if x > 0 else np.expm1(x))
    return total


def test_mappo() -> None:
    """The clipped surrogate of each living agent with its team's advantage, the team's value, entropies."""
    bench, m, noise, at = learnable("mappo", normalise_advantage=False, clip=0.001)
    bench.algo.learn(m, bench.agent.knobs(at), noise)  # so that ratios differ from 1
    knobs, model = bench.agent.knobs(at), bench.algo.model
    surrogates, errors, entropies = [], [], []
    for c in range(m.valid.shape[1]):
        if not m.valid[0, c]:
            continue
        state = m.copies[CENTRAL][:, c : c + 1]
        with torch.no_grad():
            value = float(model.critic({CENTRAL: state}, torch.ones(1, 1, N, dtype=torch.bool)))
        errors.append(0.5 * (value - float(m.goal[0, c])) ** 2)
        for i in range(N):
            if not m.alive[0, c, i]:
                continue
            seen = ops.map_tree(lambda x, c=c, i=i: x[0, c, i][None, None], own(m.copies))
            with torch.no_grad():
                logits = model.action(seen, no_past())[0][0, 0].double()
            legal = seen["action_mask"][0, 0].bool().numpy()
            weights = np.exp(logits.numpy()) * legal
            probs = weights / weights.sum()
            ratio = probs[int(m.action[0, c, i])] / np.exp(float(m.logp[0, c, i]))
            advantage = float(m.advantage[0, c])
            surrogates.append(-min(ratio * advantage, min(max(ratio, 0.999), 1.001) * advantage))
            entropies.append(-sum(p * np.log(p) for p in probs[legal]))
    update = bench.algo.learn(m, knobs, noise).metrics
    assert float(update["policy"]) == pytest.approx(np.mean(surrogates), rel=1e-3, abs=1e-5)
    assert float(update["value"]) == pytest.approx(np.mean(errors), rel=1e-3)
    assert float(update["entropy"]) == pytest.approx(np.mean(entropies), rel=1e-3)


def test_mappo_advantages() -> None:
    """GAE of the team's rewards along each copy, with dead rows as bootstraps."""
    bench, *_ = learnable("mappo", minibatches=1)
    algo, item = bench.algo, bench.learner.buffer.take(torch.empty(0), Progress())
    m, seen = algo.prepare(item), whole(item)
    with torch.no_grad():
        value = algo.model.critic(seen.copies, seen.there).double().numpy()
    rows, copies = item.reward.shape
    expected = np.zeros((rows + 1, copies))
    for t in reversed(range(rows)):
        delta = item.reward[t].numpy() + item.discount[t].numpy() * value[t + 1] - value[t]
        expected[t] = delta + 0.95 * item.discount[t].numpy() * ~item.cut[t].numpy() * expected[t + 1]
    valid = m.valid[0].numpy()
    np.testing.assert_allclose(m.advantage[0].numpy()[valid], expected[:-1].reshape(-1)[valid], rtol=1e-4, atol=1e-5)


def test_pqn_vdn() -> None:
    """(sum_i q_i - G)^2 / 2 over the living, G the lambda return of the sum."""
    bench, m, noise, at = learnable("pqn_vdn", minibatches=1, lam=0.5)
    item = bench.learner.buffer.take(torch.empty(0), Progress())
    value, survives = item.extras["value"].double().numpy(), item.extras["survives"].numpy()
    q = values(bench.algo.model, item.last[0])[0]
    legal = item.last[0]["action_mask"][0].numpy()
    last = [[q[c, i, best(q[c, i], legal[c, i])] for i in range(N)] for c in range(q.shape[0])]
    after = (np.concatenate([value[1:], np.array(last)[None]]) * survives).sum(-1)
    goal, rows = np.zeros_like(after), len(after)
    for t in reversed(range(rows)):
        ends = item.cut[t].numpy() | (t == rows - 1)
        ahead = goal[t + 1] if t < rows - 1 else after[t]
        mixed_ = np.where(ends, after[t], 0.5 * after[t] + 0.5 * ahead)
        goal[t] = item.reward[t].numpy() + item.discount[t].numpy() * mixed_
    np.testing.assert_allclose(bench.algo.prepare(item).goal.numpy().reshape(goal.shape), goal, rtol=1e-4, atol=1e-4)
    now = values(bench.algo.model, m.obs)
    own_ = np.take_along_axis(now, m.action.numpy()[..., None], -1)[..., 0] * m.alive.numpy()
    errors = 0.5 * (own_.sum(-1) - m.goal.numpy()) ** 2
    loss = float(bench.algo.learn(m, bench.agent.knobs(at), noise).metrics["loss"])
    assert loss == pytest.approx(errors[m.valid.numpy()].mean(), rel=1e-4)


# ------------------------------------------------------------ order, the dead, what belongs together

ALGOS = ["vdn", "qmix", "pqn_vdn", "mappo"]


@pytest.mark.parametrize("algo", ALGOS)
def test_permuting_agents_permutes_what_they_do(algo: str) -> None:
    bench = Bench(Team(algo, algo, THREE, CENTRAL_MASKED, PPO if algo in ("pqn_vdn", "mappo") else DQN))
    step = bench.now[0]
    order = torch.arange(12).view(N, 4)[[2, 0, 1]].flatten()
    one = bench.agent.predict(step.obs, bench.agent.start(12)).action
    other = bench.agent.predict(ops.take(step.obs, order), bench.agent.start(12)).action
    assert torch.equal(one[order], other) and len(set(one.tolist())) > 1


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_dead_move_nothing(algo: str, memory: str) -> None:
    """What a dead agent saw and did changes neither the loss nor a parameter."""
    more = {} if algo in ("pqn_vdn", "mappo") else {"replay": {"sequence": 4}}
    net = {"memory": memory, "memory_size": 8} if memory != "none" else {}
    after = []
    for spoilt in (False, True):
        bench, mini, noise, at = learnable(algo, net=net, **more)
        mini = spoil(mini) if spoilt else mini
        update = bench.algo.learn(mini, bench.agent.knobs(at), noise)
        after.append([*bench.algo.model.state().tensors.values(), *update.metrics.values()])
    assert all(torch.equal(a, b) for a, b in zip(*after, strict=True))


def spoil(mini: Any) -> Any:
    """With other numbers in what dead agents saw and did, where the next row does not need it."""
    data = mini.data if hasattr(mini, "data") else mini
    alive = data.extras["alive"] if hasattr(data, "extras") else data.alive
    obs = data.copies if hasattr(data, "copies") else data.obs
    before = torch.zeros_like(alive)
    if hasattr(data, "extras"):
        before[1:] = data.extras["survives"][:-1]
    dead = ~alive & ~before
    assert dead.any()
    seen = {**obs, "obs": torch.where(dead[..., None], 7.0, obs["obs"])}
    data = data._replace(**{"copies" if hasattr(data, "copies") else "obs": seen})
    data = data._replace(action=torch.where(dead, 0, data.action))
    return mini._replace(data=data) if hasattr(mini, "data") else data


def rows_of(copies: int, times: int, first: int) -> Row:
    """Rows whose every number says time, copy and agent: 100 t + 10 c + i, what is central 100 t + 10 c."""
    t, i, c = torch.meshgrid(torch.arange(first, first + times), torch.arange(N), torch.arange(copies), indexing="ij")
    number = (100.0 * t + 10 * c + i).flatten(1)
    no = torch.zeros_like(number, dtype=torch.bool)
    obs = {"obs": number[..., None], CENTRAL: (100.0 * t + 10 * c).flatten(1)[..., None]}
    return Row(obs, number.long(), number, no, no, ~no, no, {"said": number}, (number[..., None],))


@pytest.mark.parametrize("kind", ["replay", "rollout"])
def test_what_is_central_is_of_the_same_copy_and_time(kind: str) -> None:
    """Whatever is drawn: agents of a copy stay together, in order, with what is central to it."""
    copies, config = 5, ReplayConfig(capacity=200, batch=64, sequence=3) if kind == "replay" else RolloutConfig()
    spec = EnvSpec(CENTRAL_MASKED, THREE, copies * N, "", ("a", "b", "c"))
    buffer = ByCopy(Folded(config, config.rollouts(0.9, 3).fold), "sum").build(spec, CPU)
    for t in range(0, 3 if kind == "rollout" else 60, 3):
        rows = rows_of(copies, 3, t)
        last = rows_of(copies, 1, t + 3)
        past = Past(last.memory, torch.zeros(1, copies * N, dtype=torch.bool))
        buffer.push(rows, (ops.map_tree(lambda x: x[0], last.obs), past), Progress())
    drawn = buffer.take(torch.rand(buffer.wants, dtype=torch.float64), Progress())
    r = drawn.data if kind == "replay" else drawn
    state = r.obs[CENTRAL][..., 0, 0]  # [T, C]
    agent = torch.arange(N)
    for seen, about in ((r.obs, state), (r.last[0], r.last[0][CENTRAL][..., 0, 0])):
        assert torch.equal(seen["obs"][..., 0], about[..., None] + agent)
    assert torch.equal(r.action, (state[..., None] + agent).long())
    assert torch.equal(r.extras["said"], state[..., None] + agent) and torch.equal(
        r.extras["rewards"], r.extras["said"]
    )
    assert torch.equal(r.past.memory[0][0, ..., 0], state[0, :, None] + agent)
    assert torch.equal(r.reward, (state[..., None] + agent).sum(-1))
    assert torch.equal(state[1:] - state[:-1], torch.full_like(state[1:], 100.0))
    assert torch.equal(r.last[0][CENTRAL][0, :, 0, 0] - state[-1], torch.full_like(state[-1], 100.0))
    if kind == "rollout":
        back = buffer.rows()
        assert torch.equal(back.reward, rows.reward) and torch.equal(back.obs[CENTRAL], rows.obs[CENTRAL])
        assert torch.equal(back.extras["said"], rows.extras["said"]) and torch.equal(back.memory[0], rows.memory[0])


def test_endings_of_a_copy() -> None:
    """It lives while one agent does; it is cut if the last ones were, and their next rows bootstrap them."""
    spec = EnvSpec(CENTRAL_MASKED, THREE, N, "", ("a", "b", "c"))
    buffer: Any = ByCopy(Folded(RolloutConfig(), RolloutConfig().rollouts(0.9, 5).fold), "sum").build(spec, CPU)
    rows = rows_of(1, 5, 0)
    valid = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]).bool()
    terminated = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]).bool()
    truncated = torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]).bool()
    start = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 1]]).bool()
    rows = rows._replace(valid=valid, terminated=terminated, truncated=truncated, start=start)
    made = buffer.joined(rows)
    assert made.valid[:, 0].tolist() == [True, True, True, False, True]
    assert made.truncated[:, 0].tolist() == [False, False, True, False, False] and not made.terminated.any()
    assert made.start[:, 0].tolist() == [True, False, False, False, True]
    assert made.extras["survives"][:, 0].int().tolist() == [[0, 1, 1], [0, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]]
    died = buffer.joined(rows._replace(terminated=terminated | truncated, truncated=torch.zeros_like(truncated)))
    assert died.terminated[:, 0].tolist() == [False, False, True, False, False]


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"algo\.replay\.initial: error is of single agents"):
        Bench(Team("x", "vdn", THREE, CENTRAL_MASKED, over(DQN, replay={"kind": "prioritised", "initial": "error"})))
    with pytest.raises(UserError, match=r"4 is more than the copies of the game \* algo\.horizon = 2"):
        Bench(Team("x", "mappo", THREE, CENTRAL_MASKED, over(PPO, horizon=1, minibatches=4), slots=6))
