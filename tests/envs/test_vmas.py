"""VMAS's scenarios as slots, beside the package itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ganglion.config.files import load
from ganglion.errors import UserError
from tests.envs.worlds import copied

vmas = pytest.importorskip("vmas", reason="the package that plays them")


def world(id: str, slots: int, limit: int = 7, options: str = "{}") -> Any:
    env = f"{{kind: vmas, id: {id}, slots: {slots}, time_limit: {limit}, options: {options}}}"
    return load(None, ["algo=ppo", f"env={env}"]).env.whole()


@pytest.mark.parametrize(
    ("name", "options", "agents"), [("balance", "{n_agents: 3}", 3), ("simple_adversary", "{}", 3)]
)
def test_random_play_is_the_packages(name: str, options: str, agents: int) -> None:
    """The same scenario, seed and actions: observations and rewards of every agent, and endings at the limit."""
    env, given = world(name, 4 * agents, options=options), {"n_agents": 3} if name == "balance" else {}
    now = env.reset(3)
    theirs = vmas.make_env(name, num_envs=4, device="cpu", seed=0, terminated_truncated=True, **given)
    theirs.seed(env_seed(3))
    seen, alive = theirs.reset(), torch.ones(4, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 7):
        for i, own in enumerate(seen):
            assert torch.equal(now.obs.view(agents, 4, -1)[i, :, : own.shape[1]][alive], own[alive])
            assert not now.obs.view(agents, 4, -1)[i, :, own.shape[1] :].any()
        action = 2 * torch.rand(4 * agents, *env.spec.action.shape, generator=generator) - 1
        sizes = [space.shape[0] for space in theirs.action_space.spaces]
        each = [own[:, :n] for own, n in zip(action.view(agents, 4, -1), sizes, strict=True)]
        seen, reward, over, _, _ = theirs.step([x.contiguous() for x in each])
        now = env.step(action)
        for i, own in enumerate(reward):
            assert torch.equal(now.reward.view(agents, 4)[i][alive], own[alive])
        assert torch.equal(now.terminated.view(agents, 4)[:, alive], over[alive].expand(agents, -1))
        alive &= ~over
        assert bool(alive.any()), t


def env_seed(seed: int) -> int:
    from ganglion.envs.seeds import episode_seed

    return episode_seed(seed, 0, 0) % (1 << 31)


def test_episodes_end_at_the_limit_and_begin_anew() -> None:
    env = world("balance", 6)
    step, rows = env.reset(1), []
    for _ in range(40):
        before, step = step, env.step(torch.zeros(6, 2))
        rows.append((before, step))
        started = ~before.valid
        assert not (step.terminated | step.truncated)[started].any() and not step.reward[started].any()
        assert step.valid[started].all()
    ended = [episode for episode in env.episodes() if episode.slot == 0]
    assert len(ended) >= 4 and all(1 <= episode.length <= 7 for episode in ended)
    assert any(episode.length == 7 for episode in ended)


def test_a_resumed_run_cuts_what_cannot_be_saved() -> None:
    one, two = world("balance", 6), world("balance", 6)
    one.reset(1)
    for _ in range(3):
        last = one.step(torch.zeros(6, 2))
    two.restore(copied(one.state()))
    step = two.step(torch.zeros(6, 2))
    running = last.valid
    assert step.truncated[running].all() and torch.equal(step.obs[running], last.obs[running])
    assert two.step(torch.zeros(6, 2)).valid.all()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("{id: balence}", r"env\.id: vmas has no 'balence'. Did you mean 'balance'"),
        ("{id: balance, slots: 4}", r"env\.slots: 4 are no whole copies of a game of 3 agents"),
        ("{id: balance, options: {num_envs: 3}}", r"env\.options: num_envs is set by env\.slots"),
    ],
)
def test_what_is_refused(env: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(None, ["algo=ppo", f"env={{kind: vmas, {env[1:]}"]).env.whole()


def test_a_run() -> None:
    from ganglion.runtime.build import build

    algo = "{kind: mappo, horizon: 8, minibatches: 2, epochs: 1, net: {hidden: [8]}, critic: {hidden: [8]}}"
    words = [f"algo={algo}", "env={kind: vmas, id: balance, slots: 12, time_limit: 9}", "train.budget=400 steps"]
    made = build(load(None, [*words, "run.device=cpu", "run.fast=eager"]))
    logs = list(made())
    assert made.at.opt_steps > 5 and any(log.episodes for log in logs)
