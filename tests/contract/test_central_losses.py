"""Agents with central critics: losses beside the papers' formulas in float64, row by row and agent by agent; who hears
whom, and what the dead may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ganglion import ops
from ganglion.core import CENTRAL, Box, Composite, Noise
from ganglion.errors import UserError
from ganglion.nn.communication import Thoughts
from ganglion.nn.team_actions import OneHotChoices
from ganglion.ops.agents import by_agent, by_copy, by_slot, each_own, whole
from tests.contract.test_team_losses import N, no_past, own, spoil
from tests.contract.worlds import ARM, CENTRAL_MASKED, CENTRE, HYBRID, ROLLOUT, SPEAKERS, THREE, Bench, Case, Team, over

A = 3  # actions of THREE
REAL = Composite({"obs": Box((3,)), CENTRAL: Box((5,))})


def learnable(algo: str, action: Any = THREE, obs: Any = CENTRAL_MASKED, **settings: Any) -> Any:
    base = over(ROLLOUT, critic={"hidden": [8]}) if algo == "coma" else CENTRE
    bench = Bench(Team(algo, algo, action, obs, over(base, **settings)))
    return (bench, *bench.learnable())


def judged(nets: Any, obs: Any, t: int, c: int, beside: Any) -> np.ndarray:
    """What each central critic says of one row of one copy, [count, outputs]."""
    state = {CENTRAL: obs[CENTRAL][t : t + 1, c : c + 1]}
    with torch.no_grad():
        said = nets(
            state, torch.ones(1, 1, N, dtype=torch.bool), torch.as_tensor(beside, dtype=torch.float32)[None, None]
        )
    return said[:, 0, 0].double().numpy()


def spoken(actor: Any, obs: Any, t: int, c: int, i: int) -> tuple[torch.Tensor, np.ndarray]:
    """Raw parameters of one agent's action by a call of its own, and what is legal."""
    seen = ops.map_tree(lambda x: x[t, c, i][None, None], own(obs))
    with torch.no_grad():
        raw = actor.action(seen, no_past())[0][0, 0].double()
    legal = seen["action_mask"][0, 0].bool().numpy() if "action_mask" in seen else np.ones(A, bool)
    return raw, legal


def softmax(logits: Any, legal: Any) -> np.ndarray:
    weights = np.exp(np.asarray(logits)) * legal
    return weights / weights.sum()


def hot(choice: int) -> np.ndarray:
    return np.eye(A)[choice]


# ------------------------------------------------------------ formulas


def test_coma() -> None:
    """(Q(s, u_-i)_i[a_i] - G)^2 / 2 of the living; Q[a] - sum pi Q as what log pi is weighed by."""
    bench, r, noise, at = learnable("coma", lam=0.6)
    bench.algo.learn(r, bench.agent.knobs(at), noise)  # so that the target lags
    model, target, there = bench.algo.model, bench.algo.target.net, whole(r).there.numpy()
    alive, rows, copies = r.extras["alive"].numpy(), *r.reward.shape

    def q(critic: Any, t: int, c: int, i: int, who: Any) -> np.ndarray:
        others = [hot(int(r.action[t, c, j])) * (j != i) * who[t, c, j] for j in range(N)]
        return judged(critic.nets, r.obs, t, c, np.concatenate([*others, np.eye(N)[i]]))[0]

    goal = np.zeros((rows - 1, copies))
    for c in range(copies):
        team = []
        for t in range(rows):
            taken = [q(target, t, c, i, there)[int(r.action[t, c, i])] for i in range(N) if there[t, c, i]]
            team.append(np.mean(taken) if taken else 0.0)
        for t in reversed(range(rows - 1)):
            last = bool(r.cut[t, c]) or t == rows - 2
            ahead = team[t + 1] if last else 0.4 * team[t + 1] + 0.6 * goal[t + 1, c]
            goal[t, c] = float(r.reward[t, c]) + float(r.discount[t, c]) * ahead
    valid = r.valid[:-1].numpy()
    np.testing.assert_allclose(bench.algo.goal(r).numpy()[valid], goal[valid], rtol=1e-4, atol=1e-4)

    errors, actors, entropies = [], [], []
    for t, c, i in np.argwhere(alive[:-1]):
        mine, (logits, legal) = q(model.critic, t, c, i, alive), spoken(model, r.obs, t, c, i)
        probs, action = softmax(logits, legal), int(r.action[t, c, i])
        errors.append(0.5 * (mine[action] - goal[t, c]) ** 2)
        actors.append(-np.log(probs[action]) * (mine[action] - (probs * mine).sum()))
        entropies.append(-sum(p * np.log(p) for p in probs[legal]))
    update = bench.algo.learn(r, bench.agent.knobs(at), noise).metrics
    assert float(update["value"]) == pytest.approx(np.mean(errors), rel=1e-3)
    assert float(update["actor"]) == pytest.approx(np.mean(actors), rel=1e-3, abs=1e-5)
    assert float(update["entropy"]) == pytest.approx(np.mean(entropies), rel=1e-3)


@pytest.mark.parametrize("reward", ["sum", "own"])
def test_maddpg(reward: str) -> None:
    """y = r + d min Q-(s', mu-(o')); of the team, or of each agent by its own rewards; -Q with one action replaced."""
    bench, mini, noise, at = learnable("maddpg", reward=reward, twin=True, regular=0.0, lr_critic=1e-30, gamma=0.9)
    r, algo = mini.data, bench.algo
    model, target, seen = algo.model, algo.target.net, whole(mini.data)
    alive, survives, there = r.extras["alive"].numpy(), r.extras["survives"].numpy(), seen.there.numpy()
    assert (alive.any(-1) & ~alive.all(-1)).any()
    live = [c for c in range(r.reward.shape[1]) if float(mini.weight[0, c]) > 0]
    errors, values = [], []
    for c in live:
        later = []
        for i in range(N):
            logits, legal = spoken(target.actor, seen.copies, 1, c, i)
            later.append(hot(max(np.flatnonzero(legal), key=lambda a: float(logits[a]))) * there[1, c, i])
        after = judged(target.critics, seen.copies, 1, c, np.concatenate(later)).min(0)
        taken = [hot(int(r.action[0, c, i])) * alive[0, c, i] for i in range(N)]
        now = judged(model.critics, r.obs, 0, c, np.concatenate(taken))
        if reward == "sum":
            goal = float(r.reward[0, c]) + float(r.discount[0, c]) * after[0]
            errors.append(((now[:, 0] - goal) ** 2).sum())
        for i in range(N):
            if not alive[0, c, i]:
                continue
            if reward == "own":
                goal = float(r.extras["rewards"][0, c, i]) + 0.9 * survives[0, c, i] * after[i]
                errors.append(((now[:, i] - goal) ** 2).sum())
            logits, legal = spoken(model.actor, r.obs, 0, c, i)
            uniform = noise.uniform[0, c, i * A : (i + 1) * A].double().numpy()
            gumbel = logits.numpy() - np.log(-np.log(uniform))
            beside = [*taken]
            beside[i] = hot(max(np.flatnonzero(legal), key=lambda a: gumbel[a]))
            values.append(judged(model.critics, r.obs, 0, c, np.concatenate(beside))[0, i if reward == "own" else 0])
    update = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    assert float(update["critic"]) == pytest.approx(np.mean(errors), rel=1e-4)
    assert float(update["actor"]) == pytest.approx(-np.mean(values), rel=1e-4)


@pytest.mark.parametrize("reward", ["mean", "own"])
def test_masac(reward: str) -> None:
    """The same with entropies: exact ones of choices, which the temperature weighs."""
    bench, mini, noise, at = learnable("masac", reward=reward, temperature=0.3, lr_critic=1e-30, gamma=0.9)
    r, algo = mini.data, bench.algo
    model, target, seen = algo.model, algo.target.net, whole(mini.data)
    alive, survives, there = r.extras["alive"].numpy(), r.extras["survives"].numpy(), seen.there.numpy()

    def drawn(obs: Any, t: int, c: int, i: int, uniform: Any) -> tuple[np.ndarray, float]:
        logits, legal = spoken(model.actor, obs, t, c, i)
        gumbel, probs = logits.numpy() - np.log(-np.log(uniform)), softmax(logits, legal)
        return hot(max(np.flatnonzero(legal), key=lambda a: gumbel[a])), -sum(p * np.log(p) for p in probs[legal])

    uniform = noise.uniform.double().numpy()[0].reshape(-1, 2, N, A)
    errors, values = [], []
    for c in [c for c in range(r.reward.shape[1]) if float(mini.weight[0, c]) > 0]:
        later = [drawn(seen.copies, 1, c, i, uniform[c, 0, i]) for i in range(N)]
        joint = np.concatenate([did * there[1, c, i] for i, (did, _) in enumerate(later)])
        after = judged(target, seen.copies, 1, c, joint).min(0)
        spread = [entropy * there[1, c, i] for i, (_, entropy) in enumerate(later)]
        taken = [hot(int(r.action[0, c, i])) * alive[0, c, i] for i in range(N)]
        now = judged(model.critics, r.obs, 0, c, np.concatenate(taken))
        did = [drawn(r.obs, 0, c, i, uniform[c, 1, i]) for i in range(N)]
        if reward == "mean":
            goal = float(r.reward[0, c]) + float(r.discount[0, c]) * (after[0] + 0.3 * sum(spread))
            errors.append(((now[:, 0] - goal) ** 2).sum())
        for i in range(N):
            if not alive[0, c, i]:
                continue
            if reward == "own":
                goal = float(r.extras["rewards"][0, c, i]) + 0.9 * survives[0, c, i] * (after[i] + 0.3 * spread[i])
                errors.append(((now[:, i] - goal) ** 2).sum())
            joint = np.concatenate([d * alive[0, c, j] for j, (d, _) in enumerate(did)])
            q = judged(model.critics, r.obs, 0, c, joint).min(0)[i if reward == "own" else 0]
            values.append(q + 0.3 * did[i][1])
    update = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    assert float(update["critic"]) == pytest.approx(np.mean(errors), rel=1e-4)
    assert float(update["actor"]) == pytest.approx(-np.mean(values), rel=1e-4)


def test_masac_of_real_actions() -> None:
    """-log pi of the squashed sample, by the change of variables."""
    bench, mini, noise, at = learnable("masac", ARM, REAL, temperature=0.3, lr_critic=1e-30)
    r, algo, low, high = mini.data, bench.algo, np.array([-1.0, -2.0]), np.array([1.0, 2.0])
    alive, normal = r.extras["alive"].numpy(), noise.normal.double().numpy()[0].reshape(-1, 2, N, 2)
    values = []
    for c in [c for c in range(r.reward.shape[1]) if float(mini.weight[0, c]) > 0]:
        did, logps = [], []
        for i in range(N):
            raw, _ = spoken(algo.model.actor, r.obs, 0, c, i)
            mean, std = raw[:2].numpy(), np.exp(-5 + 3.5 * (np.tanh(raw[2:].numpy()) + 1))
            x = mean + std * normal[c, 1, i]
            slope = (high - low) / 2 * (1 - np.tanh(x) ** 2)
            logps.append((-0.5 * normal[c, 1, i] ** 2 - np.log(std * np.sqrt(2 * np.pi)) - np.log(slope)).sum())
            did.append((low + (high - low) * (np.tanh(x) + 1) / 2) * alive[0, c, i])
        q = judged(algo.model.critics, r.obs, 0, c, np.concatenate(did)).min(0)[0]
        values += [q - 0.3 * logps[i] for i in range(N) if alive[0, c, i]]
    update = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    assert float(update["actor"]) == pytest.approx(-np.mean(values), rel=1e-3)


def test_a_gradient_reaches_only_who_is_judged() -> None:
    """What others do is given: each agent's own action alone moves its value."""
    did = torch.randn(2, 4, N, A, requires_grad=True)
    beside = each_own(did, torch.zeros_like(did)).unflatten(-1, (N, A))
    weight = torch.randn(2, 4, N, N, A)
    (grad,) = torch.autograd.grad((beside * weight).sum(), did)
    assert torch.equal(grad, weight.diagonal(dim1=2, dim2=3).movedim(-1, 2))
    assert torch.equal(beside.diagonal(dim1=2, dim2=3).movedim(-1, 2), did.detach())


def test_relaxed_choices() -> None:
    """Samples follow the softmax over what is legal; the gradient is that of the relaxed choice."""
    kind, logits = OneHotChoices(4), torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
    legal = torch.tensor([True, True, False, True])
    dist = kind.dist(logits.expand(20_000, 4), legal.expand(20_000, 4))
    uniform = torch.rand(20_000, 4, generator=torch.Generator().manual_seed(1))
    said = kind.relaxed(dist, Noise(uniform, uniform[..., :0]))
    assert torch.equal(said.detach().sort(-1).values, torch.eye(4)[3].expand(20_000, 4))
    share = said.detach().mean(0)
    wanted = torch.where(legal, logits.detach().exp(), 0.0)
    torch.testing.assert_close(share, wanted / wanted.sum(), atol=0.02, rtol=0)
    (grad,) = torch.autograd.grad(said[:, 0].sum(), logits)
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-7, 1 - 1e-7)))
    soft = torch.where(legal, (logits + gumbel).exp(), 0.0)
    (other,) = torch.autograd.grad((soft / soft.sum(-1, keepdim=True))[:, 0].sum(), logits)
    torch.testing.assert_close(grad, other, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------ communication


def speakers(group: int | None = None, agents: int = 4) -> Any:
    obs = Composite({"obs": Box((3,)), "present": Box((agents,), low=(0.0,), high=(1.0,))})
    names = tuple("abcdef"[:agents])
    case = Team("atoc", "atoc", THREE, obs, over(CENTRE, group=group, message=4), slots=5 * agents, agents=names)
    return Bench(case).algo.model.actor


def thoughts_of(actor: Any, agents: int, seed: int) -> tuple[Thoughts, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    own_, wish = torch.randn(2, 5, agents, actor.body.out, generator=g), torch.randn(2, 5, agents, generator=g)
    there = torch.rand(2, 5, agents, generator=g) < 0.8
    return Thoughts(own_, wish, there, ()), torch.rand(2, 5, agents, generator=g) < 0.4


@pytest.mark.parametrize("group", [None, 2, 3])
def test_who_hears_whom(group: int | None) -> None:
    """Beside a loop: those who share the open group of somebody who is there; attention by softmax of query and key."""
    agents, actor = 4, speakers(group)
    thoughts, opens = thoughts_of(actor, agents, 3)
    with torch.no_grad():
        told = actor.told(thoughts, opens)
        query, key, voice = (f(thoughts.own).double().numpy() for f in (actor.query, actor.key, actor.voice))
    like = (thoughts.own @ thoughts.own.transpose(-1, -2)).numpy()
    some = 0
    for t, c in np.ndindex(2, 5):
        there = [i for i in range(agents) if thoughts.there[t, c, i]]
        heard: dict[int, set[int]] = {i: set() for i in range(agents)}
        for i in there:
            if opens[t, c, i]:
                others = sorted((j for j in there if j != i), key=lambda j, i=i: -like[t, c, i, j])
                members = [i, *(others if group is None else others[: group - 1])]
                for j in members:
                    heard[j] |= set(members) - {j}
        for j in range(agents):
            expected = np.zeros(4)
            if heard[j]:
                those = sorted(heard[j])
                score = np.array([query[t, c, j] @ key[t, c, k] / 2.0 for k in those])
                weight = np.exp(score - score.max())
                expected = (weight / weight.sum()) @ voice[t, c, those]
                some += 1
            np.testing.assert_allclose(told[t, c, j].numpy(), expected, rtol=1e-3, atol=1e-5)
    assert some > 5


def test_atoc() -> None:
    """The critic's error, the value of what all do, and whether one open group alone raises it."""
    bench, mini, noise, at = learnable("atoc", group=2, message=4, cost=0.001, trial=0.6, regular=0.0, lr_critic=1e-30)
    r, algo, alive = mini.data, bench.algo, mini.data.extras["alive"]
    model, target, seen = algo.model, algo.target.net, whole(mini.data)
    with torch.no_grad():
        later = target.actor.think(seen.obs, seen.past, seen.there)
        raw = target.actor.say(later, later.wish > 0)
        now = model.actor.think(by_slot(r.obs), seen.past, alive)
        coins = noise.uniform.unflatten(-1, (N, A + 1))
        opens = coins[..., 0] < torch.sigmoid(now.wish).clamp(min=0.6)
        acted, none = model.actor.say(now, opens), torch.zeros_like(alive)
        groups = [model.actor.say(now, none)]
        for i in range(N):
            only = none.clone()
            only[..., i] = True
            groups.append(model.actor.say(now, only))
    errors, values, attention, gains = [], [], [], []
    for c in [c for c in range(r.reward.shape[1]) if float(mini.weight[0, c]) > 0]:

        def joint(obs: Any, raw: Any, t: int, there: Any, gumbel: Any = None, c: int = c) -> np.ndarray:
            legal = obs["action_mask"][t, c].bool().numpy()
            x = raw[t, c].double().numpy() + (0.0 if gumbel is None else gumbel)
            did = [hot(max(np.flatnonzero(legal[i]), key=lambda a, i=i: x[i, a])) for i in range(N)]
            return np.concatenate([d * bool(there[t, c, i]) for i, d in enumerate(did)])

        after = judged(target.critics, seen.copies, 1, c, joint(seen.copies, raw, 1, seen.there))[0, 0]
        taken = np.concatenate([hot(int(r.action[0, c, i])) * bool(alive[0, c, i]) for i in range(N)])
        goal = float(r.reward[0, c]) + float(r.discount[0, c]) * after
        errors.append((judged(model.critics, r.obs, 0, c, taken)[0, 0] - goal) ** 2)
        gumbel = -np.log(-np.log(coins[0, c, :, 1:].double().numpy()))
        values.append(judged(model.critics, r.obs, 0, c, joint(r.obs, acted, 0, alive, gumbel))[0, 0])
        worth = [judged(model.critics, r.obs, 0, c, joint(r.obs, x, 0, alive))[0, 0] for x in groups]
        for i in range(N):
            if alive[0, c, i]:
                p = 1 / (1 + np.exp(-float(now.wish[0, c, i])))
                gains.append(worth[1 + i] - worth[0])
                label = 0.5 + 0.5 * np.sign(gains[-1] - 0.001)
                attention.append(-label * np.log(p) - (1 - label) * np.log(1 - p))
    update = algo.learn(mini, bench.agent.knobs(at), noise).metrics
    assert float(update["critic"]) == pytest.approx(np.mean(errors), rel=1e-3)
    assert float(update["actor"]) == pytest.approx(-np.mean(values), rel=1e-3)
    assert float(update["attention"]) == pytest.approx(np.mean(attention), rel=1e-3)
    assert float(update["gain"]) == pytest.approx(np.mean(gains), rel=1e-2, abs=1e-5)


def test_silence_is_silence() -> None:
    """Without communication an agent acts by its own view alone; with it, by the others' too."""
    for communicate in (False, True):
        bench = Bench(Team("atoc", "atoc", THREE, SPEAKERS, over(CENTRE, communicate=communicate)))
        with torch.no_grad():
            bench.algo.model.actor.attention.head.bias.fill_(5.0)  # everybody wishes to speak
        obs = ops.map_tree(lambda x: x.clone(), bench.now[0].obs)
        obs["present"], obs["action_mask"] = torch.ones(12, N), torch.ones(12, A)
        other = {**obs, "obs": obs["obs"].clone()}
        other["obs"][:4] += 1.0  # what the first agents see
        one, two = (
            bench.algo.predict(ops.map_tree(lambda x: x[None], o), past(bench), still(bench)) for o in (obs, other)
        )
        moved = (one.dist.logits - two.dist.logits)[0].abs().amax(-1)
        assert (moved[:4] > 0).all() and bool((moved[4:] > 0).all()) == communicate == bool((moved[4:] > 0).any())


def past(bench: Any) -> Any:
    return bench.agent.begun(bench.now[1])


def still(bench: Any) -> Any:
    return bench.algo.neutral(past(bench).start)


def test_those_who_are_not_there_are_not_heard() -> None:
    actor = speakers()
    thoughts, _ = thoughts_of(actor, 4, 1)
    gone = torch.zeros(2, 5, 4, dtype=torch.bool)
    gone[..., 2] = True
    opens = torch.ones(2, 5, 4, dtype=torch.bool)
    thoughts = thoughts._replace(there=~gone)
    spoilt = thoughts._replace(own=torch.where(gone[..., None], 7.0, thoughts.own))
    with torch.no_grad():
        assert torch.equal(actor.told(thoughts, opens), actor.told(spoilt, opens))
        assert not actor.told(thoughts, opens)[..., 2, :].any()


# ------------------------------------------------------------ settings


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"coma needs a Discrete action space"):
        Bench(Case("x", "coma", ARM, settings=ROLLOUT))
    with pytest.raises(UserError, match=r"maddpg needs a Discrete or bounded Box action space"):
        Bench(Case("x", "maddpg", HYBRID, settings=CENTRE))


def test_by_agent() -> None:
    """Numbers of copies stay with their agents, and come again where there are more rows."""
    numbers = torch.arange(2 * 4 * N * 2).float().view(2, 4, N * 2)
    split = by_agent(Noise(numbers, numbers[..., :0]), 3, N).uniform
    assert torch.equal(by_copy(split, N)[:2], numbers.unflatten(-1, (N, 2))) and torch.equal(split[2], split[0])


# ------------------------------------------------------------ order and the dead

ALGOS = ["coma", "maddpg", "masac", "atoc"]


@pytest.mark.parametrize("algo", ALGOS)
def test_permuting_agents_permutes_what_they_do(algo: str) -> None:
    bench = Bench(Team(algo, algo, THREE, SPEAKERS, ROLLOUT if algo == "coma" else CENTRE))
    obs = {**bench.now[0].obs, "present": torch.ones(12, N)}
    order = torch.arange(12).view(N, 4)[[2, 0, 1]].flatten()
    one, other = (
        bench.algo.predict(ops.map_tree(lambda x: x[None], seen), past(bench), still(bench)).dist.logits[0]
        for seen in (obs, ops.take(obs, order))
    )
    torch.testing.assert_close(one[order], other, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(one[:4], one[4:8], rtol=1e-3)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_dead_move_nothing(algo: str, memory: str) -> None:
    """What a dead agent saw and did changes neither the loss nor a parameter."""
    more = {} if algo == "coma" else {"replay": {"sequence": 4}}
    net = {"memory": memory, "memory_size": 8} if memory != "none" else {}
    after = []
    for spoilt in (False, True):
        bench, mini, noise, at = learnable(algo, net=net, **more)
        mini = spoil(mini) if spoilt else mini
        update = bench.algo.learn(mini, bench.agent.knobs(at), noise)
        after.append([*bench.algo.model.state().tensors.values(), *update.metrics.values()])
    assert all(torch.equal(a, b) for a, b in zip(*after, strict=True))
