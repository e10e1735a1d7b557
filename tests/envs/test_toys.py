"""Toys: the values they claim are the values they have, found by brute force."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ganglion.envs import Bandit, Chain, DeepSea, Identity, Masked, Memory, ToyConfig, TruncationProbe
from ganglion.errors import UserError


def test_identity_pays_for_the_symbol_shown() -> None:
    env = Identity(64, size=5, limit=6)
    step, total, shown = env.reset(0), torch.zeros(64), []
    for t in range(6):
        shown.append(step.obs)
        assert step.obs.dtype == torch.int64 and step.valid.all()
        wrong = env_copy_reward(env, (step.obs + 1) % 5)
        assert (wrong == 0).all()
        step = env.step(step.obs)
        total += step.reward
        assert step.truncated.all() == (t == 5) and not step.terminated.any()
    assert (total == env.best_return).all()
    assert len(torch.stack(shown).unique()) == 5
    q = env.best_values(0.9)
    assert torch.allclose(q.amax(-1), torch.full((5,), 10.0)) and torch.allclose(q[0, 1], torch.tensor(9.0))


def env_copy_reward(env: Identity, action: torch.Tensor) -> torch.Tensor:
    """The reward an action would bring, without taking it."""
    return env.advance(env.world, action, env._dice(env.now()))[1]


def test_identity_with_a_real_action() -> None:
    env = Identity(64, continuous=True)
    step = env.reset(0)
    assert env.step(step.obs).reward.abs().max() < 1e-12
    assert (env.step(torch.full((64, 1), 9.0)).reward >= -4).all()  # clipped


@pytest.mark.parametrize(("size", "gamma"), [(8, 0.99), (5, 0.9), (3, 0.9999)])
def test_chain_values_by_value_iteration(size: int, gamma: float) -> None:
    env = Chain(2 * size, size=size, limit=10**9)
    place, action = (torch.tensor(x) for x in zip(*product(range(size), range(2)), strict=True))
    world, reward, terminated = env.advance(place.double().unsqueeze(-1), action, env.world[:, :0])
    q = torch.zeros(2 * size, dtype=torch.float64)
    for _ in range(100_000):
        after = reward + gamma * ~terminated * q.reshape(size, 2).amax(-1)[world.squeeze(-1).long()]
        if torch.equal(after, q):
            break
        q = after
    assert torch.allclose(q.reshape(size, 2).float(), env.best_values(gamma), rtol=1e-3)


def test_the_deep_sea_is_crossed_by_one_way_alone() -> None:
    """All 2^n ways of a small one at once: going right n times pays 0.99, each other way what its steps cost."""
    n = 6
    env = DeepSea(2**n, size=n)
    step, total, rights = env.reset(0), torch.zeros(2**n), torch.zeros(2**n)
    ways = torch.tensor(list(product((0, 1), repeat=n)))  # 1: right
    for t in range(n):
        assert step.valid.all() and (step.obs.sum(-1) == 1).all() and (step.obs.argmax(-1) // n == t).all()
        row, column = step.obs.argmax(-1) // n, step.obs.argmax(-1) % n
        right = env.right[row, column]
        step = env.step(torch.where(ways[:, t] == 1, right, 1 - right))
        total += step.reward
        rights += ways[:, t]
        assert step.terminated.all() == (t == n - 1) and not step.truncated.any()
    assert total.argmax() == 2**n - 1 and total.max() == pytest.approx(env.best_return)
    torch.testing.assert_close(total[:-1], -0.01 / n * rights[:-1])
    assert 0 < int(env.right.sum()) < n * n, "neither action is right everywhere"


def test_chain_walked_to_its_end() -> None:
    env = Chain(1, size=4)
    step = env.reset(0)
    for place in range(4):
        assert step.obs.tolist() == [[float(i == place) for i in range(4)]]
        step = env.step(torch.tensor([1]))
    assert step.reward == 1 and step.terminated and not step.truncated
    assert env.step(torch.tensor([1])).obs.argmax() == 0
    assert env.episodes()[0].total == env.best_return


def test_bandit_pays_what_it_says() -> None:
    env = Bandit(4000, size=5)
    env.reset(0)
    for arm, want in enumerate(env.best_values(0.99)[0].tolist()):
        step = env.step(torch.full((4000,), arm))
        assert step.terminated.all()
        assert abs(float(step.reward.mean()) - want) < 0.02
        assert step.reward.std() > 0.2
        env.step(torch.zeros(4000, dtype=torch.int64))


@pytest.mark.parametrize("delay", [0, 3])
def test_memory_needs_memory(delay: int) -> None:
    env = Memory(3000, size=3, delay=delay)
    step = env.reset(0)
    cue = step.obs[:, :3].argmax(-1)
    assert (step.obs.sum(-1) == 1).all() and len(cue.unique()) == 3
    for _ in range(delay):
        step = env.step(cue)
        assert not step.obs.any() and not step.reward.any()
    step = env.step(cue)
    assert (step.obs == torch.tensor([0.0, 0.0, 0.0, 1.0])).all()  # the bell
    last = env.step(torch.where(torch.arange(3000) < 1500, cue, 0))
    assert last.terminated.all() and (last.reward[:1500] == env.best_return).all()
    assert abs(float(last.reward[1500:].mean()) - 1 / 3) < 0.05


def test_masked_is_worth_what_it_says_with_the_mask_and_nothing_without() -> None:
    env = Masked(5000, size=4, limit=8)
    step, total, blind = env.reset(0), torch.zeros(5000), []
    masks = []
    for _ in range(8):
        mask = step.obs["action_mask"]
        masks.append(mask)
        assert mask.dtype == torch.bool and mask[:, 0].all()
        blind.append(env.advance(env.world, torch.full((5000,), 3), env._dice(env.now()))[1])
        best = (mask * torch.arange(1, 5)).argmax(-1)
        step = env.step(best)
        assert (step.reward >= 0).all()
        total += step.reward
    assert step.truncated.all()
    assert abs(float(total.mean()) - env.best_return) < 0.02 * env.best_return
    assert abs(float(torch.stack(blind).mean())) < 0.02
    assert not torch.equal(masks[0], masks[1])
    by_hand = sum(
        max(a for a in range(4) if a == 0 or bits >> (a - 1) & 1) / 3 for bits in range(8)
    ) / 8  # fmt: skip
    assert abs(env.best_step - by_hand) < 1e-12


def test_an_illegal_action_costs() -> None:
    env = Masked(256, size=4)
    mask = env.reset(0).obs["action_mask"]
    step = env.step(torch.full((256,), 3))
    assert (step.reward == torch.where(mask[:, 3], 1.0, -1.0)).all()


def test_truncation_probe_never_terminates() -> None:
    env = TruncationProbe(2, limit=5)
    env.reset(0)
    cuts = []
    for _ in range(12):
        step = env.step(torch.zeros(2, dtype=torch.int64))
        assert not step.terminated.any()
        cuts.append(bool(step.truncated.all()))
    assert cuts == [False] * 4 + [True] + [False] * 5 + [True] + [False]
    assert [e.total for e in env.episodes()] == [5.0] * 4
    assert env.best_values(0.99)[0, 0] == pytest.approx(100.0)


def test_toys_from_a_config() -> None:
    for name in ("identity", "chain", "deepsea", "bandit", "memory", "masked", "truncation"):
        env = ToyConfig(id=name, slots=2).build()
        assert env.spec.slots == 2 and env.spec.name == name and env.promise == "state"
    assert ToyConfig(id="memory", delay=9).build(slots=1).delay == 9  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"env\.delay.*size"):
        ToyConfig(id="bandit", delay=3).build()
